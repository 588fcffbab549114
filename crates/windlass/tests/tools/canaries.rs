//! Fifty secrets, in five spellings each, through steps, tools and errors: none of them in any file, answer or bundle.
//!
//! Nothing that is stored is compressed, which the test makes sure of: so a search of the bytes finds what is there.

use crate::holder::{hold, url_of};
use crate::outside::{Answer, Request, Server, say};
use crate::secrets::set;
use crate::support::{Project, text};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

const COUNT: usize = 50;
/// So many of them are in the vault, and the rest in the environment.
const KEPT: usize = 5;

fn canary(n: usize) -> String {
    format!("c\"n@ry/{n:02}+K{:x}&é'z", n * 7919 + 1_000_003)
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..=chunk.len() {
            out.push(char::from(DIGITS[(group >> (18 - 6 * n) & 63) as usize]));
        }
    }
    out
}

/// A secret as programs spell it: as it is, in base64, in hexadecimal with and without something between the bytes, escaped
/// for a URL, for JSON and for HTML.
fn spellings(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let url: String = secret
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect();
    let quoted = json!(secret).to_string();
    let mut all = vec![secret.to_owned(), hex, url, quoted[1..quoted.len() - 1].to_owned()];
    all.extend((0..3).map(|before| inside_base64(secret, before)));
    for before in [" ", ":", "\\x", "%", "\\u00"] {
        all.push(secret.bytes().map(|byte| format!("{before}{byte:02X}")).collect());
    }
    let marks =
        secret.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;").replace('\'', "&#39;");
    all.push(marks);
    all
}

/// What a secret looks like in base64 behind so many other bytes: the digits that depend on nothing else.
fn inside_base64(secret: &str, before: usize) -> String {
    let whole = base64(&[vec![b'-'; before], secret.as_bytes().to_vec()].concat());
    let (from, to) = ((before * 8).div_ceil(6), (before + secret.len()) * 8 / 6);
    whole[from..to].to_owned()
}

/// A secret as the other side gives it back: in every spelling, and in base64 among other bytes.
fn told(secret: &str) -> String {
    let among: Vec<String> =
        (0..3).map(|before| base64(&[&b"--"[..before.min(2)], secret.as_bytes(), b"--"].concat())).collect();
    [spellings(secret), among].concat().join(" ")
}

/// Whatever lies in a directory, as bytes.
pub(crate) fn files(dir: &Path, into: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            files(&path, into);
        } else if kind.is_file() {
            into.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
}

/// The other side gives back, in all spellings, what it was sent as a token. It refuses where the path says so.
fn echo(request: &Request) -> Answer {
    let token = request.header("authorization").trim_start_matches("Bearer ").to_owned();
    let body = json!({ "token": token, "told": told(&token), "message": spellings(&token),
        "error": { "message": told(&token) } });
    if request.path == "/bad" { say(400, &body) } else { say(200, &body) }
}

/// What a step writes: the secret in all spellings to both outputs, and as its typed output.
const SAY: &str = r#"
python3 - <<'P'
import base64, html, json, os, sys, urllib.parse
c = os.environ['C']
raw = c.encode()
told = [c, raw.hex(), urllib.parse.quote(c, safe=''), json.dumps(c, ensure_ascii=False), json.dumps(c)]
told += [base64.b64encode(b'-' * n + raw + b'--').decode() for n in range(3)]
told += [''.join(b + '%02X' % byte for byte in raw) for b in (' ', ':', '\\x', '%', '\\u00')]
told += [html.escape(c).replace('&#x27;', '&#39;')]
for text in told:
    print('before', text, 'after')
    print(text, file=sys.stderr)
open(os.environ['WL_OUTPUT'], 'w').write(json.dumps({'c': c, 'told': told}))
P
"#;

/// A tool of the project's own that says everything it was sent.
const TOOL: &str = r#"
python3 -c '
import base64, json, sys
fields = json.load(sys.stdin)["fields"]
c = fields["secret"]
print(c, file=sys.stderr)
told = [c, base64.b64encode(c.encode()).decode(), c.encode().hex(), json.dumps(c)]
bad = {"ok": False, "error": " ".join(told), "happened": "no"}
print(json.dumps(bad if fields["word"] == "bad" else {"ok": True, "output": {"told": told}}))
'
"#;

fn in_header(n: usize) -> String {
    // A header holds no quotes, so what tools send there is plain; what steps see is not.
    format!("tool-canary/{n:02}+{:x}", n * 104_729 + 5_000_011)
}

/// Every way through: steps that succeed and fail, reads and writes that succeed and are refused, tools of one's own.
fn book(url: &str) -> String {
    let mut book = String::from("name: t\npipelines:\n  p:\n    steps:\n      - parallel:\n");
    for n in 0..COUNT {
        let (c, t) = (format!("'${{{{ secrets.C{n} }}}}'"), format!("'${{{{ secrets.T{n} }}}}'"));
        let mut step = |id: &str, what: String| {
            let _ = writeln!(book, "          - {{ id: {id}{n}, {what} }}");
        };
        step("said", format!("run: ./say, env: {{ C: {c} }}"));
        step("fails", format!("run: './say; exit 3', env: {{ C: {c} }}"));
        step("read", format!("http: {{ url: '{url}/x', bearer: {t} }}"));
        step("refused", format!("http: {{ url: '{url}/bad', bearer: {t} }}"));
        step("wrote", format!("http: {{ url: '{url}/x', method: POST, bearer: {t}, json: {{ n: {n} }} }}"));
        step(
            "denied",
            format!("http: {{ url: '{url}/bad', method: POST, bearer: {t}, json: {{ n: {n} }} }}"),
        );
        if n % 10 == 0 {
            step("own", format!("own.tell: {{ word: good, secret: {c} }}"));
            step("owned", format!("own.tell: {{ word: bad, secret: {c} }}"));
        }
    }
    book.push_str("        fail_fast: false\n");
    book
}

fn scene(server: &Server) -> Project {
    let mut project = Project::with(&book(&server.url()))
        .env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1")
        .env("WINDLASS_TOOLS", "tools");
    for n in 0..COUNT {
        project = project.env(&format!("WINDLASS_SECRET_T{n}"), &in_header(n));
        if n >= KEPT {
            project = project.env(&format!("WINDLASS_SECRET_C{n}"), &canary(n));
        }
    }
    for n in 0..KEPT {
        assert!(set(&project, &format!("C{n}"), &canary(n)).status.success());
    }
    project.script("say", SAY);
    project.script("tools/tell", TOOL);
    project.write("tools/tell.yaml", "name: own.tell\ncommand: ./tell\nsemantics: at_most_once\nfields:\n  word: { type: string }\n  secret: { type: string, secret: true }\n");
    project
}

/// An answer of the server, as it came over the wire. The old protocol has no chunks that could part a secret.
fn get(url: &str, token: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.0 200"), "{path}: {}", String::from_utf8_lossy(&answer));
    answer
}

/// Everything that the server says of a run.
fn answers(project: &Project, url: &str, run: &str) -> Vec<(String, Vec<u8>)> {
    let credential: Value = serde_json::from_str(&project.read("data/credential.json")).unwrap();
    let token = text(&credential, "token").to_owned();
    let of_run =
        ["", "/steps", "/events", "/logs", "/why", "/receipts", "/evidence?values=true", "/evidence"];
    let mut paths: Vec<String> = of_run.iter().map(|end| format!("/v1/runs/{run}{end}")).collect();
    paths
        .extend(["/v1/runs", "/v1/runbooks", "/v1/approvals", "/metrics", "/v1/policies"].map(str::to_owned));
    paths.into_iter().map(|path| (path.clone(), get(url, &token, &path))).collect()
}

/// Everything that commands say of a run.
fn sayings(project: &Project, run: &str) -> Vec<(String, Vec<u8>)> {
    let looks: [&[&str]; 6] = [
        &["show", run, "--json"],
        &["show", run, "--events"],
        &["logs", run],
        &["events"],
        &["show", run, "--receipts", "--json"],
        &["why", run],
    ];
    let said = |words: &[&str]| {
        let done = project.windlass(words);
        (words.join(" "), [done.out.into_bytes(), done.err.into_bytes()].concat())
    };
    looks.into_iter().map(said).collect()
}

fn is_compressed(bytes: &[u8]) -> bool {
    [&b"\x1f\x8b"[..], b"PK\x03\x04", b"\x28\xb5\x2f\xfd"].iter().any(|magic| bytes.starts_with(magic))
}

#[test]
fn no_canary_is_in_any_file_answer_or_bundle() {
    let server = Server::start(echo);
    let project = scene(&server);
    let mut holder = hold(&project);
    let url = url_of(&mut holder);
    let done = project.windlass(&["run", "book.yaml", "--json"]).code(1);
    let run = text(&done.last(), "id").to_owned();
    let mut found = answers(&project, &url, &run);
    found.push(("run".to_owned(), [done.out.into_bytes(), done.err.into_bytes()].concat()));
    found.extend(sayings(&project, &run));
    // At its end the server writes the bundle, and everything else that it still holds.
    holder.signal(Signal::TERM);
    let ended = holder.wait().code(0);
    found.push(("serve".to_owned(), [ended.out.into_bytes(), ended.err.into_bytes()].concat()));
    assert!(
        project.has(&format!("data/evidence/{run}.evidence.tar")),
        "the run had effects, so it has a bundle"
    );
    project.windlass(&["evidence", "export", &run, "-o", "data/bundle.tar", "--values"]).code(0);
    files(&project.path("data"), &mut found);
    assert!(
        found.iter().all(|(_, bytes)| !is_compressed(bytes)),
        "a search of compressed bytes finds nothing"
    );
    assert!(server.seen().len() >= 4 * COUNT, "the tools were called: {}", server.seen().len());
    search(&found);
}

/// No spelling of a canary stands anywhere, and there was something to be masked.
fn search(found: &[(String, Vec<u8>)]) {
    let holds = |text: &[u8], part: &str| memchr::memmem::find(text, part.as_bytes()).is_some();
    let masks = found.iter().filter(|(_, bytes)| holds(bytes, "***")).count();
    assert!(masks > COUNT, "the canaries were there to be masked: {masks}");
    let mut leaks = Vec::new();
    for secret in (0..COUNT).flat_map(|n| [canary(n), in_header(n)]) {
        for spelling in spellings(&secret) {
            let found = found.iter().filter(|(_, bytes)| holds(bytes, &spelling));
            leaks.extend(found.map(|(place, _)| format!("{place} holds `{spelling}`")));
        }
    }
    leaks.sort_unstable();
    assert!(leaks.is_empty(), "{} leaks, such as {:#?}", leaks.len(), &leaks[..leaks.len().min(20)]);
}
