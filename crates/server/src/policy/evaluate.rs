//! Evaluates the rules: one question, one decision. Anything but a clear yes is a no.
//!
//! Cedar skips a rule that fails while it is evaluated, and a `forbid` that is skipped does not forbid. So any such failure
//! is a no here. Rules that ask humans are kept apart from the others: the plain ones say whether the action would be
//! permitted once everybody has agreed, the asking ones who has to. Each rule is evaluated once.

use super::demand::Demand;
use super::question::Question;
use super::rules::{Bearing, Rules};
use super::schema::{self, Type};
use cedar_policy::{
    Authorizer, Context, Decision as Answer, Entities, Entity, EntityId, EntityUid, PolicyId, Request,
    Response, RestrictedExpression as Expr,
};
use serde_json::Value;
use std::collections::BTreeMap;
use windlass_core::policy::{Decision, Outcome, REASONS_MAX, Verdict};
use windlass_core::time::Millis;

/// The most values of an action that policy is shown. One with more is refused.
pub const VALUES_MAX: usize = 1_024;
/// How deep an action's values are looked into.
const DEPTH_MAX: usize = 32;
/// The most bytes of a value in a reason.
const SHOWN_MAX: usize = 200;

impl Rules {
    /// What the rules say. The question's own answer where they cannot: no, and why.
    #[must_use]
    pub fn decide(&self, question: &Question) -> Decision {
        match self.ask(question) {
            Ok(decision) => decision,
            Err(message) => Outcome::Error(message).settle(&question.asked(self.version)),
        }
    }

    fn ask(&self, question: &Question) -> Result<Decision, String> {
        let action = uid(&self.types.action, question.action_name());
        let bearing = self.bearing(&action)?;
        let entities = self.entities(question, &bearing)?;
        let request = self.request(question, action)?;
        let authorizer = Authorizer::new();
        let plain = sound(authorizer.is_authorized(&request, &bearing.plain, &entities))?;
        if plain.decision() == Answer::Deny {
            let rules = names(self, &plain);
            let reasons = match rules.is_empty() {
                true => vec![nothing_permits(question)],
                false => reasons(self, &plain, "is forbidden"),
            };
            return Ok(decision(self, question, Verdict::Deny, rules, reasons));
        }
        let asking = sound(authorizer.is_authorized(&request, &bearing.asking, &entities))?;
        let rules = names(self, &asking);
        if rules.is_empty() {
            let reasons = reasons(self, &plain, "is permitted");
            return Ok(decision(self, question, Verdict::Allow, names(self, &plain), reasons));
        }
        let mut demand = Demand::default();
        for rule in sorted(&asking).into_iter().filter_map(|id| self.rule(id)) {
            let Some(next) = &rule.demand else { continue };
            demand = demand.and(next).map_err(|_| {
                format!(
                    "the rules {} each ask for other approvers, and nobody is named by all of them",
                    rules.join(", ")
                )
            })?;
        }
        let reasons = reasons(self, &asking, "needs approval");
        let base = decision(self, question, Verdict::NeedsApproval, rules, reasons);
        Ok(Decision {
            tier: demand.tier,
            count: Some(demand.count),
            two_person: Some(demand.two_person),
            approvers: Some(demand.approvers),
            expires: demand.expires,
            ..base
        })
    }

    /// The target with every value of the action as a tag, and the action with its groups.
    fn entities(&self, question: &Question, bearing: &Bearing) -> Result<Entities, String> {
        let mut tags = BTreeMap::new();
        if let Some(action) = &question.action {
            flatten(&action.fields, &mut String::new(), 0, &mut tags)?;
        }
        let tags = tags.into_iter().map(|(path, text)| (path, Expr::new_string(text)));
        let target = Entity::new_with_tags(self.target(question), [], [], tags);
        let target = target.map_err(|error| error.to_string())?;
        Entities::from_entities([target, bearing.action.clone()], None).map_err(|error| error.to_string())
    }

    fn target(&self, question: &Question) -> EntityUid {
        uid(&self.types.target, target_of(question))
    }

    fn request(&self, question: &Question, action: EntityUid) -> Result<Request, String> {
        let about = &question.about;
        let principal = match (&about.requester, about.parent) {
            (Some(user), _) => uid(&self.types.user, user.as_str()),
            (None, Some(parent)) => uid(&self.types.run, &parent.to_string()),
            (None, None) => uid(&self.types.service, about.source.as_str()),
        };
        let context = Context::from_pairs(self.context(question)?).map_err(|error| error.to_string())?;
        Request::new(principal, action, self.target(question), context, Some(&self.schema))
            .map_err(|error| format!("the action does not fit the schema: {error}"))
    }

    fn context(&self, question: &Question) -> Result<Vec<(String, Expr)>, String> {
        let about = &question.about;
        let approvers = question.approvers(&self.version);
        let text = |text: &str| Expr::new_string(text.to_owned());
        let operation = question.action.as_ref().map_or("run", |action| action.operation.as_str());
        let step = question.step.as_ref().map_or("", |step| step.as_str());
        let pairs = [
            ("tool", text(question.tool.as_str())),
            ("operation", text(operation)),
            ("target", text(target_of(question))),
            ("risk", text(question.risk().as_str())),
            ("writes", Expr::new_bool(question.writes)),
            ("tenant", text(about.tenant.as_str())),
            ("namespace", text(about.namespace.as_str())),
            ("pipeline", text(about.pipeline.as_str())),
            ("undoes", Expr::new_set(about.undoes.iter().map(|pipeline| text(pipeline.as_str())))),
            ("runbook", text(about.runbook.as_str())),
            ("runbook_hash", Expr::new_string(about.runbook_hash.to_string())),
            ("run", Expr::new_string(question.run.to_string())),
            ("step", text(step)),
            ("requester", text(about.requester.as_ref().map_or("", |user| user.as_str()))),
            ("source", text(about.source.as_str())),
            ("approvals", long(approvers.len() as u64)),
            ("approvers", Expr::new_set(approvers.iter().map(|name| text(name.as_str())))),
            ("time", time(about.at)?),
            ("budget", budget(question)?),
            ("fields", fields(question)?),
        ];
        Ok(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

/// What it is done to. What is decided once for a run has only the tool's name.
fn target_of(question: &Question) -> &str {
    question.action.as_ref().map_or(question.tool.as_str(), |action| action.target.as_str())
}

fn uid(kind: &cedar_policy::EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// A number as Cedar has it. What is larger stays the largest, and so exceeds every limit.
fn long(number: u64) -> Expr {
    Expr::new_long(i64::try_from(number).unwrap_or(i64::MAX))
}

fn record<const N: usize>(pairs: [(&str, Expr); N]) -> Result<Expr, String> {
    let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value));
    Expr::new_record(pairs).map_err(|error| error.to_string())
}

fn time(at: Millis) -> Result<Expr, String> {
    let millis = i64::try_from(at.0).map_err(|_| "the time is beyond all calendars".to_owned())?;
    let stamp = jiff::Timestamp::from_millisecond(millis).map_err(|error| error.to_string())?;
    let zoned = stamp.to_zoned(jiff::tz::TimeZone::UTC);
    let weekday = match zoned.weekday() {
        jiff::civil::Weekday::Monday => "monday",
        jiff::civil::Weekday::Tuesday => "tuesday",
        jiff::civil::Weekday::Wednesday => "wednesday",
        jiff::civil::Weekday::Thursday => "thursday",
        jiff::civil::Weekday::Friday => "friday",
        jiff::civil::Weekday::Saturday => "saturday",
        jiff::civil::Weekday::Sunday => "sunday",
    };
    record([
        ("hour", Expr::new_long(i64::from(zoned.hour()))),
        ("minute", Expr::new_long(i64::from(zoned.minute()))),
        ("weekday", Expr::new_string(weekday.to_owned())),
        ("date", Expr::new_string(zoned.date().to_string())),
        ("at_ms", Expr::new_long(millis)),
    ])
}

fn budget(question: &Question) -> Result<Expr, String> {
    let spent = &question.about.spent;
    record([
        ("usd_micros", long(spent.usd_micros)),
        ("tokens", long(spent.tokens)),
        ("time_ms", long(spent.time_ms)),
        ("writes", long(spent.writes)),
    ])
}

/// The fields whose types are known.
fn fields(question: &Question) -> Result<Expr, String> {
    let mut pairs = Vec::new();
    if let Some(action) = &question.action {
        for field in schema::fields(question.tool.as_str()) {
            let Some(value) = action.fields.get(field.name).filter(|value| !value.is_null()) else {
                continue;
            };
            let wrong = |what: &str| format!("the field `{}` is not {what}", field.name);
            let value = match field.kind {
                Type::Text => Expr::new_string(shown(value)),
                Type::Bool => Expr::new_bool(value.as_bool().ok_or_else(|| wrong("true or false"))?),
                Type::Long => Expr::new_long(value.as_i64().ok_or_else(|| wrong("a whole number"))?),
                Type::Texts => match value {
                    Value::Array(list) if list.len() > VALUES_MAX => {
                        return Err(wrong("a list that policy can look at: it is too long"));
                    }
                    Value::Array(list) => Expr::new_set(list.iter().map(|v| Expr::new_string(shown(v)))),
                    one => Expr::new_set([Expr::new_string(shown(one))]),
                },
            };
            pairs.push((field.name.to_owned(), value));
        }
    }
    Expr::new_record(pairs).map_err(|error| error.to_string())
}

/// A value as text: a secret by its name, a text as it is, everything else as JSON.
fn shown(value: &Value) -> String {
    match (value, secret(value)) {
        (_, Some(name)) => format!("${{{{ secrets.{name} }}}}"),
        (Value::String(text), None) => text.clone(),
        (other, None) => other.to_string(),
    }
}

fn secret(value: &Value) -> Option<&str> {
    value.as_object().filter(|map| map.len() == 1)?.get("$secret")?.as_str()
}

/// Every value under its path, `fields.state` or `labels.0`.
fn flatten(
    value: &Value,
    path: &mut String,
    depth: usize,
    out: &mut BTreeMap<String, String>,
) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("the action is more than {DEPTH_MAX} levels deep"));
    }
    let len = path.len();
    let mut inside = |key: &str, value: &Value, path: &mut String| {
        if len > 0 {
            path.push('.');
        }
        path.push_str(key);
        let done = flatten(value, path, depth + 1, out);
        path.truncate(len);
        done
    };
    match value {
        Value::Object(map) if secret(value).is_none() => {
            map.iter().try_for_each(|(key, value)| inside(key, value, path))
        }
        Value::Array(list) => {
            let mut numbered = list.iter().enumerate();
            numbered.try_for_each(|(at, value)| inside(&at.to_string(), value, path))
        }
        Value::Null => Ok(()),
        Value::Object(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            if out.len() >= VALUES_MAX {
                return Err(format!("the action has more than {VALUES_MAX} values"));
            }
            // Two paths can read alike, `a.b` in one map and `b` in a map `a`. Policy must not be shown one for the
            // other.
            match out.insert(path.clone(), shown(value)) {
                Some(_) => Err(format!("the action has two values at `{path}`")),
                None => Ok(()),
            }
        }
    }
}

/// The answer, unless a rule failed on the way to it.
fn sound(response: Response) -> Result<Response, String> {
    let failed = response.diagnostics().errors().next().map(ToString::to_string);
    failed.map_or(Ok(response), Err)
}

/// The rules that led to an answer, always in the same order.
fn sorted(response: &Response) -> Vec<&PolicyId> {
    let mut ids: Vec<&PolicyId> = response.diagnostics().reason().collect();
    ids.sort();
    ids.truncate(REASONS_MAX);
    ids
}

fn names(rules: &Rules, response: &Response) -> Vec<String> {
    let name = |id: &PolicyId| rules.rule(id).map_or_else(|| id.to_string(), |rule| rule.name.clone());
    sorted(response).into_iter().map(name).collect()
}

fn reasons(rules: &Rules, response: &Response, otherwise: &str) -> Vec<String> {
    let say = |id: &PolicyId| match rules.rule(id) {
        Some(rule) => rule.reason.clone().unwrap_or_else(|| format!("it {otherwise} by {}", rule.name)),
        None => format!("it {otherwise} by {id}"),
    };
    sorted(response).into_iter().map(say).collect()
}

fn nothing_permits(question: &Question) -> String {
    let target = target_of(question);
    let end = target.floor_char_boundary(SHOWN_MAX);
    format!("no rule permits `{}` on `{}`", question.tool, &target[..end])
}

fn decision(
    rules: &Rules,
    question: &Question,
    verdict: Verdict,
    names: Vec<String>,
    reasons: Vec<String>,
) -> Decision {
    let asked = question.asked(rules.version);
    Decision {
        verdict,
        policy_version: rules.version,
        action_hash: asked.action_hash,
        approvals: asked.approvals,
        rules: names,
        reasons,
        risk: asked.risk,
        tier: None,
        count: None,
        two_person: None,
        approvers: None,
        expires: None,
    }
}
