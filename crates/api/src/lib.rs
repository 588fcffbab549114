//! The requests and answers of the API, each defined once.
//!
//! The server serialises these structs, clients (the command line, remote executors, tests) read them, and the OpenAPI
//! document describes them. A new field is added to one struct here, and to the function beside it that fills it.
//!
//! **Rules.** An optional field that has no value is left out, unless its comment says that it is null then. Times are
//! [`Time`]. Ids, names and words are the core's own types. [`serde_json::Value`] stands only for values that users own: variables,
//! data, inputs, outputs, the fields of a tool. Requests refuse fields they do not know; answers may gain fields at any time,
//! and clients skip those they do not know.

pub mod approval;
pub mod budget;
pub mod care;
pub mod evidence;
pub mod hold;
pub mod lease;
pub mod list;
pub mod policy;
pub mod problem;
pub mod queue;
pub mod receipt;
pub mod run;
pub mod schedule;
pub mod schema;
pub mod step;
pub mod time;
pub mod token;
pub mod undo;
pub mod why;
pub mod worker;

pub use list::List;
pub use problem::Problem;
pub use time::Time;
