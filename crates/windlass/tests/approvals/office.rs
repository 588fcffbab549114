//! A workspace of Slack on this machine, a server that shows its approvals there, and people who click.

use crate::outside::{Answer as Said, Request, Server, say};
use crate::support::{Project, text, until};
use crate::wire::{Answer, Serving, now, sign};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

pub(crate) const BOOK: &str = "
name: ops
pipelines:
  ask:
    steps: [{ id: ok, approve: { message: 'Really?' } }]
  soon:
    steps: [{ id: ok, approve: { message: 'Now?', expires: 1s } }]
  act:
    steps: [{ id: t, transform: { value: { state: resolved, note: '<!channel> & `x`' } } }]
";

/// What goes wrong with the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Something breaks.
    Broken,
    /// Too many at once.
    Busy,
    /// The connection ends before the message is posted.
    Dropped,
    /// The message is posted, and the connection ends without an answer.
    Lost,
    /// The message is posted, and no answer ever comes.
    Silent,
}

/// What the workspace holds.
#[derive(Default)]
pub(crate) struct Room {
    /// Messages in the order of their posting; replies are among them.
    pub(crate) messages: Vec<Value>,
    /// What was said to one person.
    pub(crate) whispers: Vec<Value>,
    /// Windows that were opened.
    pub(crate) views: Vec<Value>,
    pub(crate) faults: VecDeque<Fault>,
    /// Whether everything breaks.
    pub(crate) down: bool,
}

/// A workspace of Slack.
#[derive(Clone)]
pub(crate) struct Office {
    room: Arc<Mutex<Room>>,
    server: Arc<Server>,
}

impl Office {
    pub(crate) fn open() -> Office {
        let room = Arc::new(Mutex::new(Room::default()));
        let kept = room.clone();
        let server = Server::start(move |request| answer(&mut kept.lock().unwrap(), request));
        Office { room, server: Arc::new(server) }
    }

    pub(crate) fn room(&self) -> std::sync::MutexGuard<'_, Room> {
        self.room.lock().unwrap()
    }

    /// The cards in a channel.
    pub(crate) fn cards(&self, channel: &str) -> Vec<Value> {
        let room = self.room();
        let cards = room.messages.iter().filter(|m| m["channel"] == channel && m.get("thread_ts").is_none());
        cards.cloned().collect()
    }

    /// Waits for a card that holds a text.
    pub(crate) fn await_card(&self, channel: &str, part: &str) -> Value {
        until(&format!("a card in {channel} with `{part}`"), || {
            self.cards(channel).into_iter().find(|card| card["blocks"].to_string().contains(part))
        })
    }

    /// How many requests of a method came.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.server.seen().iter().filter(|request| request.path == format!("/{method}")).count()
    }

    /// A project whose approvals are shown here, under this configuration of `slack`.
    pub(crate) fn project(&self, slack: &str) -> Project {
        let project = Project::new()
            .env("WINDLASS_SLACK_SIGNING_SECRET", SECRET)
            .env("WINDLASS_SLACK_API_URL", &self.server.url())
            .env("WINDLASS_SECRET_SLACK_BOT_TOKEN", "xoxb-1234567890");
        let users = "users: { U1: ann, U2: bob, U3: tester }";
        project.write(
            "windlass.yaml",
            format!("public_url: https://w.example\nslack: {{ {users}, {slack} }}\n"),
        );
        project
    }

    /// A server with a project of this configuration.
    pub(crate) fn serve(&self, slack: &str) -> Serving {
        Serving::new(self.project(slack), &[BOOK])
    }
}

fn answer(room: &mut Room, request: &Request) -> Said {
    if room.down {
        return say(503, &json!({}));
    }
    assert_eq!(request.header("authorization"), "Bearer xoxb-1234567890");
    let body = request.json();
    let ok = say(200, &json!({ "ok": true }));
    match request.path.trim_matches('/') {
        "chat.postMessage" => post(room, body),
        "chat.update" => {
            let same = |m: &&mut Value| m["ts"] == body["ts"] && m["channel"] == body["channel"];
            let Some(message) = room.messages.iter_mut().find(same) else {
                return say(200, &json!({ "ok": false, "error": "message_not_found" }));
            };
            message["text"] = body["text"].clone();
            message["blocks"] = body["blocks"].clone();
            say(200, &json!({ "ok": true, "channel": body["channel"], "ts": body["ts"] }))
        }
        "conversations.history" => {
            let found: Vec<&Value> =
                room.messages.iter().filter(|m| m["channel"] == request.query["channel"]).collect();
            say(200, &json!({ "ok": true, "messages": found, "has_more": false }))
        }
        "conversations.replies" => {
            let found: Vec<&Value> =
                room.messages.iter().filter(|m| m["thread_ts"] == request.query["ts"]).collect();
            say(200, &json!({ "ok": true, "messages": found, "has_more": false }))
        }
        "chat.postEphemeral" => {
            room.whispers.push(body);
            ok
        }
        "views.open" => {
            room.views.push(body);
            ok
        }
        _ => say(200, &json!({ "ok": false, "error": "unknown_method" })),
    }
}

fn post(room: &mut Room, mut message: Value) -> Said {
    let fault = room.faults.pop_front();
    match fault {
        Some(Fault::Broken) => return say(500, &json!({})),
        Some(Fault::Busy) => {
            return Said::Say(429, vec![("retry-after".into(), "1".into())], b"{}".to_vec());
        }
        Some(Fault::Dropped) => return Said::Reset,
        Some(Fault::Lost | Fault::Silent) | None => {}
    }
    // What Slack would not take.
    let blocks = message["blocks"].as_array().expect("blocks");
    assert!(blocks.len() <= 50 && message["metadata"]["event_payload"]["key"].is_string(), "{message}");
    let ts = format!("1763245800.{:06}", room.messages.len() + 1);
    let answer = json!({ "ok": true, "channel": message["channel"], "ts": ts });
    message["ts"] = json!(ts);
    room.messages.push(message);
    match fault {
        Some(Fault::Lost) => Said::Reset,
        Some(Fault::Silent) => Said::Silence,
        Some(Fault::Broken | Fault::Busy | Fault::Dropped) | None => say(200, &answer),
    }
}

/// A payload as Slack sends it: the headers with its signature, and the body.
pub(crate) fn signed(payload: &Value) -> ([(&'static str, String); 3], String) {
    let escaped: String = payload.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (body, time) = (format!("payload={escaped}"), now().to_string());
    let signature = format!("v0={}", sign(SECRET, &[b"v0:", time.as_bytes(), b":", body.as_bytes()]));
    let headers = [
        ("x-slack-signature", signature),
        ("x-slack-request-timestamp", time),
        ("content-type", "application/x-www-form-urlencoded".to_owned()),
    ];
    (headers, body)
}

/// Sends a signed payload as Slack does.
pub(crate) fn send(serving: &Serving, payload: &Value) -> Answer {
    let (headers, body) = signed(payload);
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    serving.post("/hooks/slack/actions", &headers, body.as_bytes())
}

/// Somebody clicks on a button of a card; returns what they are told.
pub(crate) fn click(serving: &Serving, card: &Value, action: &str, user: &str) -> String {
    text(&send(serving, &clicked(card, action, user)).is(200).json(), "text").to_owned()
}

/// What Slack sends when somebody clicks on a button of a card.
pub(crate) fn clicked(card: &Value, action: &str, user: &str) -> Value {
    let blocks = card["blocks"].as_array().unwrap();
    let buttons = blocks.iter().find(|block| block["type"] == "actions").expect("buttons");
    let elements = buttons["elements"].as_array().unwrap();
    let button = elements.iter().find(|button| button["action_id"] == action).unwrap();
    // Every click has a trigger of its own; without one it would be a replay.
    static CLICKS: AtomicU64 = AtomicU64::new(0);
    let n = CLICKS.fetch_add(1, Ordering::Relaxed);
    json!({
        "type": "block_actions", "team": { "id": "T1" }, "user": { "id": user },
        "trigger_id": format!("13345224609.{n}"),
        "channel": { "id": card["channel"] }, "message": { "ts": card["ts"] },
        "container": { "type": "message", "message_ts": card["ts"], "channel_id": card["channel"] },
        "actions": [{ "type": "button", "action_id": action, "block_id": "windlass:decide", "value": button["value"] }],
        "state": { "values": {} },
    })
}

/// Somebody sends a window off; returns what Slack is answered.
pub(crate) fn submit(serving: &Serving, view: &Value, user: &str, reason: &str) -> Value {
    let payload = json!({
        "type": "view_submission", "team": { "id": "T1" }, "user": { "id": user },
        "view": {
            "callback_id": view["callback_id"], "private_metadata": view["private_metadata"],
            "state": { "values": { "reason": { "reason": { "type": "plain_text_input", "value": reason } } } },
        },
    });
    send(serving, &payload).is(200).json()
}

/// Starts a run of a pipeline; returns its id.
pub(crate) fn start(serving: &Serving, pipeline: &str) -> String {
    let body = json!({ "pipeline": pipeline }).to_string();
    let run = serving.post("/v1/runs", &[], body.as_bytes()).is(201).json();
    text(&run, "id").to_owned()
}

/// All records of a type.
pub(crate) fn events(serving: &Serving, kind: &str) -> Vec<Value> {
    serving.project.events(kind)
}
