//! `servicenow.*`: records of an instance, by the Table API.
//!
//! What is created carries a mark of its key as `correlation_id`, and a note carries it at its end, so both can be found
//! again. An update is read before, so that the old values can be put back.

use super::session::Session;
use super::wire::{Ask, Reply};
use super::{Call, Current, OUTPUT_LEN_MAX, Outcome, Seen, Success, Tools, Trouble};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde_json::{Map, Value, json};

/// How many records a step gets where it does not say.
const LIMIT: u64 = 10;
/// Fields that no record gives back as they were set: what is written there is added to a journal.
const JOURNALS: &[&str] = &["work_notes", "comments", "comments_and_work_notes"];

struct Instance<'a> {
    tools: &'a Tools,
    call: &'a Call,
    session: &'a Session,
    table: String,
}

impl<'a> Instance<'a> {
    fn new(tools: &'a Tools, call: &'a Call, session: &'a Session) -> Result<Instance<'a>, Trouble> {
        let table = call.text("table")?;
        if !table.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(Trouble::input(format!("`{table}` is not the name of a table")));
        }
        Ok(Instance { tools, call, session, table: table.to_owned() })
    }

    fn url(&self, table: &str, sys_id: Option<&str>) -> Result<Url, Trouble> {
        let nowhere =
            || Trouble::refused("no ServiceNow instance is configured: set WINDLASS_SERVICENOW_URL");
        let base = self.tools.settings.servicenow_url.as_deref().ok_or_else(nowhere)?;
        let mut url: Url = base.parse().map_err(|_| nowhere())?;
        url.path_segments_mut()
            .map_err(|()| nowhere())?
            .extend(["api", "now", "table", table])
            .extend(sys_id);
        Ok(url)
    }

    fn sys_id(&self) -> Result<&str, Trouble> {
        let id = self.call.text("sys_id")?;
        if id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(Trouble::input(format!("`{id}` is not the id of a record")));
        }
        Ok(id)
    }

    /// Who asks: a token, or a user with a password.
    fn authorization(&self) -> Result<HeaderValue, Trouble> {
        let text = match self.call.fields.get("token") {
            Some(token) => format!("Bearer {}", token.as_str().unwrap_or_default()),
            None => match self.session.credential("SERVICENOW_TOKEN", &["WINDLASS_SERVICENOW_TOKEN"]) {
                Ok(token) => format!("Bearer {token}"),
                Err(missing) => {
                    let user = self.session.credential("SERVICENOW_USER", &["WINDLASS_SERVICENOW_USER"]);
                    let password =
                        self.session.credential("SERVICENOW_PASSWORD", &["WINDLASS_SERVICENOW_PASSWORD"]);
                    let (Ok(user), Ok(password)) = (user, password) else { return Err(missing) };
                    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
                }
            },
        };
        HeaderValue::from_str(&text)
            .map_err(|_| Trouble::input("the credentials of ServiceNow cannot be sent"))
    }

    async fn send(&self, method: Method, url: Url, body: Option<Value>) -> Result<Reply, Trouble> {
        let mut ask = Ask::to_service(method, url, self.call.timeout);
        ask.headers.insert(AUTHORIZATION, self.authorization()?);
        ask.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(body) = body {
            ask.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            ask.body = Some(body.to_string().into_bytes());
        }
        self.tools.wire.send(&self.call.leave, ask).await
    }

    fn result(&self, reply: &Reply) -> Result<Value, Trouble> {
        if !reply.is_success() {
            return Err(reply.trouble(&format!("servicenow {}", self.call.operation)));
        }
        Ok(reply.expect_json("servicenow")?["result"].take())
    }

    /// A record with these fields; none where it is not there.
    async fn record(&self, sys_id: &str, fields: &[&str]) -> Result<Option<Value>, Trouble> {
        let mut url = self.url(&self.table, Some(sys_id))?;
        url.query_pairs_mut().append_pair("sysparm_fields", &fields.join(","));
        let reply = self.send(Method::GET, url, None).await?;
        if reply.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.result(&reply).map(Some)
    }

    async fn find(&self, table: &str, query: &str, limit: u64) -> Result<Vec<Value>, Trouble> {
        let mut url = self.url(table, None)?;
        url.query_pairs_mut()
            .append_pair("sysparm_query", query)
            .append_pair("sysparm_limit", &limit.to_string());
        match self.result(&self.send(Method::GET, url, None).await?)? {
            Value::Array(items) => Ok(items),
            other => Ok(vec![other]),
        }
    }

    fn target(&self, sys_id: &str) -> String {
        format!("{}/{sys_id}", self.table)
    }

    /// What is to be set.
    fn fields(&self) -> Result<Map<String, Value>, Trouble> {
        let fields = match self.call.operation.as_str() {
            "assign" => {
                let pairs = [("assignment_group", "group"), ("assigned_to", "user")];
                let given =
                    pairs.iter().filter_map(|(field, from)| Some((*field, self.call.fields.get(*from)?)));
                given.map(|(field, value)| (field.to_owned(), value.clone())).collect()
            }
            "work_note" => {
                let note = format!("{}\n[{}]", self.call.text("text")?, self.call.mark());
                Map::from_iter([("work_notes".to_owned(), Value::String(note))])
            }
            _ => self.call.fields.get("fields").and_then(Value::as_object).cloned().unwrap_or_default(),
        };
        if fields.is_empty() {
            return Err(Trouble::input(format!("{} has nothing to set", self.call.tool)));
        }
        Ok(fields)
    }
}

pub(super) async fn perform(tools: &Tools, call: &Call, session: &Session) -> Outcome {
    let instance = Instance::new(tools, call, session)?;
    match call.operation.as_str() {
        "get" => get(&instance).await,
        "create" => {
            let mut fields = instance.fields()?;
            // A correlation that the runbook sets is its own; then the record cannot be found by ours.
            fields.entry("correlation_id").or_insert_with(|| Value::String(call.mark()));
            let url = instance.url(&instance.table, None)?;
            let reply = instance.send(Method::POST, url, Some(Value::Object(fields))).await?;
            Ok(created(&instance, &instance.result(&reply)?))
        }
        "update" | "assign" => update(&instance).await,
        "work_note" => {
            let sys_id = instance.sys_id()?;
            let url = instance.url(&instance.table, Some(sys_id))?;
            let body = Value::Object(instance.fields()?);
            instance.result(&instance.send(Method::PATCH, url, Some(body)).await?)?;
            Ok(Success::of(json!({ "table": instance.table, "sys_id": sys_id })))
        }
        "delete" => {
            let sys_id = instance.sys_id()?;
            let reply =
                instance.send(Method::DELETE, instance.url(&instance.table, Some(sys_id))?, None).await?;
            // One that is gone is what was wanted.
            if reply.is_success() || reply.status == StatusCode::NOT_FOUND {
                return Ok(Success::of(json!({ "table": instance.table, "sys_id": sys_id })));
            }
            Err(reply.trouble("servicenow delete"))
        }
        other => Err(Trouble::input(format!("servicenow has no `{other}`"))),
    }
}

async fn get(instance: &Instance<'_>) -> Outcome {
    let call = instance.call;
    let mut url = match call.maybe("sys_id") {
        Some(_) => instance.url(&instance.table, Some(instance.sys_id()?))?,
        None => instance.url(&instance.table, None)?,
    };
    {
        let mut pairs = url.query_pairs_mut();
        let fields = call.texts("fields");
        if !fields.is_empty() {
            pairs.append_pair("sysparm_fields", &fields.join(","));
        }
        if call.maybe("sys_id").is_none() {
            pairs.append_pair("sysparm_query", call.maybe("query").unwrap_or_default());
            let limit = call.number("limit").unwrap_or(LIMIT);
            pairs.append_pair("sysparm_limit", &limit.to_string());
        }
    }
    let result = instance.result(&instance.send(Method::GET, url, None).await?)?;
    if result.to_string().len() > OUTPUT_LEN_MAX {
        let message =
            format!("the records have more than {OUTPUT_LEN_MAX} bytes; name the `fields` you need");
        return Err(Trouble::refused(message));
    }
    Ok(Success::of(match result {
        Value::Array(records) => json!({ "records": records }),
        record => json!({ "record": record }),
    }))
}

fn created(instance: &Instance<'_>, record: &Value) -> Success {
    let sys_id = record["sys_id"].as_str().unwrap_or_default();
    let output = json!({
        "table": instance.table, "sys_id": sys_id, "number": record["number"], "sys_mod_count": record["sys_mod_count"]
    });
    let fields = json!({ "table": instance.table, "sys_id": sys_id });
    Success::of(output).reversible("servicenow.delete", &instance.target(sys_id), fields)
}

/// Sets fields, and keeps what they were so that it can be put back.
async fn update(instance: &Instance<'_>) -> Outcome {
    let (sys_id, fields) = (instance.sys_id()?, instance.fields()?);
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    let before = instance.record(sys_id, &names).await.map_err(Trouble::before)?;
    let Some(before) = before else {
        return Err(Trouble::refused(format!("there is no record {}", instance.target(sys_id))));
    };
    let url = instance.url(&instance.table, Some(sys_id))?;
    let reply = instance.send(Method::PATCH, url, Some(Value::Object(fields.clone()))).await?;
    let after = instance.result(&reply)?;
    let set: Map<String, Value> = fields.keys().map(|key| (key.clone(), after[key].clone())).collect();
    let done = Success::of(json!({ "table": instance.table, "sys_id": sys_id, "fields": set }));
    let plain = |key: &&String| !JOURNALS.contains(&key.as_str());
    let old: Map<String, Value> =
        fields.keys().filter(plain).map(|key| (key.clone(), flat(&before[key]))).collect();
    // An earlier try that came through leaves nothing of what was there before it.
    let overtaken = instance.call.attempt > 1
        && fields.keys().filter(plain).all(|key| flat(&before[key]) == flat(&fields[key]));
    if old.is_empty() || overtaken {
        return Ok(done);
    }
    let undo = json!({ "table": instance.table, "sys_id": sys_id, "fields": old });
    Ok(done.reversible("servicenow.update", &instance.target(sys_id), undo))
}

/// A field as it is set: a reference is shown as an object and set by its value.
fn flat(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.get("value").cloned().unwrap_or(Value::Null),
        Value::Null => Value::String(String::new()),
        other => other.clone(),
    }
}

pub(super) async fn probe(tools: &Tools, call: &Call, session: &Session) -> Result<Seen, Trouble> {
    let instance = Instance::new(tools, call, session)?;
    match call.operation.as_str() {
        "create" if call.fields.get("fields").is_none_or(|fields| fields.get("correlation_id").is_none()) => {
            let found = instance.find(&instance.table, &format!("correlation_id={}", call.mark()), 2).await?;
            Ok(match found.as_slice() {
                [] => Seen::Absent,
                [record, ..] => Seen::There(created(&instance, record)),
            })
        }
        "work_note" => {
            let sys_id = instance.sys_id()?;
            let query = format!("element_id={sys_id}^element=work_notes^valueLIKE{}", call.mark());
            let found = instance.find("sys_journal_field", &query, 1).await?;
            Ok(if found.is_empty() {
                Seen::Absent
            } else {
                Seen::There(Success::of(json!({ "table": instance.table, "sys_id": sys_id })))
            })
        }
        _ => Ok(Seen::Unsure(format!("`{}` leaves nothing that could be looked for", call.tool))),
    }
}

pub(super) async fn current(
    tools: &Tools,
    reversal: &Call,
    left: &Value,
    session: &Session,
) -> Result<Current, Trouble> {
    let instance = Instance::new(tools, reversal, session)?;
    let sys_id = instance.sys_id()?;
    let changed = |what: String| Ok(Current::Changed(what));
    match reversal.operation.as_str() {
        "update" => {
            let empty = Map::new();
            let set = left["fields"].as_object().unwrap_or(&empty);
            let names: Vec<&str> = set.keys().map(String::as_str).collect();
            let Some(now) = instance.record(sys_id, &names).await? else {
                return changed("the record is gone".to_owned());
            };
            let moved = set.iter().find(|(key, value)| {
                !JOURNALS.contains(&key.as_str()) && flat(&now[key.as_str()]) != flat(value)
            });
            match moved {
                Some((key, _)) => changed(format!("`{key}` was changed since")),
                None => Ok(Current::Unchanged),
            }
        }
        "delete" => match instance.record(sys_id, &["sys_mod_count"]).await? {
            None => changed("the record is gone".to_owned()),
            Some(now) if now["sys_mod_count"] != left["sys_mod_count"] => {
                changed("the record was changed since".to_owned())
            }
            Some(_) => Ok(Current::Unchanged),
        },
        _ => Ok(Current::Unknown),
    }
}

/// Base64, for the one header that needs it.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |group: u32, n: u32| char::from(DIGITS[(group >> (18 - 6 * n) & 63) as usize]);
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            out.push(if (n as usize) <= chunk.len() { digit(group, n) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_that_of_the_standard() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(super::base64(plain.as_bytes()), coded);
        }
    }
}
