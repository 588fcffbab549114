//! Fifty secrets, in five spellings each, through steps, tools and errors: none of them in any file or answer.

use crate::outside::{Answer, Request, Server, say};
use crate::support::Project;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

const COUNT: usize = 50;

fn canary(n: usize) -> String {
    format!("c\"n@ry/{n:02}+K{:x}&é'z", n * 7919 + 1_000_003)
}

fn base64(bytes: &[u8]) -> String {
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

/// A secret as programs spell it: as it is, in base64, in hexadecimal, escaped for a URL and for JSON.
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
    vec![secret.to_owned(), base64(secret.as_bytes()), hex, url, quoted[1..quoted.len() - 1].to_owned()]
}

/// Whatever lies in a directory, as bytes.
fn files(dir: &Path, into: &mut Vec<(String, Vec<u8>)>) {
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

/// The other side gives back, in all spellings, what it was sent as a token; and refuses where the path says so.
fn echo(request: &Request) -> Answer {
    let token = request.header("authorization").trim_start_matches("Bearer ").to_owned();
    let token = String::from_utf8(token.into_bytes()).unwrap();
    let body = json!({ "message": spellings(&token), "error": { "message": spellings(&token).join(" ") } });
    if request.path == "/bad" { say(400, &body) } else { say(200, &body) }
}

#[test]
fn no_canary_is_in_any_file_or_answer() {
    let server = Server::start(echo);
    let mut book = String::from("name: t\npipelines:\n  p:\n    steps:\n");
    // A header holds no quotes, so what tools send is plain; what steps see is not.
    let plain = |n: usize| format!("tool-canary/{n:02}+{:x}", n * 104_729 + 5_000_011);
    for n in 0..COUNT {
        let url = server.url();
        let _ = writeln!(book, "      - {{ id: s{n}, run: ./say, env: {{ C: '${{{{ secrets.C{n} }}}}' }} }}");
        let _ = writeln!(
            book,
            "      - {{ id: t{n}, http: {{ url: '{url}/x', bearer: '${{{{ secrets.T{n} }}}}' }} }}"
        );
    }
    let _ = writeln!(book, "      - parallel:");
    for n in 0..COUNT {
        let url = server.url();
        let _ = writeln!(
            book,
            "          - {{ id: b{n}, http: {{ url: '{url}/bad', bearer: '${{{{ secrets.T{n} }}}}' }} }}"
        );
    }
    book.push_str("        fail_fast: false\n");
    let mut project = Project::with(&book).env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1");
    for n in 0..COUNT {
        project = project.env(&format!("WINDLASS_SECRET_C{n}"), &canary(n));
        project = project.env(&format!("WINDLASS_SECRET_T{n}"), &plain(n));
    }
    project.script("say", "echo \"$C\"; echo \"$C\" >&2\nprintf %s \"$C\" | base64 -w0; echo\nprintf %s \"$C\" | od -An -v -tx1 | tr -d ' \\n'; echo\npython3 - <<'P'\nimport os, json, urllib.parse\nc = os.environ['C']\nprint(urllib.parse.quote(c, safe=''))\nprint(json.dumps(c, ensure_ascii=False))\nopen(os.environ['WL_OUTPUT'], 'w').write(json.dumps({'c': c}))\nP\n");
    let done = project.windlass(&["run", "book.yaml", "--json"]).code(1);
    let run = done.last()["id"].as_str().unwrap().to_owned();
    let mut found = vec![
        ("stdout".to_owned(), done.out.clone().into_bytes()),
        ("stderr".to_owned(), done.err.clone().into_bytes()),
    ];
    let looks: [&[&str]; 5] = [
        &["show", &run, "--json"],
        &["show", &run, "--events"],
        &["logs", &run],
        &["events"],
        &["show", &run, "--receipts", "--json"],
    ];
    for words in looks {
        let done = project.windlass(words);
        found.push((words.join(" "), [done.out.into_bytes(), done.err.into_bytes()].concat()));
    }
    files(&project.path("data"), &mut found);
    // Not everything is text; what is not is replaced, which hides no canary.
    let found: Vec<(String, String)> = found
        .into_iter()
        .map(|(place, bytes)| (place, String::from_utf8_lossy(&bytes).into_owned()))
        .collect();
    let masks = found.iter().filter(|(_, bytes)| bytes.contains("***")).count();
    assert!(masks > COUNT, "the canaries were there to be masked: {masks}");
    assert!(server.seen().len() >= 2 * COUNT, "the tools were called");
    for n in 0..COUNT {
        for secret in [canary(n), plain(n)] {
            for spelling in spellings(&secret) {
                for (place, bytes) in &found {
                    let there = bytes.contains(spelling.as_str());
                    assert!(!there, "{place} holds `{spelling}`");
                }
            }
        }
    }
}
