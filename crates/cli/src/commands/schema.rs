//! `holdline schema`: the tables and functions that stores in databases need.

use crate::context::Session;
use crate::exit::{Exit, Failure};
use crate::printer::{Level, Printer};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::json;

/// Print or install the tables and functions for locks in a database; or describe --json
///
/// `events` is the JSON Schema of everything that --json prints. Tables and functions are never
/// created silently. Have an administrator run the printed statements, or install them with
/// --install; both can be repeated, and leave a newer version as it is.
#[derive(Args, Debug)]
pub(crate) struct Schema {
    /// The database; or "events"
    #[arg(value_parser = PossibleValuesParser::new(kinds()))]
    kind: String,

    /// Install them in the database at this URL, instead of printing them
    #[arg(long, value_name = "URL")]
    install: Option<String>,

    /// The name of the database schema, for printing; in a URL use ?schema=NAME
    #[arg(long = "schema", value_name = "NAME", conflicts_with = "install")]
    name: Option<String>,
}

/// The description of all output of `--json`.
const EVENTS: &str = include_str!("../events.schema.json");

impl Schema {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        if self.kind == "events" {
            if self.install.is_some() || self.name.is_some() {
                return Err(Failure::usage("the schema of events can only be printed"));
            }
            Printer::answer(EVENTS.trim_end())?;
            return Ok(Exit::DONE);
        }
        let Some(url) = self.install else {
            Printer::answer(holdline::schema::text(&self.kind, self.name.as_deref())?.trim_end())?;
            return Ok(Exit::DONE);
        };
        let kind_of = holdline::schema::kind_of;
        if kind_of(&url) != kind_of(&self.kind) {
            let message = format!("the URL to install at is no URL of {}", self.kind);
            return Err(Failure::new(Exit::USAGE, "usage", message));
        }
        let installed = holdline::schema::install(&url).await?;
        session.printer.say(Level::Usually, "installed", &installed, json!({}));
        Ok(Exit::DONE)
    }
}

/// The kinds, with their common aliases.
fn kinds() -> Vec<PossibleValue> {
    let databases = holdline::schema::KINDS.map(|kind| match kind {
        "postgres" => PossibleValue::new(kind).alias("postgresql"),
        "mysql" => PossibleValue::new(kind).alias("mariadb"),
        _ => PossibleValue::new(kind),
    });
    databases.into_iter().chain([PossibleValue::new("events")]).collect()
}
