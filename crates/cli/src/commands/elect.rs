//! `holdline elect`: campaigns for an election, or observes it.

use crate::context::{Session, check_name, while_read};
use crate::exit::{Exit, Failure};
use crate::job::{HoldArgs, Job, WaitArgs};
use crate::lock_kind::LockKind;
use crate::participant;
use crate::printer::Printer;
use clap::Args;
use holdline::{Election, Leadership};
use serde_json::json;
use std::ffi::OsString;
use std::time::Duration;

/// Stand for election, and run a command while leading
///
/// Without a command, prints one line when it leads, and leads until a signal ends it (exit code 0)
/// or the leadership is lost (76).
#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// The election's name
    name: String,

    /// The value that others see while we lead, such as an address
    #[arg(required_unless_present = "observe", conflicts_with = "observe")]
    value: Option<String>,

    /// Do not stand: print the leader, now and whenever it changes, until a signal. Of the flags
    /// for waiting and holding only --outage applies
    #[arg(long,
          conflicts_with_all = ["wait", "no_wait", "unfair", "poll", "busy_code", "LeaseArgs",
                               "on_loss", "grace"])]
    observe: bool,

    #[command(flatten)]
    wait: WaitArgs,

    #[command(flatten)]
    hold: HoldArgs,

    /// The command to run while leading
    #[arg(last = true, conflicts_with = "observe", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Elect {
    pub(crate) async fn run(self, session: &Session) -> Result<Exit, Failure> {
        if self.observe {
            return while_read(observe(session, &self.name, self.wait.outage)).await;
        }
        let Elect { name, value, wait, hold, command, .. } = self;
        let value = value.or_else(|| Some(String::new()));
        // A service stays a candidate, however long the outage.
        let outage = Duration::MAX;
        let job = Job {
            name,
            also: Vec::new(),
            lock_kind: LockKind::MUTEX,
            value,
            wait,
            hold,
            min_hold: None,
            outage,
            no_fork: false,
            shell: false,
            export_store: true,
            command,
        };
        job.run(session).await
    }
}

async fn observe(session: &Session, name: &str, outage: Option<Duration>) -> Result<Exit, Failure> {
    check_name(name)?;
    let opened = session.open_to_wait(None).await?;
    let client =
        session.with_response_timeout(opened.client).outage(outage.unwrap_or(Duration::MAX));
    let mut observer = Election::new(&client, name).observe();
    loop {
        let leader = observer.next().await?;
        if !Printer::answer(&show(session, leader.as_ref()))? {
            return Ok(Exit::DONE);
        }
    }
}

fn show(session: &Session, leader: Option<&Leadership>) -> String {
    match leader {
        _ if session.printer.json => json!({
            "leader": leader.map(|leader| participant::json(&leader.participant)),
        })
        .to_string(),
        Some(leader) => {
            let value = crate::printer::clean(&leader.value);
            let token = participant::token_words(leader.token);
            format!("{value}\t{token}\t{}", participant::place(&leader.participant))
        }
        None => "nobody leads".to_owned(),
    }
}
