//! Locks do not grow the log, and go on where they were: a free one leaves it, and one that is held loses what stands before a
//! record that says what it came to.

use crate::http::Server;
use crate::support::Project;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Twice as many records, more than a stream has before it is carried on.
const MANY: u64 = 600;

struct Load {
    server: Server,
    owner: String,
}

impl Load {
    fn ask(&self, lock: &str, what: &str, body: &Value) -> Value {
        let path = format!("/v1/locks/{lock}/{what}");
        self.server.ask("POST", &path, Some(&self.owner), Some(body)).json()
    }

    fn acquire(&self, lock: &str, epoch: u64) {
        let grant = self.ask(lock, "acquire", &json!({ "holder": "me", "wait_ms": 0 }));
        assert_eq!((&grant["result"], &grant["epoch"]), (&json!("acquired"), &json!(epoch)), "{grant}");
    }

    fn release(&self, lock: &str, epoch: u64) {
        let given = self.ask(lock, "release", &json!({ "holder": "me", "epoch": epoch }));
        assert_eq!(given["result"], "released", "{given}");
    }

    /// Ends the server, lets go what can go, and begins again.
    fn compact(&mut self) -> Value {
        let process = self.server.process.take().unwrap();
        process.signal(Signal::TERM);
        process.wait().code(0);
        // The file that is written stays as it is where no run leaves.
        self.server.project.run(&[], 0);
        let words = ["store", "compact", "--retention", "1ms", "--yes", "--json"];
        let done = self.server.project.windlass(&words).code(0).json();
        self.server.project.windlass(&["store", "verify"]).code(0);
        self.begin();
        done
    }

    fn begin(&mut self) {
        self.server.begin(&[]);
        // Each process has a credential of its own.
        self.owner = self.server.owner();
    }

    /// The records of a lock, by type.
    fn records(&self, lock: &str, kind: &str) -> Vec<Value> {
        let stream = json!(format!("lock/default/default/{lock}"));
        self.server.project.events(kind).into_iter().filter(|record| record["stream"] == stream).collect()
    }
}

#[test]
fn locks_keep_their_epochs_and_not_their_records() {
    let project = Project::with("\nname: book\npipelines:\n  p: { steps: [ { run: ':' } ] }\n");
    let server = Server::start_with(project, &[]);
    let owner = server.owner();
    let mut load = Load { server, owner };
    for epoch in 1..=MANY {
        load.acquire("held", epoch);
        load.release("held", epoch);
    }
    load.acquire("held", MANY + 1);
    load.acquire("free", 1);
    load.release("free", 1);
    // The held one says what it came to, and the next time what stands before may go.
    load.compact();
    let carried = load.records("held", "stream:carried");
    assert_eq!(carried.len(), 1, "{carried:?}");
    assert_eq!(carried[0]["state"]["epoch"], json!(MANY + 1), "{carried:?}");
    assert_eq!(load.records("held", "lock:acquired").len() as u64, MANY + 1);
    load.compact();
    assert_eq!(load.records("held", "lock:acquired"), [Value::Null; 0]);
    // The free one is not in the log any more. Both go on, whether the process ended in its own time or not.
    assert_eq!(load.records("free", "lock:acquired"), [Value::Null; 0]);
    let raised = load.server.project.events("epochs:raised");
    assert_eq!((raised.len(), &raised[0]["floor"]), (1, &json!(1)), "{raised:?}");
    load.server.process.take().unwrap().kill();
    load.begin();
    load.acquire("free", 2);
    load.release("held", MANY + 1);
    load.acquire("held", MANY + 2);
    load.server.process.take().unwrap().kill();
    load.begin();
    load.release("free", 2);
    load.release("held", MANY + 2);
    // And the floor is the highest that ever left.
    load.compact();
    load.compact();
    load.acquire("new", MANY + 3);
    load.acquire("free", MANY + 3);
}
