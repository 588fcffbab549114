//! The OpenAPI document, made from the table of routes: what is served and what is documented cannot part.

pub mod shapes;

use super::Answer;
use super::routes::{Doc, Route, Routes, Scope, doc};
use axum::body::Bytes;
use axum::http::{Method, header};
use axum::response::IntoResponse as _;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use windlass_core::code::Code;

/// Where shapes stand in the document.
const SHAPES: &str = "/components/schemas";

/// The document itself.
pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/openapi.json",
        Scope::Open,
        doc("Describe every address").gives(200, "document"),
        serve,
    )
}

async fn serve() -> Answer {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let document = DOCUMENT.get_or_init(|| Bytes::from(document(super::routes().list()).to_string()));
    Ok(([(header::CONTENT_TYPE, "application/json")], document.clone()).into_response())
}

/// The document about these routes.
#[must_use]
pub fn document(routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SHAPES.into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let operation = operation(route, &mut generator);
        paths.entry(route.path).or_default().insert(route.method.as_str().to_lowercase(), operation);
    }
    for (name, shape) in shapes::all() {
        let schema = shape(&mut generator);
        generator.definitions_mut().insert(name.to_owned(), schema.to_value());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Windlass",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs runbooks for agents and humans, durably.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let doc = &route.doc;
    let mut parameters = path_parameters(route.path);
    if let Some(query) = doc.query {
        parameters.extend(query_parameters(&query(generator)));
    }
    parameters.extend(doc.headers.iter().map(|(name, meaning, form)| {
        let schema = json!({ "type": "string", "pattern": form });
        json!({ "name": name, "in": "header", "required": false, "description": meaning, "schema": schema })
    }));
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": doc.summary,
        "description": scope_text(route.scope),
        "tags": [tag(route.path)],
        "parameters": parameters,
        "responses": responses(route),
    });
    if let Some((kind, body)) = doc.body {
        let schema = body(generator);
        let required = schema.get("required").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        let mut content = Map::new();
        content.insert(kind.to_owned(), json!({ "schema": schema }));
        for kind in &doc.also {
            content.insert((*kind).to_owned(), json!({ "schema": { "type": "string" } }));
        }
        operation["requestBody"] = json!({ "required": required, "content": content });
    }
    operation
}

fn scope_text(scope: Scope) -> String {
    match scope {
        Scope::Open => "Anybody may.".to_owned(),
        Scope::Known => "Needs a token, whatever it allows.".to_owned(),
        Scope::Owner => "Needs the owner's credential.".to_owned(),
        Scope::Read | Scope::Run | Scope::Deploy | Scope::Approve | Scope::Execute | Scope::Admin => {
            format!("Needs the scope `{}`.", scope.word())
        }
    }
}

/// `get_v1_runs_id`: what it does and where, in one word.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut id = route.method.as_str().to_lowercase();
    words.for_each(|word| {
        id.push('_');
        id.push_str(word);
    });
    id
}

/// The first word of a path that says something.
fn tag(path: &str) -> &str {
    path.split('/').find(|part| !part.is_empty() && *part != "v1").unwrap_or("windlass")
}

/// The parts of a path in braces. Each is one name, and no name has a control character.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let one = |name: &str| {
        let schema = match name {
            "id" => json!({ "type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[0-9a-z_]+$" }),
            "hash" => {
                json!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[0-9A-Za-z._-]+$" })
            }
            _ => {
                json!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[0-9A-Za-z._:@-]+$" })
            }
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    names.map(|name| one(name.trim_start_matches('*'))).collect()
}

/// The members of an object as parameters. In a query nothing is null: it is there or it is not.
fn query_parameters(schema: &Schema) -> Vec<Value> {
    let needed = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let members = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let one = |(name, mut schema): (String, Value)| {
        let mut parameter = json!({ "name": name, "in": "query", "required": needed.contains(&json!(name)) });
        if let Some(members) = schema.as_object_mut() {
            if let Some(text) = members.remove("description") {
                parameter["description"] = text;
            }
            members.remove("default");
            if let Some(Value::Array(kinds)) = members.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [only] = kinds.as_slice() {
                    let only = only.clone();
                    members.insert("type".to_owned(), only);
                }
            }
        }
        parameter["schema"] = schema;
        parameter
    };
    members.into_iter().map(one).collect()
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut responses: BTreeMap<u16, Value> = BTreeMap::new();
    for &(status, kind, shape) in &route.doc.answers {
        let entry =
            responses.entry(status).or_insert_with(|| json!({ "description": "It is done.", "content": {} }));
        entry["content"][kind] = json!({ "schema": shape_ref(shape) });
    }
    let mut refused: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for code in refusals(route) {
        refused.entry(code.http()).or_default().insert(code.as_str());
    }
    for (status, codes) in refused {
        let codes: Vec<&str> = codes.into_iter().collect();
        let content = json!({ "application/problem+json": { "schema": shape_ref("problem") } });
        responses.entry(status).or_insert(json!({ "description": codes.join(", "), "content": content }));
    }
    responses.into_iter().map(|(status, response)| (status.to_string(), response)).collect()
}

/// Every code that a route may refuse with: its own, and those that any may.
fn refusals(route: &Route) -> BTreeSet<Code> {
    let mut codes: BTreeSet<Code> = route.doc.refuses.iter().copied().collect();
    codes.extend([Code::InvalidInput, Code::Forbidden, Code::Internal, Code::Unavailable]);
    if route.scope != Scope::Open {
        codes.insert(Code::Unauthorized);
    }
    if route.path.contains('{') {
        codes.insert(Code::NotFound);
    }
    if route.method != Method::GET {
        codes.extend([Code::PayloadTooLarge, Code::RequestTimeout, Code::StoreFull]);
    }
    codes
}

fn shape_ref(shape: &str) -> Value {
    match shape.strip_prefix("list ") {
        Some(of) => json!({
            "type": "object",
            "required": ["items"],
            "properties": {
                "items": { "type": "array", "items": shape_ref(of) },
                "next_cursor": { "type": "string" },
            },
        }),
        None => json!({ "$ref": format!("#{SHAPES}/{shape}") }),
    }
}

/// The names of shapes that a route answers with.
#[must_use]
pub fn shapes_of(doc: &Doc) -> Vec<&'static str> {
    doc.answers.iter().map(|(_, _, shape)| shape.strip_prefix("list ").unwrap_or(shape)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_that_a_route_names_is_described() {
        let routes = super::super::routes();
        let known: BTreeSet<&str> = shapes::all().iter().map(|(name, _)| *name).collect();
        let mut missing = BTreeSet::new();
        for route in routes.list() {
            missing.extend(shapes_of(&route.doc).into_iter().filter(|shape| !known.contains(shape)));
            assert!(!route.doc.answers.is_empty(), "{} {} answers nothing", route.method, route.path);
        }
        assert!(missing.is_empty(), "describe these in api/openapi/shapes.rs: {missing:?}");
    }

    #[test]
    fn the_document_holds_together() {
        let document = document(super::super::routes().list());
        let text = document.to_string();
        // Every reference leads somewhere.
        for part in text.split("\"$ref\":\"#/").skip(1) {
            let path = part.split('"').next().unwrap();
            assert!(document.pointer(&format!("/{path}")).is_some(), "{path}");
        }
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(ids.insert(id), "{method} {path} has another's name");
                let described = operation["parameters"].as_array().unwrap();
                let inside = described.iter().filter(|parameter| parameter["in"] == "path").count();
                assert_eq!(inside, path.matches('{').count(), "{path}");
            }
        }
    }
}
