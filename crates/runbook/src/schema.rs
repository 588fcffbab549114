//! The JSON Schema of the language, for editors. Made from the tables that the reader checks files against.

use super::shape::{Keys, Shape, Table};
use super::{tables, tools};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use windlass_core::runbook::ValueType;

const DURATION: &str = "^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";
const NAME: &str = "^[A-Za-z0-9_.-]{1,128}$";
const VAR: &str = "^[A-Za-z_][A-Za-z0-9_]{0,127}$";

/// The JSON Schema (draft 2020-12) of a runbook.
#[must_use]
pub fn schema() -> Value {
    let mut definitions = Definitions::default();
    let reference = definitions.table(&tables::FILE);
    let name = reference["$ref"].as_str().unwrap_or_default().to_owned();
    let defs: Map<String, Value> = definitions.done.into_values().collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Windlass runbook",
        "$ref": name,
        "$defs": defs,
    })
}

/// Tables become definitions of their own, as some of them hold themselves.
#[derive(Default)]
struct Definitions {
    /// By the table's address: tables are statics, and two may bear one name.
    done: BTreeMap<usize, (String, Value)>,
}

impl Definitions {
    fn table(&mut self, table: &'static Table<'static>) -> Value {
        let address = std::ptr::from_ref(table) as usize;
        if let Some((name, _)) = self.done.get(&address) {
            return json!({ "$ref": format!("#/$defs/{name}") });
        }
        // Two tables of one name are told apart by what has no meaning in a reference, as `~` and `/` do.
        let taken = self.done.values().filter(|(name, _)| name.split(':').next() == Some(table.name)).count();
        let name = if taken == 0 { table.name.to_owned() } else { format!("{}:{taken}", table.name) };
        // The name stands before the definition is made, so that a table can hold itself.
        self.done.insert(address, (name.clone(), Value::Null));
        let object = self.object(table);
        self.done.insert(address, (name.clone(), object));
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    fn object(&mut self, table: &'static Table<'static>) -> Value {
        let mut properties = Map::new();
        for key in table.keys {
            let mut shape = self.shape(&key.shape);
            shape["description"] = key.doc.into();
            properties.insert(key.name.to_owned(), shape);
        }
        let mut kinds: Vec<&str> = table.one_of.to_vec();
        if table.has_tools() {
            for tool in tools::TOOLS {
                properties.insert(tool.name.to_owned(), self.table(&tool.fields));
                kinds.push(tool.name);
            }
        }
        let required: Vec<&str> = table.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
        let needs: Map<String, Value> = table
            .keys
            .iter()
            .filter(|key| !key.needs.is_empty())
            .map(|key| {
                let any: Vec<Value> = key.needs.iter().map(|need| json!({ "required": [need] })).collect();
                (key.name.to_owned(), json!({ "anyOf": any }))
            })
            .collect();
        let may_be_empty = required.is_empty() && kinds.is_empty();
        let kind = if may_be_empty { json!(["object", "null"]) } else { json!("object") };
        let mut object = json!({ "type": kind, "properties": properties, "additionalProperties": false });
        if !required.is_empty() {
            object["required"] = required.into();
        }
        if !needs.is_empty() {
            object["dependentSchemas"] = Value::Object(needs);
        }
        if !kinds.is_empty() {
            object["oneOf"] = kinds.iter().map(|kind| json!({ "required": [kind] })).collect();
        }
        object
    }

    fn shape(&mut self, shape: &Shape<'static>) -> Value {
        match shape {
            Shape::Text | Shape::Template => json!({ "type": "string" }),
            Shape::Command => json!({ "type": "string", "minLength": 1, "not": { "pattern": "\\$\\{\\{" } }),
            Shape::Name => json!({ "type": "string", "pattern": NAME }),
            Shape::Bool => json!({ "type": "boolean" }),
            Shape::Never => json!({ "const": false }),
            Shape::Int(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Shape::Money => json!({ "type": "number", "minimum": 0 }),
            Shape::Duration | Shape::DurationOrZero => {
                json!({ "type": "string", "minLength": 2, "pattern": DURATION })
            }
            Shape::Condition => json!({ "type": ["string", "boolean"] }),
            Shape::Value => json!({}),
            Shape::Env => json!({ "type": ["string", "number", "boolean"] }),
            Shape::Words(words) => json!({ "enum": words }),
            Shape::Type => json!({ "enum": ValueType::SPELLINGS }),
            Shape::List(of) => json!({ "type": "array", "items": self.shape(of) }),
            Shape::Map(keys, of) => {
                let names = match keys {
                    Keys::Name => json!({ "pattern": NAME }),
                    Keys::Var | Keys::Env => json!({ "pattern": VAR }),
                    Keys::Any => json!({}),
                };
                json!({ "type": "object", "propertyNames": names, "additionalProperties": self.shape(of) })
            }
            Shape::Table(table) => self.table(table),
            Shape::OneOf(shapes, _) => {
                let any: Vec<Value> = shapes.iter().map(|shape| self.shape(shape)).collect();
                json!({ "anyOf": any })
            }
        }
    }
}

#[cfg(test)]
mod tests;
