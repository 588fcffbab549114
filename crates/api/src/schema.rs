//! Schemas of the core's types, which do not describe themselves: the core does not know schemars.
//!
//! A field says `#[schemars(with = "Word<Status>")]` for a word, and `#[schemars(with = "String")]` for an id or a name.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::marker::PhantomData;

/// An object with any members.
pub type Object = Map<String, Value>;

/// A word of the core, for its schema.
pub struct Word<T>(PhantomData<T>);

/// Words whose spellings are listed in a schema.
pub trait Words {
    /// Every word as it is written.
    fn spelled() -> Vec<&'static str>;
}

impl<T: Words> JsonSchema for Word<T> {
    fn schema_name() -> Cow<'static, str> {
        "word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": T::spelled() })
    }
}

macro_rules! words {
    ($($type:ty),+ $(,)?) => {$(
        impl Words for $type {
            fn spelled() -> Vec<&'static str> {
                <$type>::ALL.iter().map(|word| word.as_str()).collect()
            }
        }
    )+};
}

words!(
    windlass_core::approval::Channel,
    windlass_core::approval::Status,
    windlass_core::approval::Tier,
    windlass_core::approval::Verdict,
    windlass_core::budget::Dimension,
    windlass_core::receipt::Outcome,
    windlass_core::policy::Risk,
    windlass_core::run::Initiator,
    windlass_core::run::Section,
    windlass_core::run::Source,
    windlass_core::run::Status,
    windlass_core::runbook::ValueType,
    windlass_core::schedule::CatchUp,
    windlass_core::schedule::Overlap,
    windlass_core::step::Status,
    windlass_core::token::Scope,
);
