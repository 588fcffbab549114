//! The requests to Slack: post, change and find messages, open a window, answer one person.

use super::blocks::Message;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::digest::Digest;
use windlass_core::id::Name;
use windlass_engine::{Leave, Own};
use windlass_executor::secrets::Secrets;
use windlass_executor::tools::session::Session;
use windlass_executor::tools::settings::Settings;
use windlass_executor::tools::wire::Wire;
use windlass_executor::tools::{Trouble, slack};

/// The kind of metadata by which our messages are found.
const EVENT: &str = "windlass_card";
/// How many messages of a channel are looked through.
const LOOK_MAX: usize = 200;
/// How long an answer may take.
const TIME_MAX: Duration = Duration::from_secs(10);
/// A window has to be opened within three seconds of the click.
const CLICK_TIME_MAX: Duration = Duration::from_millis(2_000);

/// The way to Slack.
pub struct Slack {
    wire: Wire,
    url: String,
    secrets: Arc<Secrets>,
}

/// A message's place: the channel's id and the message's time stamp.
#[must_use]
pub fn place(channel: &str, ts: &str) -> Option<Name> {
    let good = |text: &str| !text.is_empty() && text.len() <= 64 && !text.contains('/');
    (good(channel) && good(ts)).then(|| Name::clean(&format!("{channel}/{ts}")))
}

/// A mark by which a message is found again. It means nothing to other readers.
#[must_use]
pub fn mark(about: &str, to: &str) -> String {
    let hash = Digest::of(&[b"windlass card mark v1\n", about.as_bytes(), b"\n", to.as_bytes()]).to_string();
    format!("windlass-{}", hash.get(..24).unwrap_or(&hash))
}

impl Slack {
    /// The way that the settings say.
    ///
    /// # Errors
    /// The system has no certificates, or the like.
    pub fn new(settings: &Arc<Settings>, secrets: Arc<Secrets>) -> Result<Slack, String> {
        Ok(Slack { wire: Wire::new(settings)?, url: settings.slack_url.clone(), secrets })
    }

    /// Whether there is a token for a tenant.
    #[must_use]
    pub fn has_token(&self, tenant: &Name) -> bool {
        self.token(tenant).is_ok()
    }

    fn token(&self, tenant: &Name) -> Result<String, Trouble> {
        let session = Session::new(tenant.clone(), self.secrets.clone());
        session.credential("SLACK_BOT_TOKEN", &["WINDLASS_SLACK_BOT_TOKEN"])
    }

    async fn call(
        &self,
        tenant: &Name,
        (method, name): (Method, &str),
        body: Value,
        timeout: Duration,
    ) -> Result<Value, Trouble> {
        let token = self.token(tenant)?;
        let leave = Leave::own(Own::Card);
        slack::send((&leave, &self.wire), &self.url, &token, timeout, (method, name), body).await
    }

    /// Posts a message; returns where it stands.
    ///
    /// # Errors
    /// What went wrong, and whether it may stand there all the same.
    pub async fn post(
        &self,
        tenant: &Name,
        to: &str,
        thread: Option<&str>,
        message: &Message,
        mark: &str,
    ) -> Result<Name, Trouble> {
        let mut body = json!({
            "channel": to, "text": message.text, "blocks": message.blocks, "parse": "none",
            "link_names": false, "unfurl_links": false, "unfurl_media": false,
            "metadata": { "event_type": EVENT, "event_payload": { "key": mark } },
        });
        if let Some(thread) = thread {
            body["thread_ts"] = json!(thread);
        }
        let said = self.call(tenant, (Method::POST, "chat.postMessage"), body, TIME_MAX).await?;
        let text = |key: &str| said[key].as_str().unwrap_or_default();
        place(text("channel"), text("ts"))
            .ok_or_else(|| Trouble::unanswered("slack chat.postMessage did not say where the message stands"))
    }

    /// Puts a message in the place of another.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn update(&self, tenant: &Name, place: &Name, message: &Message) -> Result<(), Trouble> {
        let (channel, ts) = place.as_str().split_once('/').unwrap_or_default();
        let body = json!({
            "channel": channel, "ts": ts, "text": message.text, "blocks": message.blocks, "parse": "none",
            "link_names": false,
        });
        self.call(tenant, (Method::POST, "chat.update"), body, TIME_MAX).await.map(|_| ())
    }

    /// Looks for a message by its mark: in a channel, or in a thread of it.
    ///
    /// # Errors
    /// That cannot be told now, or not at all.
    pub async fn find(
        &self,
        tenant: &Name,
        to: &str,
        thread: Option<&str>,
        mark: &str,
    ) -> Result<Option<Name>, Trouble> {
        let mut query = json!({ "channel": to, "limit": LOOK_MAX, "include_all_metadata": true });
        let name = match thread {
            Some(ts) => {
                query["ts"] = json!(ts);
                "conversations.replies"
            }
            None => "conversations.history",
        };
        let said = self.call(tenant, (Method::GET, name), query, TIME_MAX).await?;
        let ours = |message: &&Value| {
            let about = &message["metadata"];
            about["event_type"] == EVENT && about["event_payload"]["key"].as_str() == Some(mark)
        };
        let messages = said["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = messages.iter().find(ours).and_then(|message| message["ts"].as_str());
        Ok(found.and_then(|ts| place(to, ts)))
    }

    /// Opens a window for the one who clicked.
    ///
    /// # Errors
    /// It could not be opened, for example because the click is too old.
    pub async fn open(&self, tenant: &Name, trigger_id: &str, view: &Value) -> Result<(), Trouble> {
        let body = json!({ "trigger_id": trigger_id, "view": view });
        self.call(tenant, (Method::POST, "views.open"), body, CLICK_TIME_MAX).await.map(|_| ())
    }

    /// Says something to one person in a channel.
    ///
    /// # Errors
    /// It could not be said.
    pub async fn whisper(&self, tenant: &Name, channel: &str, user: &str, text: &str) -> Result<(), Trouble> {
        let body = json!({ "channel": channel, "user": user, "text": text, "parse": "none" });
        self.call(tenant, (Method::POST, "chat.postEphemeral"), body, TIME_MAX).await.map(|_| ())
    }
}
