//! TLS: certificates made for the test, the server that shows them, and a client that trusts them or does not.

use crate::http::Server;
use crate::support::Project;

/// A certificate of its own for this machine, and its key.
fn certificate(project: &Project) -> (String, String) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let cert = project.write("cert.pem", made.cert.pem());
    let key = project.write("key.pem", made.signing_key.serialize_pem());
    (cert.display().to_string(), key.display().to_string())
}

#[test]
fn a_client_that_trusts_the_certificate_gets_in_and_others_do_not() {
    let project = Project::with("name: x\npipelines: { main: { steps: [ { run: echo secret } ] } }\n");
    let (cert, key) = certificate(&project);
    let project = project.env("WINDLASS_CA", &cert);
    let server = Server::start_with(project, &["--tls-cert", &cert, "--tls-key", &key]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let there = ["--server", server.url.as_str()];
    server.project.windlass(&[&["run", "book.yaml"], &there[..]].concat()).code(0).says("secret");
    server.project.windlass(&[&["token", "list"], &there[..]].concat()).code(0);
    // The system does not know who signed it.
    let other = Project::new();
    other.windlass(&[&["runs"], &there[..]].concat()).code(75).warns("certificate");
    // One that speaks in the clear gets nothing.
    let mut plain = server.connect();
    use std::io::{Read as _, Write as _};
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP/1.1"), "{rest:?}");
    // A certificate for another name is none.
    let named = rcgen::generate_simple_self_signed(vec!["elsewhere.example".to_owned()]).unwrap();
    let project = Project::new();
    let wrong = project.write("cert.pem", named.cert.pem()).display().to_string();
    let key = project.write("key.pem", named.signing_key.serialize_pem()).display().to_string();
    let project = project.env("WINDLASS_CA", &wrong);
    let server = Server::start_with(project, &["--tls-cert", &wrong, "--tls-key", &key]);
    server.project.windlass(&["runs", "--server", &server.url]).code(75).warns("certificate");
}

#[test]
fn files_that_are_no_certificates_are_refused() {
    let project = Project::new();
    let (cert, key) = certificate(&project);
    let empty = project.write("empty.pem", "").display().to_string();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = project.write("other.pem", other.signing_key.serialize_pem()).display().to_string();
    for (cert, key) in [(&empty, &key), (&cert, &empty), (&cert, &cert), (&key, &key), (&cert, &other)] {
        let words =
            ["serve", "--listen", "127.0.0.1:0", "--tls-cert", cert.as_str(), "--tls-key", key.as_str()];
        project.windlass(&words).code(2);
    }
}
