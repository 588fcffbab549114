//! A step is not its server: what its processes may do at the owner's socket, with the owner's credential, and in the system.

use crate::http::Server;
use crate::support::{Process, Project, text, until};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

const WINDLASS: &str = env!("CARGO_BIN_EXE_windlass");

/// Runs a pipeline of one step as the owner, and returns the run when it has ended.
fn run(server: &Server, command: &str) -> Value {
    let book =
        json!({ "name": "inside", "pipelines": { "main": { "steps": [{ "id": "s", "run": command }] } } });
    let (owner, kind) = (server.owner(), [("content-type", "application/yaml")]);
    let body = book.to_string();
    server.send("POST", "/v1/runbooks", Some(&owner), &kind, body.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "main" })));
    let path = format!("/v1/runs/{}", text(&made.status(201).json(), "id"));
    until("the end of the run", || {
        let run = server.ask("GET", &path, Some(&owner), None).status(200).json();
        ["completed", "failed"].contains(&text(&run, "status")).then_some(run)
    })
}

#[test]
fn a_process_of_a_step_has_its_attempts_rights_at_the_socket_and_never_the_owners() {
    let server = Server::start();
    let data = server.project.path("data");
    let data = data.display();
    let other = run(&server, "true");
    let other = text(&other, "id");
    // Each is tried from the step itself and from a process that left its session, parent and environment.
    let command = format!(
        "
        cat > try <<'END'
        w() {{ '{WINDLASS}' --data '{data}' \"$@\"; }}
        w show \"$2\" --json > $1.own 2>&1; echo $? > $1.own.code
        w show {other} --json > $1.other 2>&1; echo $? > $1.other.code
        w token create --scopes approve --name ann > $1.token 2>&1; echo $? > $1.token.code
        w run book.yaml > $1.run 2>&1; echo $? > $1.run.code
        key=$(grep -o 'wl_[0-9a-f]*' '{data}/credential.json')
        '{WINDLASS}' --server 'unix:{data}/windlass.sock' --token \"$key\" token list > $1.key 2>&1; echo $? > $1.key.code
        echo done > $1.done
END
        bash try near \"$WL_RUN_ID\"
        (setsid env -i PATH=\"$PATH\" HOME=\"$HOME\" bash try far \"$WL_RUN_ID\" &)
        until test -s far.done; do sleep 0.05; done
        "
    );
    server.project.write("book.yaml", "name: b\npipelines: { p: { steps: [ { run: 'touch started' } ] } }\n");
    let ended = run(&server, &command);
    assert_eq!(text(&ended, "status"), "completed", "{ended}");
    let said = |what: &str| (server.project.read(what), server.project.read(&format!("{what}.code")));
    // Wherever they went, they are their attempt's: they read their own run.
    for who in ["near", "far"] {
        let (own, code) = said(&format!("{who}.own"));
        assert_eq!(code, "0\n", "{who}: {own}");
    }
    for who in ["near", "far"] {
        for what in ["token", "run", "key"] {
            let (out, code) = said(&format!("{who}.{what}"));
            assert_eq!(code, "7\n", "{who} {what}: {out}");
            assert!(out.contains("FORBIDDEN"), "{who} {what}: {out}");
        }
        let (out, code) = said(&format!("{who}.other"));
        assert_ne!(code, "0\n", "{out}");
    }
    assert!(!server.project.has("started"));
    let tokens = server.ask("GET", "/v1/tokens", Some(&server.owner()), None).items();
    assert_eq!(tokens, [] as [Value; 0]);
    // The owner's own command line goes on as before.
    server.project.windlass(&["token", "create", "--scopes", "read", "--name", "bob"]).code(0);
}

#[test]
fn a_steps_processes_gain_no_rights_and_dump_no_core() {
    let server = Server::start();
    let command =
        "grep NoNewPrivs /proc/self/status > nnp; ulimit -Sc > core; cat /proc/self/limits > limits";
    let ended = run(&server, command);
    assert_eq!(text(&ended, "status"), "completed", "{ended}");
    assert_eq!(server.project.read("nnp").split_whitespace().last(), Some("1"));
    assert_eq!(server.project.read("core"), "0\n");
    // The last limit that it could ever raise itself to.
    let limits = server.project.read("limits");
    for (name, most) in [
        ("Max open files", 1_048_576),
        ("Max locked memory", 64 << 20),
        ("Max msgqueue size", 819_200),
        ("Max realtime priority", 0),
        ("Max nice priority", 20),
    ] {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let hard: u64 = line.split_whitespace().nth(1).unwrap().parse().expect("a limit");
        assert!(hard <= most, "{name} {line}");
    }
}

/// Starts a program with a terminal of its own, and reads what it writes there.
const IN_A_TERMINAL: &str = "
import os, sys
pid, terminal = os.forkpty()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
try:
    while os.read(terminal, 65536):
        pass
except OSError:
    pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_steps_processes_have_no_terminal_to_type_into() {
    let look = "if (: > /dev/tty) 2> /dev/null; then echo typed; else echo none; fi";
    let project =
        Project::with(&format!("name: b\npipelines: {{ p: {{ steps: [ {{ run: '{look} > said' }} ] }} }}\n"));
    let mut command = project.command(&[]);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", IN_A_TERMINAL, WINDLASS, "run", "book.yaml"]).current_dir(project.root());
    terminal.env_clear().envs(command.env("TERM", "xterm").get_envs().filter_map(|(k, v)| Some((k, v?))));
    Process::spawn(terminal, &["run", "book.yaml"]).wait().code(0);
    assert_eq!(project.read("said"), "none\n");
}

#[test]
fn a_steps_processes_use_no_more_than_the_configuration_allows() {
    let project = Project::new();
    let limits = "sandbox: { limits: { file_mib: 1, processes: 4000 } }\n";
    project.write("windlass.yaml", limits);
    let server = Server::start_with(project, &[]);
    let command = "ulimit -Hf > limits; ulimit -Hu >> limits
        if head -c 2M /dev/zero > big; then echo written; else echo refused; fi > file";
    let ended = run(&server, command);
    assert_eq!(text(&ended, "status"), "completed", "{ended}");
    assert_eq!(server.project.read("limits"), "1024\n4000\n");
    assert_eq!(server.project.read("file"), "refused\n");
    assert_eq!(std::fs::metadata(server.project.path("big")).unwrap().len(), 1 << 20);
}

/// Runs a program as a user who is not root, where the test is.
pub(crate) fn as_nobody(program: &str) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program]);
    command
}

#[test]
fn the_memory_and_the_environment_of_the_server_and_its_keeper_are_closed_to_its_own_user() {
    let project = Project::new();
    let program = project.path("windlass");
    std::fs::copy(WINDLASS, &program).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(project.root(), Some(65534), Some(65534)).unwrap();
    }
    let data = project.path("own").display().to_string();
    let mut command = as_nobody(program.to_str().unwrap());
    command.args(["--data", &data, "serve", "--listen", "127.0.0.1:0", "--json"]);
    command.current_dir(project.root());
    let mut process = Process::spawn(command, &["serve"]);
    let line: Value = serde_json::from_str(&process.await_line("\"serving\"")).unwrap();
    let server = line["pid"].as_u64().unwrap().to_string();
    let keeper = std::fs::read_to_string(format!("{data}/keeper.lock")).unwrap();
    for pid in [server.as_str(), keeper.trim()] {
        for name in ["environ", "mem", "maps"] {
            let path = format!("/proc/{pid}/{name}");
            assert_eq!(std::fs::metadata(&path).unwrap().uid(), 0, "{path} is the user's");
            let read = as_nobody("cat").arg(&path).output().unwrap();
            assert!(!read.status.success() && read.stdout.is_empty(), "{path} can be read");
        }
        let listed = as_nobody("ls").arg(format!("/proc/{pid}/fd")).output().unwrap();
        assert!(!listed.status.success(), "/proc/{pid}/fd can be listed");
    }
}

/// Everything that a process may try on a server it does not own. Each line is a name and a command; the names of those that
/// succeed are written to stdout. `$DATA` is the data directory, `$SERVER` and `$KEEPER` are processes, `$OTHER` is a run;
/// `$EXECUTOR` is the process of a remote executor and `$SCRATCH` its directory, where there is one.
pub(crate) const ATTACKS: &str = r#"
socket-tokens ./windlass --data "$DATA" token list
socket-run ./windlass --data "$DATA" runs
socket-approve ./windlass --data "$DATA" token create --scopes approve --name ann
socket-raw python3 -c 'import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b"GET /v1/tokens HTTP/1.0\r\nhost: localhost\r\n\r\n"); sys.exit(0 if b" 200 " in s.recv(64) else 1)' "$DATA/windlass.sock"
secret ./windlass --data "$DATA" secret list
own-start ./windlass --data "$DATA" store verify
credential cat "$DATA/credential.json"
attempt-key cat "$DATA/attempt.key"
keys cat "$DATA"/keys/*
vault cat "$DATA/secrets.json"
vault-key cat "$DATA/../.config/windlass/key"
log cat "$DATA"/log/*
history cat "$DATA/history.sqlite"
output cat "$DATA"/output/*/*
list ls "$DATA"
link ln "$DATA/credential.json" linked
plant touch "$DATA/planted"
plant-output touch "$DATA/output/planted"
plant-policy mkdir "$DATA/../policy"
plant-config bash -c 'echo >> "$DATA/../windlass.yaml"'
plant-system touch /etc/planted /usr/planted
remove rm -rf "$DATA/log"
move mv "$DATA" "$DATA.moved"
signal-server kill -0 "$SERVER"
signal-keeper kill -0 "$KEEPER"
stop-server kill -STOP "$SERVER"
environment cat "/proc/$SERVER/environ"
environment-keeper cat "/proc/$KEEPER/environ"
memory head -c 1 "/proc/$SERVER/mem"
maps cat "/proc/$SERVER/maps"
descriptors readlink "/proc/$SERVER/fd/1"
root ls "/proc/$SERVER/root/"
cwd ls "/proc/$SERVER/cwd/"
trace python3 -c 'import ctypes,sys; sys.exit(0 if ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0) == 0 else 1)' "$SERVER"
mount mount --bind "$DATA" .
device mknod disk b 254 0
token-other ./ask GET "/v1/runs/$OTHER"
token-runs ./ask GET /v1/runs
token-tokens ./ask GET /v1/tokens
token-approvals ./ask GET /v1/approvals
token-start ./ask POST /v1/runs
token-cancel ./ask POST "/v1/runs/$WL_RUN_ID/cancel"
credential-tcp python3 -c 'import json,os,urllib.request as u; c=json.load(open(os.environ["DATA"]+"/credential.json")); u.urlopen(u.Request(os.environ["WL_SERVER"]+"/v1/tokens", headers={"authorization":"Bearer "+c["token"]}))'
no-credential-tcp python3 -c 'import os,urllib.request as u; u.urlopen(os.environ["WL_SERVER"]+"/v1/runs")'
descriptors-inherited ls -l /proc/self/fd | grep -e socket: -e "$DATA"
output-link ln -sf "$DATA/credential.json" "$WL_OUTPUT"
output-hard-link ln -f "$DATA/credential.json" "$WL_OUTPUT"
beside-output touch "$WL_OUTPUT.planted"
executor-environment cat "/proc/$EXECUTOR/environ"
executor-memory head -c 1 "/proc/$EXECUTOR/mem"
executor-words grep -q wl_ "/proc/$EXECUTOR/cmdline"
executor-signal kill -0 "$EXECUTOR"
executor-list ls "$SCRATCH"
executor-output cat "$SCRATCH"/output/*/*
executor-plant touch "$SCRATCH/planted"
"#;

/// Asks the server with the token of the attempt, and succeeds where the server does.
const ASK: &str = r#"
python3 - "$@" <<'P'
import os, sys, urllib.request
head = {'authorization': 'Bearer ' + os.environ.get('WL_TOKEN', 'wl_none'), 'content-type': 'application/json'}
body = b'{"pipeline": "main"}' if sys.argv[1] == 'POST' else None
urllib.request.urlopen(urllib.request.Request(os.environ['WL_SERVER'] + sys.argv[2], body, head, method=sys.argv[1])).read()
P
"#;

/// A server that others have tokens for, and a directory for steps with what they may try.
fn besieged(words: &[&str]) -> (Server, String) {
    besieged_in(Project::new(), words)
}

/// The same in a project that holds something already.
pub(crate) fn besieged_in(project: Project, words: &[&str]) -> (Server, String) {
    // Programs of the system, which the sandbox gives: those in somebody's home are not in it.
    let project = project.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    let data = project.path("data").display().to_string();
    project.script("work/ask", ASK);
    std::fs::copy(WINDLASS, project.path("work/windlass")).unwrap();
    let mut try_all = String::from("set +e\n");
    for line in ATTACKS.lines().filter(|line| !line.is_empty()) {
        let (name, command) = line.split_once(' ').unwrap();
        try_all.push_str(&format!("( {command} ) > /dev/null 2>&1 < /dev/null && echo {name}\n"));
    }
    try_all.push_str("echo tried\n");
    project.script("work/try", &try_all);
    let root = rustix::process::geteuid().is_root();
    if root {
        // Others may come as far as this, and `nobody` may write where its steps work.
        std::fs::set_permissions(project.root(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        for path in ["work", "work/ask", "work/try", "work/windlass"] {
            std::os::unix::fs::chown(project.path(path), Some(65534), Some(65534)).unwrap();
        }
    }
    let mut secret = project.command(&["secret", "set", "S"]);
    let mut child = secret.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"a-secret-value").unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    (Server::start_with(project, words), data)
}

/// What a try needs to know.
pub(crate) fn targets(server: &Server, data: &str, other: &str) -> Vec<(&'static str, String)> {
    let keeper = server.project.read("data/keeper.lock").trim().to_owned();
    let pid = server.process.as_ref().unwrap().id().to_string();
    vec![
        ("DATA", data.to_owned()),
        ("SERVER", pid),
        ("KEEPER", keeper),
        ("OTHER", other.to_owned()),
        ("WL_SERVER", server.url.clone()),
    ]
}

/// Runs everything that can be tried in a step of a tenant; returns what it reached, and the run.
fn tried_in_a_step(server: &Server, data: &str, tenant: &str, other: &str) -> (String, Value) {
    let token = server.of(tenant, "default");
    tried_by(server, data, &token, (tenant, other), &json!({}))
}

/// The same by the bearer of a token. `name` is that of the file with what was reached; `more` is added to the step.
pub(crate) fn tried_by(
    server: &Server,
    data: &str,
    token: &str,
    (name, other): (&str, &str),
    more: &Value,
) -> (String, Value) {
    let mut env = serde_json::Map::new();
    for (name, value) in targets(server, data, other) {
        if name != "WL_SERVER" {
            env.insert(name.to_owned(), json!(value));
        }
    }
    let command = format!(
        "./try > {name}.reached; echo ok > \"$(mktemp)\"; cat /etc/passwd > /dev/null; echo got=it > \"$WL_OUTPUT\"; ./ask GET /v1/runs/$WL_RUN_ID"
    );
    let mut step = json!({ "id": "s", "run": command, "dir": "work" });
    for (key, value) in more.as_object().unwrap() {
        match value.as_object() {
            Some(added) => env.extend(added.clone()),
            None => step[key] = value.clone(),
        }
    }
    step["env"] = env.into();
    let book = json!({ "name": "siege", "pipelines": { "main": { "steps": [step] } } }).to_string();
    let kind = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(token), &kind, book.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", Some(token), Some(&json!({ "pipeline": "main" })));
    let path = format!("/v1/runs/{}", text(&made.status(201).json(), "id"));
    let ended = until("the end of the run", || {
        let run = server.ask("GET", &path, Some(token), None).status(200).json();
        ["completed", "failed"].contains(&text(&run, "status")).then_some(run)
    });
    (server.project.read(&format!("work/{name}.reached")), ended)
}

/// Nothing is reached from a step of the owner's tenant or another one, and steps can do their work all the same.
fn holds(words: &[&str], wall: &str) {
    let (server, data) = besieged(words);
    // The first token is what makes the wall.
    let (reached, first) = tried_in_a_step(&server, &data, "default", "run_none");
    assert_eq!((text(&first, "status"), reached.as_str()), ("completed", "tried\n"), "{first}");
    assert_eq!(first["steps"][0]["output"], json!({ "got": "it" }), "{first}");
    let (reached, second) = tried_in_a_step(&server, &data, "acme", text(&first, "id"));
    assert_eq!((text(&second, "status"), reached.as_str()), ("completed", "tried\n"), "{second}");
    // The server is whole.
    server.ask("GET", "/v1/runs", Some(&server.owner()), None).status(200);
    assert!(!server.project.has("data/planted") && !server.project.has("policy"));
    // What kept them apart is on record.
    let exits = server.project.events("shell:exited");
    assert!(!exits.is_empty() && exits.iter().all(|record| record["wall"] == wall), "{exits:?}");
}

#[test]
fn without_a_wall_the_same_tries_succeed() {
    let (server, data) = besieged(&[]);
    let harmless = [
        "credential",
        "attempt-key",
        "vault",
        "vault-key",
        "log",
        "history",
        "list",
        "link",
        "signal-server",
        "credential-tcp",
        "beside-output",
    ];
    let lines = ATTACKS.lines().filter_map(|line| line.split_once(' '));
    let tries = lines.filter(|(name, _)| harmless.contains(name));
    let tries: String =
        tries.map(|(name, command)| format!("( {command} ) > /dev/null && echo {name}\n")).collect();
    server.project.script("work/try", &tries);
    let (reached, run) = tried_in_a_step(&server, &data, "default", "run_none");
    assert_eq!(server.project.events("shell:exited")[0]["wall"], "none");
    assert_eq!(reached.lines().collect::<Vec<_>>(), harmless, "{run}");
}

#[test]
fn in_the_sandbox_a_step_reaches_nothing_of_its_server() {
    holds(&["--apart"], "sandbox");
}

#[test]
fn as_another_user_a_step_reaches_nothing_of_its_server() {
    if can_be_others() {
        holds(&["--run-as", "nobody"], "user nobody");
    }
    // Anybody else is told why not, and so is root where that user is root or is not there.
    let refused = |user: &str, why: &str| {
        for words in [&["serve"][..], &["executor", "--server", "http://127.0.0.1:1"]] {
            Project::new().windlass(&[words, &["--run-as", user]].concat()).code(2).warns(why);
        }
    };
    refused("nobody-of-that-name", "there is no user");
    match rustix::process::geteuid().is_root() {
        true => refused("root", "steps as root would reach everything"),
        false => refused("nobody", "only root"),
    }
}

/// Whether this process can be another user: only root can. What is skipped otherwise is said.
pub(crate) fn can_be_others() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped, because it takes root: what is tried as another user of the machine");
    }
    is_root
}

#[test]
fn another_user_of_the_machine_reaches_nothing() {
    let (server, data) = besieged(&["--apart"]);
    let other = run_in(&server, "work");
    // What keeps others out can be seen by everybody: a folder that is its owner's alone, with what is in it.
    let mode = |path: &str| std::fs::metadata(server.project.path(path)).unwrap().mode() & 0o7777;
    assert_eq!(mode("data"), 0o700);
    for path in ["data/credential.json", "data/windlass.sock", "data/attempt.key", "data/keeper.lock"] {
        assert_eq!(mode(path) & 0o077, 0, "{path}");
    }
    for path in ["/v1/runs", "/v1/tokens", "/v1/approvals", "/v1/events"] {
        server.ask("GET", path, None, None).problem(401, "UNAUTHORIZED");
    }
    if !can_be_others() {
        return;
    }
    let mut command = as_nobody("./try");
    command.current_dir(server.project.path("work")).env("WL_RUN_ID", &other).env("HOME", "/nonexistent");
    command.envs(targets(&server, &data, &other));
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(said, "tried\n", "{}", String::from_utf8_lossy(&out.stderr));
}

/// Runs a step in a directory as the owner, and returns its run.
pub(crate) fn run_in(server: &Server, dir: &str) -> String {
    let step = json!({ "id": "s", "run": "true", "dir": dir });
    let book = json!({ "name": "quiet", "pipelines": { "quiet": { "steps": [step] } } }).to_string();
    let kind = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&server.owner()), &kind, book.as_bytes()).status(201);
    let made = server.ask("POST", "/v1/runs", Some(&server.owner()), Some(&json!({ "pipeline": "quiet" })));
    text(&made.status(201).json(), "id").to_owned()
}

#[test]
fn a_step_whose_directory_holds_the_data_directory_is_refused_once_others_have_tokens() {
    let server = Server::start_with(Project::new(), &["--apart"]);
    let ended = |run: String| {
        until("the end of the run", || {
            let run = server.ask("GET", &format!("/v1/runs/{run}"), Some(&server.owner()), None).json();
            ["completed", "failed"].contains(&text(&run, "status")).then_some(run)
        })
    };
    // While everything is the owner's doing, a step is the owner's own code. A token that only looks changes nothing.
    server.token(&json!({ "scopes": ["read"] }));
    assert_eq!(text(&ended(run_in(&server, ".")), "status"), "completed");
    server.token(&json!({ "scopes": ["read", "run"] }));
    let failed = ended(run_in(&server, "."));
    assert_eq!(
        (text(&failed, "status"), &failed["error"]["code"]),
        ("failed", &json!("FORBIDDEN")),
        "{failed}"
    );
    let message = failed["error"]["message"].as_str().unwrap();
    for way in ["--data", "--run-as USER", "--shared-user"] {
        assert!(message.contains(way), "{message}");
    }
}
