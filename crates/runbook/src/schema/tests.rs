//! The schema and the reader say the same: both are asked about every key of every table, and about the examples.

use super::super::problem::{Notes, Place};
use super::super::shape::check;
use super::super::yaml::{self, Node};
use super::*;
use crate::tools::Tools;
use std::collections::BTreeSet;

/// Whether a value fits a schema, as far as this schema uses the language of schemas.
fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(rules) = schema.as_object() else { return true };
    rules.iter().all(|(rule, with)| match rule.as_str() {
        "$ref" => {
            let pointer = with.as_str().unwrap().strip_prefix('#').unwrap();
            fits(root, root.pointer(pointer).unwrap_or_else(|| panic!("{with} leads nowhere")), value)
        }
        "type" => with.as_array().map_or(std::slice::from_ref(with), Vec::as_slice).iter().any(|kind| {
            match kind.as_str().unwrap() {
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                "null" => value.is_null(),
                other => panic!("type {other}"),
            }
        }),
        "properties" => value.as_object().is_none_or(|map| {
            map.iter().all(|(key, value)| with.get(key).is_none_or(|schema| fits(root, schema, value)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|map| {
            let own = |key: &String| rules.get("properties").is_some_and(|keys| keys.get(key).is_some());
            map.iter().filter(|(key, _)| !own(key)).all(|(_, value)| match with {
                Value::Bool(allowed) => *allowed,
                schema => fits(root, schema, value),
            })
        }),
        "required" => value.as_object().is_none_or(|map| {
            with.as_array().unwrap().iter().all(|key| map.contains_key(key.as_str().unwrap()))
        }),
        "oneOf" => with.as_array().unwrap().iter().filter(|schema| fits(root, schema, value)).count() == 1,
        "anyOf" => with.as_array().unwrap().iter().any(|schema| fits(root, schema, value)),
        "dependentSchemas" => value.as_object().is_none_or(|map| {
            with.as_object()
                .unwrap()
                .iter()
                .all(|(key, schema)| !map.contains_key(key) || fits(root, schema, value))
        }),
        "enum" => with.as_array().unwrap().contains(value),
        "const" => with == value,
        "not" => !fits(root, with, value),
        "pattern" => value
            .as_str()
            .is_none_or(|text| regex::Regex::new(with.as_str().unwrap()).unwrap().is_match(text)),
        "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= with.as_u64().unwrap()),
        "minimum" => value.as_f64().is_none_or(|n| n >= with.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= with.as_f64().unwrap()),
        "items" => value.as_array().is_none_or(|list| list.iter().all(|item| fits(root, with, item))),
        "propertyNames" => value
            .as_object()
            .is_none_or(|map| map.keys().all(|key| fits(root, with, &Value::String(key.clone())))),
        "$schema" | "$defs" | "title" | "description" => true,
        other => panic!("the test knows no rule `{other}`"),
    })
}

fn node(value: &Value) -> Node {
    let at = Place::default();
    let value = match value {
        Value::Null => yaml::Value::Null,
        Value::Bool(truth) => yaml::Value::Bool(*truth),
        Value::Number(number) => yaml::Value::Number(number.clone(), number.to_string()),
        Value::String(text) => yaml::Value::Text(text.clone()),
        Value::Array(list) => yaml::Value::List(list.iter().map(node).collect()),
        Value::Object(map) => yaml::Value::Map(
            map.iter().map(|(key, value)| (yaml::Key { text: key.clone(), at }, node(value))).collect(),
        ),
    };
    Node { at, value }
}

/// A value that fits a shape.
fn good(shape: &Shape<'static>) -> Value {
    match shape {
        Shape::Text | Shape::Template | Shape::Command | Shape::Name | Shape::Condition | Shape::Env => {
            json!("x")
        }
        Shape::Bool => json!(true),
        Shape::Never => json!(false),
        Shape::Int(min, _) => json!(min),
        Shape::Money => json!(2.5),
        Shape::Duration | Shape::DurationOrZero => json!("1h30m"),
        Shape::Value => json!({ "any": [1, null] }),
        Shape::Words(words) => json!(words[0]),
        Shape::Type => json!("string"),
        Shape::List(_) => json!([]),
        Shape::Map(..) => json!({}),
        Shape::Table(table) => whole(table, None),
        Shape::OneOf(shapes, _) => good(&shapes[0]),
    }
}

/// Values that do not fit a shape.
fn bad(shape: &Shape) -> Vec<Value> {
    match shape {
        Shape::Value => vec![],
        Shape::Text | Shape::Template | Shape::Name | Shape::Env | Shape::Condition => {
            vec![json!([]), json!(null)]
        }
        Shape::Command => vec![json!([]), json!(1)],
        Shape::Bool => vec![json!("yes"), json!(1)],
        Shape::Never => vec![json!(true), json!(null)],
        Shape::Int(min, max) => {
            let below = min.checked_sub(1).map(|below| json!(below));
            let above = max.checked_add(1).map(|above| json!(above));
            [json!("1"), json!(1.5)].into_iter().chain(below).chain(above).collect()
        }
        Shape::Money => vec![json!(-1), json!("1")],
        Shape::Duration | Shape::DurationOrZero => {
            vec![json!(5), json!("5"), json!("five"), json!("1m1h"), json!("")]
        }
        Shape::Words(_) | Shape::Type => vec![json!("nonsense"), json!(null)],
        Shape::List(_) => vec![json!("x"), json!({})],
        Shape::Map(..) | Shape::Table(_) => vec![json!("x"), json!([])],
        // What is wrong for one of them may be right for another.
        Shape::OneOf(..) => vec![json!([[[]]])],
    }
}

/// The least that fits a table, with one more key where one is named.
fn whole(table: &'static Table<'static>, extra: Option<(&str, Value)>) -> Value {
    let mut map = Map::new();
    let mut add = |name: &str| {
        let shape =
            table.shape_of(name, Tools::OWN).unwrap_or_else(|| panic!("{} has no {name}", table.name));
        map.insert(name.to_owned(), good(&shape));
    };
    table.keys.iter().filter(|key| key.required).for_each(|key| add(key.name));
    let is_kind =
        |name: &str| table.one_of.contains(&name) || table.has_tools() && Tools::OWN.find(name).is_some();
    let needed = extra
        .as_ref()
        .and_then(|(name, _)| table.keys.iter().find(|key| key.name == *name))
        .map(|key| key.needs);
    let kind = match (&extra, needed) {
        (Some((name, _)), _) if is_kind(name) => None,
        (_, Some([need, ..])) if is_kind(need) => Some(*need),
        _ => table.one_of.first().copied(),
    };
    kind.into_iter().for_each(&mut add);
    if let Some([need, ..]) = needed.filter(|needs| !needs.first().is_some_and(|need| is_kind(need))) {
        add(need);
    }
    if let Some((name, value)) = extra {
        map.insert(name.to_owned(), value);
    }
    Value::Object(map)
}

/// Every table that can be reached.
fn tables(shape: &Shape<'static>, seen: &mut BTreeSet<usize>, found: &mut Vec<&'static Table>) {
    match shape {
        Shape::List(of) | Shape::Map(_, of) => tables(of, seen, found),
        Shape::OneOf(shapes, _) => shapes.iter().for_each(|shape| tables(shape, seen, found)),
        Shape::Table(table) if seen.insert(std::ptr::from_ref(*table) as usize) => {
            found.push(table);
            table.keys.iter().for_each(|key| tables(&key.shape, seen, found));
            if table.has_tools() {
                tools::TOOLS.iter().for_each(|tool| tables(&Shape::Table(&tool.fields), seen, found));
            }
        }
        _ => {}
    }
}

#[test]
fn the_schema_and_the_reader_agree_about_every_key() {
    let mut found = Vec::new();
    tables(&Shape::Table(&tables::FILE), &mut BTreeSet::new(), &mut found);
    assert!(found.len() > 60, "{}", found.len());
    let mut asked = 0;
    for table in found {
        let mut definitions = Definitions::default();
        let schema = definitions.table(table);
        let root = json!({ "$defs": definitions.done.into_values().collect::<Map<String, Value>>() });
        let mut agree = |value: Value, expected: bool| {
            let mut notes = Notes::default();
            check(&node(&value), &Shape::Table(table), "x", Tools::OWN, &mut notes);
            assert_eq!(notes.is_empty(), expected, "the reader, {}: {value}", table.name);
            assert_eq!(fits(&root, &schema, &value), expected, "the schema, {}: {value}", table.name);
            asked += 1;
        };
        agree(whole(table, None), true);
        agree(whole(table, Some(("nonsense", json!(1)))), false);
        let own = table.keys.iter().map(|key| (key.name, key.shape));
        let tools =
            tools::TOOLS.iter().filter(|_| table.has_tools()).map(|t| (t.name, Shape::Table(&t.fields)));
        for (name, shape) in own.chain(tools) {
            agree(whole(table, Some((name, good(&shape)))), true);
            bad(&shape).into_iter().for_each(|value| agree(whole(table, Some((name, value))), false));
            if let Shape::OneOf(shapes, _) = shape {
                shapes.iter().for_each(|shape| agree(whole(table, Some((name, good(shape)))), true));
            }
        }
        for key in table.keys.iter().filter(|key| key.required) {
            let mut less = whole(table, None);
            less.as_object_mut().unwrap().remove(key.name);
            agree(less, false);
        }
    }
    assert!(asked > 1_000, "{asked}");
}

fn references<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    match schema {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_reference_leads_to_a_definition_and_every_definition_is_referred_to() {
    let schema = schema();
    let mut found = Vec::new();
    references(&schema, &mut found);
    for reference in &found {
        let plain = |c: char| c.is_ascii_alphanumeric() || "#/$_.:-".contains(c);
        assert!(reference.chars().all(plain), "{reference} is not plain in an address");
        assert!(schema.pointer(&reference[1..]).is_some_and(Value::is_object), "{reference} leads nowhere");
    }
    let distinct: BTreeSet<&str> = found.into_iter().collect();
    assert_eq!(distinct.len(), schema["$defs"].as_object().unwrap().len());
}

#[test]
fn every_spelling_of_a_type_fits_both() {
    let schema = Definitions::default().shape(&Shape::Type);
    for spelling in ValueType::SPELLINGS {
        let mut notes = Notes::default();
        check(&node(&json!(spelling)), &Shape::Type, "x", Tools::OWN, &mut notes);
        assert!(notes.is_empty() && fits(&schema, &schema, &json!(spelling)), "{spelling}");
    }
    assert!(ValueType::SPELLINGS.contains(&"int"));
}

#[test]
fn the_examples_fit_the_schema() {
    let schema = schema();
    for text in [
        include_str!("../../tests/golden/examples/triage.yaml"),
        include_str!("../../tests/golden/examples/bugs.yaml"),
        include_str!("../../tests/golden/examples/rotate-keys.yaml"),
    ] {
        let value = yaml::parse(0, text).unwrap().json();
        assert!(fits(&schema, &schema, &value), "{text}");
    }
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
