//! `token`: hands out tokens, lists them, takes them back.

use super::Outcome;
use super::args::TokenVerb;
use super::follow::escape;
use super::say::{self, Say, one_line, plain, text};
use serde_json::json;
use windlass_api::List;
use windlass_api::token::Token;
use windlass_core::code::Code;
use windlass_server::client::{Client, Failure};

/// A span, as it is sent: the server's time counts, not that of this machine.
fn span(text: &str) -> Result<&str, Failure> {
    windlass_runbook::span::parse(text)
        .map_err(|_| Failure::new(Code::InvalidInput, format!("`{text}` is not a duration such as 30d")))?;
    Ok(text)
}

pub(super) async fn token(client: &Client, verb: &TokenVerb, say: &Say) -> Outcome {
    match verb {
        TokenVerb::Create { scopes, tenant, namespace, name, service, groups, expires } => {
            let body = json!({
                "scopes": scopes, "tenant": tenant, "namespace": namespace, "name": name, "service": service,
                "groups": groups, "expires_in": expires.as_deref().map(span).transpose()?,
            });
            let made = client.post("/v1/tokens", &body).await?;
            say.note("this token is shown only once; store it as a secret");
            say.answer(&made, || plain(&made, "token"));
        }
        TokenVerb::List => list(client, say).await?,
        TokenVerb::Revoke { id, reason, yes } => {
            let question = format!("Revoke `{id}`? It is refused from now on.");
            say::sure(*yes, &question, "nothing was revoked", "--yes")?;
            let body = json!({ "reason": reason });
            let revoked = client.post(&format!("/v1/tokens/{}/revoke", escape(id)), &body).await?;
            say.answer(&revoked, || format!("{} is good for nothing any more", text(&revoked, "id")));
        }
    }
    Ok(0)
}

async fn list(client: &Client, say: &Say) -> Result<(), Failure> {
    let page = client.get("/v1/tokens").await?;
    let tokens: List<Token> = say::read(&page)?;
    say.answer(&page, || {
        let head = ["TOKEN", "TENANT", "NAMESPACE", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for token in &tokens.items {
            let name = one_line(token.name.as_str());
            let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
            rows.push(vec![
                token.id.to_string(),
                one_line(token.tenant.as_str()),
                one_line(token.namespace.as_str()),
                if token.human { name } else { format!("{name} (service)") },
                scopes.join(","),
                token.created_at.to_string(),
                say::maybe(token.expires_at),
                say::maybe(token.revoked_at),
            ]);
        }
        if rows.len() == 1 { "no tokens\n".to_owned() } else { say.table(&rows) }
    });
    Ok(())
}
