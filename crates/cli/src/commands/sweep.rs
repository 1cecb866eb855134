//! `holdline sweep`: removes unneeded data from a database.

use crate::context::Session;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use clap::Args;
use std::time::Duration;

/// Remove expired places and long unused locks from a database
///
/// Locks work without it: it only saves space. The store is that of --store.
#[derive(Args, Debug)]
pub(crate) struct Sweep {
    /// How long a lock must have been unused
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "24h")]
    idle: Duration,
}

impl Sweep {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        let count = holdline::schema::sweep(&session.store, self.idle).await?;
        let text = if session.printer.json {
            serde_json::json!({ "removed": count }).to_string()
        } else {
            format!("{count} unused lock{} removed", if count == 1 { "" } else { "s" })
        };
        Printer::answer_if_read(&text)?;
        Ok(Exit::DONE)
    }
}
