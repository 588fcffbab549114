//! Tokens: handing them out, listing them, taking them back; and who the caller is.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, invalid, json};
use crate::app::App;
use crate::auth;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json as object};
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::id::{Name, TokenId};
use windlass_core::time::Millis;
use windlass_core::token::{GROUPS_MAX, Input, New, Scope as Allowed, Token};
use windlass_core::turn::command::Command;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_store::shape;

/// Everything about tokens.
pub(super) fn routes() -> Routes {
    let made = doc("Hand out a token; it is shown in this answer alone").body::<Wish>().gives(201, "token");
    let revoked = doc("Take a token back").body::<Reason>().gives(200, "token").refuses(&[Code::NotFound]);
    Routes::new()
        .get("/v1/me", Scope::Known, doc("Say who the caller is").gives(200, "me"), me)
        .get("/v1/tokens", Scope::Admin, doc("List tokens").gives(200, "list token"), list)
        .post("/v1/tokens", Scope::Admin, made.refuses(&[Code::CapExceeded]), create)
        .post("/v1/tokens/{id}/revoke", Scope::Admin, revoked, revoke)
}

async fn me(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let mut groups = caller.groups.clone();
    groups.extend(app.config.groups_of(&caller.user()).into_iter().filter(|_| caller.is_human()));
    let scopes: Vec<&str> = caller.scopes.iter().map(|scope| scope.word()).collect();
    let body = object!({
        "name": caller.user(),
        "human": caller.is_human(),
        "tenant": caller.tenant,
        "namespace": caller.namespace,
        "groups": groups,
        "scopes": scopes,
        "client": caller.client,
    });
    Ok(json(StatusCode::OK, &body))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wish {
    /// What it allows: read, run, approve, execute, admin.
    scopes: Vec<String>,
    /// For which tenant; the caller's own where absent. Only the owner can name another.
    #[serde(default)]
    tenant: Option<String>,
    /// For which namespace; the caller's own where absent. Only the owner can name another.
    #[serde(default)]
    namespace: Option<String>,
    /// For whom it stands; its own id where absent.
    #[serde(default)]
    name: Option<String>,
    /// Whether that is a program and no human. A program decides on no approval.
    #[serde(default)]
    service: bool,
    /// What the bearer belongs to.
    #[serde(default)]
    groups: Vec<String>,
    /// Until when it is good: RFC 3339.
    #[serde(default)]
    expires_at: Option<String>,
    /// How long it is good from now on, such as `30d`: by the server's time, which the caller need not know.
    #[serde(default)]
    expires_in: Option<String>,
}

/// Until when a token is to be good.
fn expiry(wish: &Wish) -> Result<Option<Millis>, Problem> {
    match (&wish.expires_at, &wish.expires_in) {
        (Some(_), Some(_)) => Err(invalid("either `expires_at` or `expires_in`, not both")),
        (Some(at), None) => time(at).map(Some),
        (None, Some(span)) => {
            let span = windlass_runbook::span::parse(span)
                .map_err(|_| invalid("`expires_in` is not a duration such as 30d"))?;
            Ok(Some(System.now() + span))
        }
        (None, None) => Ok(None),
    }
}

/// Where a token is to count: where the caller is, unless everything is the caller's.
fn place(caller: &Caller, wanted: Option<&str>, own: &Name, what: &str) -> Result<Name, Problem> {
    match wanted {
        None => Ok(own.clone()),
        Some(text) if caller.owns || text == own.as_str() => Name::new(text).map_err(invalid),
        Some(_) => {
            let text = format!("only the owner of the installation hands out tokens for another {what}");
            Err(Problem::new(Code::Forbidden, text))
        }
    }
}

fn scopes(caller: &Caller, wanted: &[String]) -> Result<Vec<Allowed>, Problem> {
    let mut scopes = Vec::new();
    for word in wanted.iter().take(Allowed::ALL.len() + 1) {
        let (Some(scope), Some(own)) = (Allowed::parse(word), Scope::parse(word)) else {
            let word = windlass_core::wire::shorten(word);
            return Err(invalid(format!("`{word}` is no scope: read, run, approve, execute or admin")));
        };
        if !caller.may(own) {
            let text = format!("nobody hands out what they do not have: the scope `{word}`");
            return Err(Problem::new(Code::Forbidden, text));
        }
        scopes.push(scope);
    }
    Ok(scopes)
}

fn time(text: &str) -> Result<Millis, Problem> {
    let stamp: jiff::Timestamp = text.parse().map_err(|error| invalid(format!("`expires_at`: {error}")))?;
    Ok(Millis(u64::try_from(stamp.as_millisecond()).unwrap_or(0)))
}

/// For whom a token stands. Names come from the owner; what somebody else makes bears the maker's name in front, so that
/// whatever is asked for with it counts as asked for by the maker.
fn name(caller: &Caller, wish: &Wish, id: TokenId) -> Result<Name, Problem> {
    let given = match &wish.name {
        Some(name) => Name::new(name).map_err(invalid)?,
        None => Name::clean(&id.to_string()),
    };
    if caller.owns { Ok(given) } else { Name::new(&format!("{}/{given}", caller.user())).map_err(invalid) }
}

async fn create(State(app): State<Arc<App>>, caller: Caller, Json(wish): Json<Wish>) -> Answer {
    let tenant = place(&caller, wish.tenant.as_deref(), &caller.tenant, "tenant")?;
    let namespace = place(&caller, wish.namespace.as_deref(), &caller.namespace, "namespace")?;
    let id = TokenId(app.id());
    let secret = auth::fresh_token().map_err(|error| Problem::new(Code::Unavailable, error.to_string()))?;
    let groups = wish.groups.iter().map(|group| Name::new(group).map_err(invalid));
    let new = New {
        id,
        hash: auth::hash_of(&secret),
        namespace,
        name: name(&caller, &wish, id)?,
        // What somebody else than the owner hands out is for a program, said or not.
        human: caller.owns && !wish.service,
        groups: groups.collect::<Result<_, _>>()?,
        scopes: scopes(&caller, &wish.scopes)?,
        expires_at: expiry(&wish)?,
    };
    if !caller.owns && new.groups.len() <= GROUPS_MAX {
        let decides = !wish.service && new.scopes.contains(&Allowed::Approve);
        if decides || !new.groups.is_empty() {
            let text = "only the owner of the installation says who is a human that decides, and who is in which group: \
                        with `service`, and without groups, this makes a token for a program";
            return Err(Problem::new(Code::Forbidden, text));
        }
    }
    let input = Input::Create(Box::new(new));
    let mut shown = change(&app, &caller, tenant, id, input).await?;
    shown["token"] = Value::String(secret);
    Ok(json(StatusCode::CREATED, &shown))
}

/// Records something about a token and answers with it. Whatever became of it, the table is that of the records again.
async fn change(
    app: &Arc<App>,
    caller: &Caller,
    tenant: Name,
    id: TokenId,
    input: Input,
) -> Result<Value, Problem> {
    let asked = app.ask(caller, Command::Token { tenant, input }).await;
    let tokens = app.tokens.clone();
    let found = app
        .look(move |store| {
            tokens.learn(store.state());
            auth::every(store.state())
                .find(|(_, token)| token.id == id)
                .map(|(tenant, token)| show(&tenant, token))
        })
        .await?;
    asked?;
    found.ok_or_else(|| Problem::missing("token", &id.to_string()))
}

fn show(tenant: &Name, token: &Token) -> Value {
    let mut shown = object!({
        "id": token.id,
        "tenant": tenant,
        "namespace": token.namespace,
        "name": token.name,
        "human": token.human,
        "groups": token.groups,
        "scopes": token.scopes,
        "created_by": token.created_by,
        "created_at": shape::time(token.created_at),
    });
    for (key, at) in [("expires_at", token.expires_at), ("revoked_at", token.revoked_at)] {
        if let Some(at) = at {
            shown[key] = Value::String(shape::time(at));
        }
    }
    shown
}

/// Whether a token is the caller's to see.
fn is_mine(caller: &Caller, tenant: &Name, token: &Token) -> bool {
    caller.owns || *tenant == caller.tenant && token.namespace == caller.namespace
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let mine = auth::every(store.state()).filter(|(tenant, token)| is_mine(&caller, tenant, token));
            mine.map(|(tenant, token)| show(&tenant, token)).collect()
        })
        .await?;
    Ok(json(StatusCode::OK, &shape::list(items, None)))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reason {
    #[serde(default)]
    reason: Option<String>,
}

async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(text): Path<String>,
    Json(body): Json<Reason>,
) -> Answer {
    let (who, wanted) = (caller.clone(), text.clone());
    let found: Vec<(Name, TokenId)> = app
        .look(move |store| {
            let mine = auth::every(store.state()).filter(|(tenant, token)| is_mine(&who, tenant, token));
            let meant = mine.filter(|(_, token)| auth::begins(token.id, &wanted));
            meant.map(|(tenant, token)| (tenant, token.id)).take(2).collect()
        })
        .await?;
    match found.as_slice() {
        [] => Err(Problem::missing("token", &text)),
        [(tenant, id)] => {
            let input = Input::Revoke { token: *id, reason: body.reason };
            Ok(json(StatusCode::OK, &change(&app, &caller, tenant.clone(), *id, input).await?))
        }
        [_, _, ..] => Err(invalid("that begins several ids; write more of it")),
    }
}
