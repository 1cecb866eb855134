//! `holdline schema`: the tables and functions that stores in databases need.

use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};

/// Print or install the tables and functions for locks in a database
///
/// They are never created silently. Have the printed statements run by an administrator, or install
/// them by --install; both can be repeated.
#[derive(Args, Debug)]
pub(crate) struct Schema {
    /// Which database
    #[arg(value_parser = PossibleValuesParser::new(kinds()))]
    kind: String,

    /// Install them in the database at this URL, instead of printing them
    #[arg(long, value_name = "URL")]
    install: Option<String>,

    /// The name of the database schema, for printing; in a URL say ?schema=NAME
    #[arg(long = "schema", value_name = "NAME", conflicts_with = "install")]
    name: Option<String>,
}

impl Schema {
    pub(crate) async fn run(self) -> Result<Exit, Failure> {
        let Some(url) = self.install else {
            Printer::answer(holdline::schema::text(&self.kind, self.name.as_deref())?.trim_end())?;
            return Ok(Exit::DONE);
        };
        let kind_of = holdline::schema::kind_of;
        if kind_of(&url) != kind_of(&self.kind) {
            let message = format!("the URL to install at is not one of {}", self.kind);
            return Err(Failure::new(Exit::USAGE, "usage", message));
        }
        holdline::schema::install(&url).await?;
        Ok(Exit::DONE)
    }
}

/// The kinds, and the other names that people know them by.
fn kinds() -> [PossibleValue; 2] {
    holdline::schema::KINDS.map(|kind| match kind {
        "postgres" => PossibleValue::new(kind).alias("postgresql"),
        "mysql" => PossibleValue::new(kind).alias("mariadb"),
        _ => PossibleValue::new(kind),
    })
}
