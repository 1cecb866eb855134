//! `holdline try`: checks whether a lock is free.

use crate::commands::acquire::check_busy_code;
use crate::context::{Session, check_name};
use crate::exit::{Exit, Failure};
use crate::lock_kind::LockKind;
use crate::participant;
use crate::printer::Printer;
use clap::Args;
use serde_json::{Value, json};

/// Say whether a lock is free (exit code 0) or not (75), without taking it
///
/// The answer may be outdated when you read it: to act only if the lock is free, use `run -n`.
#[derive(Args, Debug)]
pub(crate) struct Try {
    /// The lock's name
    name: String,

    #[command(flatten)]
    lock_kind: LockKind,

    /// Exit code when it is not free
    #[arg(long, short = 'E', value_name = "N", default_value_t = Exit::BUSY.0)]
    busy_code: u8,
}

impl Try {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        check_name(&self.name)?;
        check_busy_code(self.busy_code)?;
        let name = self.name.as_str();
        let client = session.ask().await?;
        let info = client.inspect(name).await?;
        let free = self.lock_kind.is_free(&client, &info)?;
        let printer = session.printer;
        if printer.json {
            let mut line = participant::info_json(&info);
            if let Value::Object(fields) = &mut line {
                fields.insert("free".to_owned(), json!(free));
            }
            Printer::answer_if_read(&line.to_string())?;
        } else if !printer.quiet {
            let quoted = format!("\"{name}\"");
            let line = participant::in_use(&info, &quoted).filter(|_| !free);
            let line = line.unwrap_or_else(|| format!("{quoted} is free"));
            Printer::answer_if_read(&line)?;
        }
        Ok(if free { Exit::DONE } else { Exit(self.busy_code) })
    }
}
