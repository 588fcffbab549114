//! `github.*`: comments, labels, statuses and pull requests, by the REST API.
//!
//! What creates something leaves a mark of its key in it, as a comment that a page does not show, so it can be found
//! again. What sets something can be repeated.

use super::session::Session;
use super::wire::{Ask, Reply};
use super::{Again, Call, Current, Outcome, Seen, Success, Tools, Trouble};
use crate::clock::wall;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// How many pages of a list are looked through, and how many entries each has.
const PAGES_MAX: usize = 10;
const PAGE_LEN: usize = 100;
/// The version of the API.
const VERSION: &str = "2022-11-28";

/// What every call needs.
struct Hub<'a> {
    tools: &'a Tools,
    call: &'a Call,
    session: &'a Session,
    /// The repository's address, without the slash at its end.
    repo: String,
}

impl<'a> Hub<'a> {
    fn new(tools: &'a Tools, call: &'a Call, session: &'a Session) -> Result<Hub<'a>, Trouble> {
        let repo = call.text("repo")?;
        let plain = |part: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            !part.is_empty() && part.chars().all(fits) && !matches!(part, "." | "..")
        };
        match repo.split_once('/') {
            Some((owner, name)) if plain(owner) && plain(name) => {}
            Some(_) | None => {
                return Err(Trouble::input(format!("`{repo}` is not a repository as owner/name")));
            }
        }
        let repo = format!("{}/repos/{repo}", tools.settings.github_url);
        Ok(Hub { tools, call, session, repo })
    }

    fn url(&self, path: &[&str]) -> Result<Url, Trouble> {
        let mut url: Url =
            self.repo.parse().map_err(|_| Trouble::input("the address of GitHub cannot be used"))?;
        // Each part is escaped, so none of them can lead anywhere else.
        url.path_segments_mut()
            .map_err(|()| Trouble::input("the address of GitHub cannot be used"))?
            .extend(path);
        Ok(url)
    }

    async fn send(&self, method: Method, url: Url, body: Option<Value>) -> Result<Reply, Trouble> {
        let token = match self.call.fields.get("token") {
            Some(token) => token.as_str().unwrap_or_default().to_owned(),
            None => self.session.credential("GITHUB_TOKEN", &["WINDLASS_GITHUB_TOKEN", "GITHUB_TOKEN"])?,
        };
        let mut ask = Ask::to_service(method, url, self.call.timeout);
        let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
        ask.headers
            .insert(AUTHORIZATION, bearer.map_err(|_| Trouble::input("the token of GitHub cannot be sent"))?);
        ask.headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.github+json"));
        ask.headers.insert("x-github-api-version", HeaderValue::from_static(VERSION));
        if let Some(body) = body {
            ask.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            ask.body = Some(body.to_string().into_bytes());
        }
        self.tools.wire.send(&self.call.leave, ask).await
    }

    /// The JSON of an answer of success.
    async fn ask(&self, method: Method, path: &[&str], body: Option<Value>) -> Result<Value, Trouble> {
        let reply = self.send(method, self.url(path)?, body).await?;
        if !reply.is_success() {
            return Err(self.trouble(&reply));
        }
        if reply.status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        reply.expect_json("github")
    }

    /// What a refusal means. GitHub says 403 where it means that there were too many requests.
    fn trouble(&self, reply: &Reply) -> Trouble {
        let trouble = reply.trouble(&format!("github {}", self.call.operation));
        let header = |name: &str| reply.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
        let spent = header("x-ratelimit-remaining") == Some(0);
        if reply.status != StatusCode::FORBIDDEN || !spent && reply.retry_after().is_none() {
            return trouble;
        }
        let now = wall().0 / 1_000;
        let reset = header("x-ratelimit-reset").map(|at| Duration::from_secs(at.saturating_sub(now)));
        let again = reply.retry_after().or(reset).map_or(Again::Soon, Again::After);
        Trouble { again, ..Trouble::not_now(trouble.message) }
    }

    fn number(&self) -> Result<String, Trouble> {
        self.call.number("number").map(|number| number.to_string())
    }

    /// The mark, as it stands in a text.
    fn mark(&self) -> String {
        format!("<!-- {} -->", self.call.mark())
    }

    fn marked(&self, text: &str) -> String {
        format!("{text}\n\n{}", self.mark())
    }

    async fn labels(&self, number: &str) -> Result<BTreeSet<String>, Trouble> {
        let mut url = self.url(&["issues", number, "labels"])?;
        url.query_pairs_mut().append_pair("per_page", "100");
        let reply = self.send(Method::GET, url, None).await?;
        if !reply.is_success() {
            return Err(self.trouble(&reply));
        }
        Ok(label_names(&reply.expect_json("github")?))
    }

    /// Looks through the pages of a list; the inner none is a list that is longer than that.
    async fn search(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Option<Option<Value>>, Trouble> {
        for page in 1..=PAGES_MAX {
            let mut url = self.url(path)?;
            url.query_pairs_mut()
                .extend_pairs(query)
                .append_pair("per_page", &PAGE_LEN.to_string())
                .append_pair("page", &page.to_string());
            let reply = self.send(Method::GET, url, None).await?;
            if !reply.is_success() {
                return Err(self.trouble(&reply));
            }
            let said = reply.expect_json("github")?;
            let items = said.as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(found) = items.iter().find(|item| wanted(item)) {
                return Ok(Some(Some(found.clone())));
            }
            if items.len() < PAGE_LEN {
                return Ok(Some(None));
            }
        }
        Ok(None)
    }
}

fn label_names(said: &Value) -> BTreeSet<String> {
    let items = said.as_array().into_iter().flatten();
    items.filter_map(|label| label["name"].as_str()).map(str::to_owned).collect()
}

pub(super) async fn perform(tools: &Tools, call: &Call, session: &Session) -> Outcome {
    let hub = Hub::new(tools, call, session)?;
    match call.operation.as_str() {
        "comment" => {
            let body = json!({ "body": hub.marked(call.text("body")?) });
            let said = hub.ask(Method::POST, &["issues", &hub.number()?, "comments"], Some(body)).await?;
            Ok(commented(call, &said))
        }
        "delete_comment" => {
            let id = call.number("comment_id")?.to_string();
            let reply = hub.send(Method::DELETE, hub.url(&["issues", "comments", &id])?, None).await?;
            // One that is gone is what was wanted.
            if reply.is_success() || matches!(reply.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                return Ok(Success::of(json!({ "id": call.number("comment_id")? })));
            }
            Err(hub.trouble(&reply))
        }
        "label" => label(&hub).await,
        "status" => {
            let mut body = json!({ "state": call.text("state")? });
            for field in ["context", "description", "target_url"] {
                if let Some(value) = call.maybe(field) {
                    body[field] = json!(value);
                }
            }
            let said = hub.ask(Method::POST, &["statuses", call.text("sha")?], Some(body)).await?;
            Ok(Success::of(json!({ "id": said["id"], "state": said["state"], "context": said["context"] })))
        }
        "create_pr" => {
            let text = hub.marked(call.maybe("body").unwrap_or_default());
            let body = json!({
                "title": call.text("title")?, "head": call.text("head")?, "base": call.text("base")?,
                "body": text, "draft": call.fields.get("draft").and_then(Value::as_bool).unwrap_or(false),
            });
            let said = hub.ask(Method::POST, &["pulls"], Some(body)).await?;
            Ok(opened(call, &said))
        }
        "close_pr" => {
            let body = json!({ "state": "closed" });
            let said = hub.ask(Method::PATCH, &["pulls", &hub.number()?], Some(body)).await?;
            Ok(Success::of(json!({ "number": said["number"], "state": said["state"] })))
        }
        "merge" => {
            let mut body = json!({ "merge_method": call.maybe("method").unwrap_or("merge") });
            for (field, name) in [("sha", "sha"), ("title", "commit_title"), ("message", "commit_message")] {
                if let Some(value) = call.maybe(field) {
                    body[name] = json!(value);
                }
            }
            let said = hub.ask(Method::PUT, &["pulls", &hub.number()?, "merge"], Some(body)).await?;
            Ok(Success::of(json!({ "merged": said["merged"], "sha": said["sha"] })))
        }
        other => Err(Trouble::input(format!("github has no `{other}`"))),
    }
}

fn commented(call: &Call, said: &Value) -> Success {
    let (repo, id) = (call.maybe("repo").unwrap_or_default(), &said["id"]);
    let output = json!({
        "id": id, "url": said["html_url"], "body": said["body"], "updated_at": said["updated_at"]
    });
    let fields = json!({ "repo": repo, "comment_id": id });
    Success::of(output).reversible("github.delete_comment", &format!("{repo}/{id}"), fields)
}

fn opened(call: &Call, said: &Value) -> Success {
    let (repo, number) = (call.maybe("repo").unwrap_or_default(), &said["number"]);
    let output = json!({
        "number": number, "url": said["html_url"], "state": said["state"], "head_sha": said["head"]["sha"]
    });
    let fields = json!({ "repo": repo, "number": number });
    Success::of(output).reversible("github.close_pr", &format!("{repo}/{number}"), fields)
}

/// Adds and takes away labels. What can be taken back is what this call changed, not what stood there before.
async fn label(hub: &Hub<'_>) -> Outcome {
    let (call, number) = (hub.call, hub.number()?);
    let (add, remove) = (call.texts("add"), call.texts("remove"));
    if add.is_empty() && remove.is_empty() {
        return Err(Trouble::input("github.label needs labels to `add` or to `remove`"));
    }
    let before = hub.labels(&number).await.map_err(Trouble::before)?;
    let mut after = before.clone();
    if !add.is_empty() {
        let said =
            hub.ask(Method::POST, &["issues", &number, "labels"], Some(json!({ "labels": add }))).await?;
        after = label_names(&said);
    }
    for name in &remove {
        let reply = hub.send(Method::DELETE, hub.url(&["issues", &number, "labels", name])?, None).await?;
        if !reply.is_success() && reply.status != StatusCode::NOT_FOUND {
            return Err(hub.trouble(&reply));
        }
        after.remove(name);
    }
    let done = Success::of(json!({ "labels": after }));
    let added: Vec<&String> = add.iter().filter(|name| !before.contains(*name)).collect();
    let removed: Vec<&String> = remove.iter().filter(|name| before.contains(*name)).collect();
    // After an earlier try nobody knows which of them it had set, and what it had set is not there to be told apart.
    let nothing = added.is_empty() && removed.is_empty();
    if nothing {
        return Ok(done);
    }
    let fields = json!({ "repo": call.fields.get("repo"), "number": call.number("number")?, "add": removed, "remove": added });
    Ok(done.reversible("github.label", &call.target, fields))
}

pub(super) async fn probe(tools: &Tools, call: &Call, session: &Session) -> Result<Seen, Trouble> {
    let hub = Hub::new(tools, call, session)?;
    let mark = hub.mark();
    let ours = |item: &Value| item["body"].as_str().is_some_and(|body| body.contains(&mark));
    match call.operation.as_str() {
        "comment" => {
            let found = hub.search(&["issues", &hub.number()?, "comments"], &[], ours).await?;
            Ok(seen(found, |item| commented(call, item)))
        }
        "create_pr" => {
            let (repo, head) = (call.text("repo")?, call.text("head")?);
            let owner = repo.split('/').next().unwrap_or_default();
            let head = if head.contains(':') { head.to_owned() } else { format!("{owner}:{head}") };
            let query = [("head", head.as_str()), ("base", call.text("base")?), ("state", "all")];
            Ok(seen(hub.search(&["pulls"], &query, ours).await?, |item| opened(call, item)))
        }
        "merge" => {
            let said = hub.ask(Method::GET, &["pulls", &hub.number()?], None).await?;
            // Another head than the one that was to be merged is somebody else's merge.
            let same = call.maybe("sha").is_none_or(|sha| said["head"]["sha"] == sha);
            Ok(match said["merged"].as_bool() {
                Some(true) if same => {
                    Seen::There(Success::of(json!({ "merged": true, "sha": said["merge_commit_sha"] })))
                }
                Some(true) => Seen::Unsure("another head was merged".to_owned()),
                Some(false) => Seen::Absent,
                None => Seen::Unsure("GitHub does not say whether it is merged".to_owned()),
            })
        }
        _ => Ok(Seen::Unsure(format!("`{}` leaves nothing that could be looked for", call.tool))),
    }
}

fn seen(found: Option<Option<Value>>, success: impl FnOnce(&Value) -> Success) -> Seen {
    match found {
        Some(Some(item)) => Seen::There(success(&item)),
        Some(None) => Seen::Absent,
        None => Seen::Unsure(format!("there are more than {} entries to look through", PAGES_MAX * PAGE_LEN)),
    }
}

pub(super) async fn current(
    tools: &Tools,
    reversal: &Call,
    left: &Value,
    session: &Session,
) -> Result<Current, Trouble> {
    let hub = Hub::new(tools, reversal, session)?;
    let changed = |what: &str| Ok(Current::Changed(what.to_owned()));
    match reversal.operation.as_str() {
        "delete_comment" => {
            let id = reversal.number("comment_id")?.to_string();
            let reply = hub.send(Method::GET, hub.url(&["issues", "comments", &id])?, None).await?;
            if reply.status == StatusCode::NOT_FOUND {
                return changed("the comment is gone");
            }
            match reply.json().filter(|_| reply.is_success()) {
                Some(now) if now["body"] != left["body"] => changed("the comment was changed since"),
                Some(_) => Ok(Current::Unchanged),
                None => Ok(Current::Unknown),
            }
        }
        "close_pr" => {
            let now = hub.ask(Method::GET, &["pulls", &hub.number()?], None).await?;
            match () {
                () if now["merged"] == true => changed("the pull request was merged"),
                () if now["state"] == "closed" => changed("the pull request was closed"),
                () if now["head"]["sha"] != left["head_sha"] => changed("the pull request has newer commits"),
                () => Ok(Current::Unchanged),
            }
        }
        "label" => {
            let now = hub.labels(&hub.number()?).await?;
            let lost = reversal.texts("remove").into_iter().find(|name| !now.contains(name));
            let back = reversal.texts("add").into_iter().find(|name| now.contains(name));
            match (lost, back) {
                (Some(name), _) => changed(&format!("the label `{name}` was taken away since")),
                (None, Some(name)) => changed(&format!("the label `{name}` was put back since")),
                (None, None) => Ok(Current::Unchanged),
            }
        }
        _ => Ok(Current::Unknown),
    }
}
