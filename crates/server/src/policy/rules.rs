//! Rules: policy files that were read and validated.
//!
//! Anything that a reader could misunderstand is refused. A rule has the annotations `@id`, `@reason` and `@approval` and no
//! others. `@approval` stands on a `forbid` that ends in `unless { context.approvals >= N }`, so what the annotation says
//! and what the rule does cannot drift apart, and `context.approvals` stands nowhere else. Errors and warnings
//! of Cedar's strict validation are refused too.

use super::demand::Demand;
use super::{folder, schema};
use cedar_policy::ffi::DetailedError;
use cedar_policy::{
    ActionConstraint, Effect, Entities, Entity, EntityTypeName, EntityUid, Policy, PolicyId, PolicySet,
    Schema, ValidationMode, Validator,
};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};
use windlass_core::approval::COUNT_MAX;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_runbook::problem::{Notes, Place, Problem, Problems, Source, did_you_mean, suggest};

/// The most rules in a folder.
pub const RULES_MAX: usize = 2_000;
/// The most bytes of `@id` and of `@reason`.
const TEXT_LEN_MAX: usize = 512;
/// How deep brackets may stand within each other, and how many prefixes or conditions may follow each other: Cedar reads
/// them by calling itself.
const DEPTH_MAX: usize = 64;
/// How many operators one rule may have: Cedar reads a chain of them by calling itself as well.
pub const CHAIN_MAX: usize = 160;
/// The stack on which policies are read. Only what is used of it takes memory.
const STACK: usize = 64 << 20;
const ANNOTATIONS: [&str; 3] = ["id", "reason", "approval"];

/// What is known about a rule beside its text.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its `@id`, or the file and line where it stands.
    pub name: String,
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// Whether it forbids.
    pub forbids: bool,
    /// What it says to people.
    pub reason: Option<String>,
    /// What it asks of humans.
    pub demand: Option<Demand>,
}

/// Rules that can be asked.
#[derive(Debug)]
pub struct Rules {
    /// The hash of what was read.
    pub version: Digest,
    /// What was read.
    pub sources: Vec<Source>,
    /// What is known about each.
    pub rules: HashMap<PolicyId, Rule>,
    pub(super) schema: Schema,
    /// The actions with their groups.
    actions: Entities,
    /// What permits, and what forbids for good.
    plain: PolicySet,
    /// What forbids until humans have agreed.
    asking: PolicySet,
    /// What of them can bear on an action, from the first question about it.
    bearing: Mutex<HashMap<EntityUid, Arc<Bearing>>>,
    pub(super) types: Types,
}

/// What can bear on an action. A rule whose head names other actions is false whatever else it says.
#[derive(Debug)]
pub(super) struct Bearing {
    /// The action with its groups.
    pub(super) action: Entity,
    pub(super) plain: PolicySet,
    pub(super) asking: PolicySet,
}

/// The names of types, parsed once.
#[derive(Debug)]
pub(super) struct Types {
    pub(super) user: EntityTypeName,
    pub(super) service: EntityTypeName,
    pub(super) run: EntityTypeName,
    pub(super) target: EntityTypeName,
    pub(super) action: EntityTypeName,
}

impl Rules {
    /// Reads a folder.
    ///
    /// # Errors
    /// Everything that is wrong with it, with file, line and caret.
    pub fn load(dir: &Path) -> Result<Rules, Problems> {
        Rules::of(folder::read(dir).map_err(|problems| problems.coded(Code::InvalidInput))?)
    }

    /// Takes files that were read.
    ///
    /// # Errors
    /// Everything that is wrong with them, with file, line and caret.
    pub fn of(sources: Vec<Source>) -> Result<Rules, Problems> {
        // Who loads a policy may have a small stack, and what Cedar takes of it for a rule is not told anywhere.
        let read = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("policy text".into()).stack_size(STACK);
            match thread.spawn_scoped(scope, || Rules::read(sources)) {
                Ok(reading) => reading.join().unwrap_or_else(|_| Err(unread("Cedar could not read it"))),
                Err(error) => Err(unread(&format!("there is no thread to read it: {error}"))),
            }
        });
        read.map_err(|problems| problems.coded(Code::InvalidInput))
    }

    fn read(sources: Vec<Source>) -> Result<Rules, Problems> {
        let text = schema::text();
        let version = folder::version(&sources, &text);
        let whole = |message: String| Problems::one(Vec::new(), Problem::whole(message));
        let schema = match Schema::from_cedarschema_str(&text) {
            Ok((schema, _)) => schema,
            Err(error) => return Err(whole(format!("the built-in schema: {error}"))),
        };
        let actions = schema.action_entities().map_err(|error| whole(error.to_string()))?;
        let named = |name: &str| {
            EntityTypeName::from_str(&format!("{}::{name}", schema::NAMESPACE))
                .map_err(|error| whole(error.to_string()))
        };
        let types = Types {
            user: named("User")?,
            service: named("Service")?,
            run: named("Run")?,
            target: named("Target")?,
            action: named("Action")?,
        };
        let mut reader = Reader {
            validator: Validator::new(schema.clone()),
            notes: Notes::default(),
            rules: HashMap::new(),
            plain: PolicySet::new(),
            asking: PolicySet::new(),
            names: HashMap::new(),
            count: 0,
        };
        for (at, source) in sources.iter().enumerate() {
            reader.file(u16::try_from(at).unwrap_or(u16::MAX), source);
        }
        let Reader { notes, rules, plain, asking, .. } = reader;
        if !notes.is_empty() {
            return Err(notes.into_problems(sources));
        }
        let bearing = Mutex::default();
        Ok(Rules { version, sources, rules, schema, actions, plain, asking, bearing, types })
    }

    /// What can bear on an action of the schema.
    pub(super) fn bearing(&self, action: &EntityUid) -> Result<Arc<Bearing>, String> {
        let mut known = self.bearing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bearing) = known.get(action) {
            return Ok(bearing.clone());
        }
        let entity = self.actions.get(action).ok_or_else(|| format!("{action} is not in the schema"))?;
        let within = |group: &EntityUid| group == action || self.actions.is_ancestor_of(group, action);
        let of = |all: &PolicySet| {
            let bears = |policy: &&Policy| match policy.action_constraint() {
                ActionConstraint::Any => true,
                ActionConstraint::In(groups) => groups.iter().any(within),
                ActionConstraint::Eq(one) => one == *action,
            };
            let policies = all.policies().filter(bears).cloned();
            PolicySet::from_policies(policies).map_err(|error| error.to_string())
        };
        let bearing = Bearing { action: entity.clone(), plain: of(&self.plain)?, asking: of(&self.asking)? };
        Ok(known.entry(action.clone()).or_insert(Arc::new(bearing)).clone())
    }

    /// What is known of a rule; one that is not known is named by its id.
    pub(super) fn rule(&self, id: &PolicyId) -> Option<&Rule> {
        self.rules.get(id)
    }

    /// The rules in the order of their files, for people and programs.
    #[must_use]
    pub fn list(&self) -> Vec<&Rule> {
        let mut list: Vec<&Rule> = self.rules.values().collect();
        list.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        list
    }
}

/// A policy that was not looked at.
fn unread(why: &str) -> Problems {
    Problems::one(Vec::new(), Problem::whole(format!("the policy: {why}")))
}

/// Where a text goes deeper than it may: brackets, prefixes in a row, conditions of one rule, and operators of one rule, since a
/// chain of them is as deep as it is long. Strings and comments are passed over as Cedar does.
fn too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut prefixes, mut conditions, mut at) = (0_usize, 0_usize, 0_usize, 0);
    let mut chained = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at += bytes[at..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - at);
            }
            b'(' | b'[' | b'{' => (depth, chained) = (depth + 1, chained + 1),
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'!' | b'-' => (prefixes, chained) = (prefixes + 1, chained + 1),
            b';' => (conditions, chained) = (0, 0),
            b'.' | b'+' | b'*' => chained += 1,
            b'&' | b'|' if bytes.get(at + 1) == Some(byte) => chained += 1,
            b'i' if text
                .get(at..at + 3)
                .is_some_and(|word| word.starts_with("if") && !word.ends_with(is_word)) =>
            {
                conditions += 1;
            }
            _ => {}
        }
        if bytes.get(at).is_some_and(|byte| !matches!(byte, b'!' | b'-') && !byte.is_ascii_whitespace()) {
            prefixes = 0;
        }
        if depth.max(prefixes).max(conditions) > DEPTH_MAX || chained > CHAIN_MAX {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A rule is checked for every action it may be about, and what is wrong with it is found as often. It is told once, with the
/// suggestion that is nearest to what was written.
fn once_each(errors: Vec<DetailedError>) -> Vec<DetailedError> {
    const ASKED: &str = "did you mean `";
    let place = |error: &DetailedError| error.source_locations.first().map(|at| (at.loc.start, at.loc.end));
    let mut told: Vec<(DetailedError, Vec<String>, usize)> = Vec::new();
    for error in errors {
        let hint = error.help.as_deref().and_then(|help| help.strip_prefix(ASKED)?.strip_suffix("`?"));
        let hint = hint.map(str::to_owned);
        let attribute = |error: &DetailedError| error.message.contains("attribute `");
        let known = told.iter_mut().find(|(other, ..)| {
            place(&error).is_some() && place(other) == place(&error) && attribute(&error) && attribute(other)
        });
        match known {
            Some((_, hints, more)) => {
                hints.extend(hint);
                *more += 1;
            }
            None => told.push((error, hint.into_iter().collect(), 0)),
        }
    }
    let once = |(mut error, hints, more): (DetailedError, Vec<String>, usize)| {
        if more > 0 {
            let written = error.message.split('`').find(|part| part.contains('.')).unwrap_or_default();
            let last = written.rsplit('.').next().unwrap_or_default();
            let near = did_you_mean(last, hints.iter().map(String::as_str));
            error.help = near.map(|near| format!("did you mean `{near}`?"));
            error.message.push_str(&format!(", nor for {more} more actions"));
        }
        error
    };
    told.into_iter().map(once).collect()
}

/// Reads file by file.
struct Reader {
    validator: Validator,
    notes: Notes,
    rules: HashMap<PolicyId, Rule>,
    plain: PolicySet,
    asking: PolicySet,
    names: HashMap<String, Place>,
    /// How many rules were read, good or bad.
    count: usize,
}

impl Reader {
    fn file(&mut self, file: u16, source: &Source) {
        if let Some(at) = too_deep(&source.text) {
            let text =
                format!("this is more than {DEPTH_MAX} levels deep, or has more than {CHAIN_MAX} operators");
            let problem = Problem::at(Place::new(file, at, at + 1), text);
            return self.notes.add(problem.help("split the rule into several"));
        }
        let set = match PolicySet::from_str(&source.text) {
            Ok(set) => set,
            Err(errors) => {
                // All of them are among the related ones of the first.
                let mut all = errors.iter().map(DetailedError::from).collect::<Vec<_>>();
                if all.is_empty() {
                    all.push(DetailedError::from(&errors));
                }
                return all.iter().for_each(|error| self.note(file, error));
            }
        };
        if set.num_of_templates() > 0 {
            let text = "templates with `?principal` or `?resource` cannot be used: write the rule out";
            self.notes.add(Problem::at(Place::new(file, 0, 0), text));
        }
        self.count += set.num_of_policies();
        if self.count > RULES_MAX {
            // To check them all would take long, and they are refused in any case.
            let text = format!("there are more than {RULES_MAX} rules");
            return self.notes.add(Problem::at(Place::new(file, 0, 0), text));
        }
        let checked = self.validator.validate(&set, ValidationMode::Strict);
        let errors: Vec<DetailedError> = checked.validation_errors().map(DetailedError::from).collect();
        once_each(errors).iter().for_each(|error| self.note(file, error));
        for warning in checked.validation_warnings() {
            self.note(file, &DetailedError::from(warning));
        }
        let mut cursor = 0;
        for policy in in_order(&set) {
            let text = policy.to_cedar().unwrap_or_default();
            let start = source.text[cursor..].find(&text).map_or(cursor, |found| cursor + found);
            cursor = (start + text.len()).min(source.text.len());
            self.rule(Place::new(file, start, cursor), source, policy);
        }
    }

    /// Takes over what Cedar says, with the place it points at.
    fn note(&mut self, file: u16, error: &DetailedError) {
        let at = error.source_locations.first();
        let place =
            at.map_or(Place::new(file, 0, 0), |label| Place::new(file, label.loc.start, label.loc.end));
        let mut problem = Problem::at(place, error.message.clone());
        if let Some(label) = at.and_then(|label| label.label.clone()) {
            problem = problem.label(label);
        }
        if let Some(help) = &error.help {
            problem = problem.help(help.clone());
        }
        self.notes.add(problem);
    }

    fn rule(&mut self, place: Place, source: &Source, policy: &Policy) {
        let before = self.notes.count();
        let demand = self.annotations(place, source, policy);
        let line = source.text[..place.start as usize].matches('\n').count() + 1;
        let place_name = format!("{}:{line}", source.name);
        let name = policy.annotation("id").map_or(place_name, str::to_owned);
        if self.names.insert(name.clone(), place).is_some() {
            let at = spot(place, source, "@id");
            self.notes.add(Problem::at(at, format!("two rules are called `{name}`")).help("ids are unique"));
        }
        if self.notes.count() > before {
            return;
        }
        let rule = Rule {
            name: name.clone(),
            file: source.name.clone(),
            line,
            forbids: policy.effect() == Effect::Forbid,
            reason: policy.annotation("reason").map(str::to_owned),
            demand,
        };
        let id = PolicyId::new(name);
        let set = if rule.demand.is_some() { &mut self.asking } else { &mut self.plain };
        if let Err(error) = set.add(policy.new_id(id.clone())) {
            self.notes.add(Problem::at(place, error.to_string()));
        }
        self.rules.insert(id, rule);
    }

    /// Checks the annotations, and that a rule that asks humans does what it says.
    fn annotations(&mut self, place: Place, source: &Source, policy: &Policy) -> Option<Demand> {
        for (key, value) in policy.annotations() {
            let at = spot(place, source, &format!("@{key}"));
            if !ANNOTATIONS.contains(&key) {
                let problem = Problem::at(at, format!("the annotation `@{key}` is not known"));
                self.notes.add(problem.help(suggest(key, ANNOTATIONS, "annotations")));
            } else if value.len() > TEXT_LEN_MAX || value.chars().any(char::is_control) {
                let text = format!("`@{key}` is one line of at most {TEXT_LEN_MAX} bytes");
                self.notes.add(Problem::at(at, text));
            } else if value.is_empty() && key != "approval" {
                self.notes.add(Problem::at(at, format!("`@{key}` is empty")));
            }
        }
        let conditions = match policy.to_json() {
            Ok(mut json) => json["conditions"].take(),
            Err(error) => {
                self.notes.add(Problem::at(place, error.to_string()));
                return None;
            }
        };
        let Some(text) = policy.annotation("approval") else {
            if mentions(&conditions) {
                let at = spot(place, source, "approvals");
                let text = "`context.approvals` is only for rules with `@approval`: nobody would be asked";
                self.notes.add(Problem::at(at, text).help(HOW));
            }
            return None;
        };
        let at = spot(place, source, "@approval");
        match Demand::parse(text).and_then(|demand| counted(demand, policy.effect(), &conditions)) {
            Ok(demand) => Some(demand),
            Err(message) => {
                self.notes.add(Problem::at(at, message).help(HOW));
                None
            }
        }
    }
}

const HOW: &str = "write `@approval(\"…\") forbid (…) when { … } unless { context.approvals >= 1 };`";

/// The demand with its count, which is what the rule itself says.
fn counted(mut demand: Demand, effect: Effect, conditions: &Value) -> Result<Demand, String> {
    if effect != Effect::Forbid {
        return Err("`@approval` is for `forbid`: it forbids until humans have agreed".to_owned());
    }
    let conditions = conditions.as_array().map_or(&[][..], Vec::as_slice);
    let counts: Vec<u64> = conditions.iter().filter_map(least).collect();
    let others = conditions.iter().filter(|condition| least(condition).is_none()).any(mentions);
    let count = match counts.as_slice() {
        [count] if !others => u32::try_from(*count).ok().filter(|count| (1..=COUNT_MAX).contains(count)),
        [] | [_, ..] => None,
    };
    let count = count.ok_or_else(|| {
        format!("a rule with `@approval` ends in `unless {{ context.approvals >= N }}`, with N from 1 to {COUNT_MAX}, and says nothing else about approvals")
    })?;
    if demand.count != 0 && demand.count != count {
        return Err(format!("`@approval` says count {}, and the rule says {count}", demand.count));
    }
    if demand.two_person && count < 2 {
        return Err("`two_person` needs `unless { context.approvals >= 2 }`".to_owned());
    }
    demand.count = count;
    Ok(demand)
}

/// The N of `unless { context.approvals >= N }`.
fn least(condition: &Value) -> Option<u64> {
    let approvals = json!({ ".": { "left": { "Var": "context" }, "attr": "approvals" } });
    let compared = condition.get("body")?.get(">=")?;
    (condition["kind"] == "unless" && compared["left"] == approvals)
        .then(|| compared["right"]["Value"].as_u64())
        .flatten()
}

/// Whether an expression looks at the number of approvals.
fn mentions(expression: &Value) -> bool {
    match expression {
        Value::Object(map) => {
            let named = map.get("attr").is_some_and(|attr| attr == "approvals")
                && map.get("left").is_some_and(|left| left["Var"] == "context");
            named || map.values().any(mentions)
        }
        Value::Array(list) => list.iter().any(mentions),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Where a word stands in a rule; the rule's first line where it does not.
fn spot(place: Place, source: &Source, word: &str) -> Place {
    let (start, end) = (place.start as usize, place.end as usize);
    match source.text[start..end].find(word) {
        Some(found) => Place::new(place.file, start + found, start + found + word.len()),
        None => Place::new(place.file, start, start + 1),
    }
}

/// The policies as they stand in the file. They are numbered as they are read.
fn in_order(set: &PolicySet) -> Vec<&Policy> {
    let number = |policy: &&Policy| {
        let id = policy.id().to_string();
        id.strip_prefix("policy").and_then(|digits| digits.parse::<u64>().ok()).unwrap_or(u64::MAX)
    };
    let mut list: Vec<&Policy> = set.policies().collect();
    list.sort_by_key(number);
    list
}
