//! Tokens: handing them out, listing them, taking them back; and who the caller is.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, invalid, json};
use crate::app::App;
use crate::auth;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::List;
use windlass_api::token::{Me, New as NewToken, Revoke, Token as Shown};
use windlass_core::code::Code;
use windlass_core::id::{Name, TokenId};
use windlass_core::time::Millis;
use windlass_core::token::{GROUPS_MAX, Input, New, Scope as Allowed, Token};
use windlass_core::turn::command::Command;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;

/// Everything about tokens.
pub(super) fn routes() -> Routes {
    let made =
        doc("Hand out a token; it is shown in this answer alone").body::<NewToken>().gives(201, "token");
    let revoked = doc("Take a token back").body::<Revoke>().gives(200, "token").refuses(&[Code::NotFound]);
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
    let body = Me {
        name: caller.user(),
        human: caller.is_human(),
        tenant: caller.tenant,
        namespace: caller.namespace,
        groups,
        scopes: scopes.into_iter().map(str::to_owned).collect(),
        client: caller.client,
    };
    Ok(json(StatusCode::OK, &body))
}

/// Until when a token is to be good.
fn expiry(wish: &NewToken) -> Result<Option<Millis>, Problem> {
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
fn name(caller: &Caller, wish: &NewToken, id: TokenId) -> Result<Name, Problem> {
    let given = match &wish.name {
        Some(name) => Name::new(name).map_err(invalid)?,
        None => Name::clean(&id.to_string()),
    };
    if caller.owns { Ok(given) } else { Name::new(&format!("{}/{given}", caller.user())).map_err(invalid) }
}

async fn create(State(app): State<Arc<App>>, caller: Caller, Json(wish): Json<NewToken>) -> Answer {
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
    shown.token = Some(secret);
    Ok(json(StatusCode::CREATED, &shown))
}

/// Records something about a token and answers with it. Whatever became of it, the table is that of the records again.
async fn change(
    app: &Arc<App>,
    caller: &Caller,
    tenant: Name,
    id: TokenId,
    input: Input,
) -> Result<Shown, Problem> {
    let asked = app.ask(caller, Command::Token { tenant, input }).await;
    let tokens = app.tokens.clone();
    let found = app
        .look(move |store| {
            tokens.learn(store.state());
            auth::every(store.state())
                .find(|(_, token)| token.id == id)
                .map(|(tenant, token)| Shown::of(&tenant, token))
        })
        .await?;
    asked?;
    found.ok_or_else(|| Problem::missing("token", &id.to_string()))
}

/// Whether a token is the caller's to see.
fn is_mine(caller: &Caller, tenant: &Name, token: &Token) -> bool {
    caller.owns || *tenant == caller.tenant && token.namespace == caller.namespace
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let mine = auth::every(store.state()).filter(|(tenant, token)| is_mine(&caller, tenant, token));
            mine.map(|(tenant, token)| Shown::of(&tenant, token)).collect::<Vec<_>>()
        })
        .await?;
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(text): Path<String>,
    Json(body): Json<Revoke>,
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
