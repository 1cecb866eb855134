//! The tables and procedures: their text and their installation.

use super::config::{Config, Scheme};
use super::connection::{SCHEMA as VERSION, ask, bare, check_product, connect};
use super::{opts, shedlock, text};
use crate::clock;
use crate::error::Result;
use crate::stores::queue::shedlock::not_swept;
use crate::stores::queue::sql::{Fault, answered, check_version};
use mysql_async::Conn;
use std::time::Duration;

/// The tables and procedures of the lease table, as input for the `mysql` or `mariadb` program.
/// Installing them again changes nothing.
pub(crate) const SCHEMA: &str = concat!(
    include_str!("sql/tables.sql"),
    "\n",
    include_str!("sql/queue.sql"),
    "\n",
    include_str!("sql/enter.sql"),
    "\n",
    include_str!("sql/leave.sql"),
    "\n",
    include_str!("sql/sweep.sql"),
    "\n",
    include_str!("sql/session.sql"),
);

/// The time limit of an installation, and of a part of a sweep.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a part of a sweep goes on.
const PART: Duration = Duration::from_secs(5);

/// See [`install`](crate::schema::install). `rest` follows the colon of the URL.
pub(crate) async fn install(rest: &str) -> Result<String> {
    let config = Config::read(rest)?;
    install_at(&config).await?;
    let what = match config.scheme {
        Scheme::Shedlock => "ShedLock's table".to_owned(),
        _ => format!("version {VERSION} of the tables and procedures for locks"),
    };
    Ok(format!("{config} has {what}"))
}

/// Installs what the scheme needs, even if it already exists; a newer version is refused.
pub(super) async fn install_at(config: &Config) -> Result<()> {
    let options = opts::of(config)?;
    let work = async {
        check_product(&options, config).await?;
        let mut conn = bare(&options).await?;
        let (text, installed) = match config.scheme {
            Scheme::Shedlock => (shedlock::CREATE, VERSION),
            Scheme::Table | Scheme::Row | Scheme::Named => (SCHEMA, installed(&mut conn).await?),
        };
        if installed > VERSION {
            check_version(config, "mysql", installed, VERSION)?;
        }
        for statement in statements(text) {
            match ask(&mut conn, &statement).await {
                // Another client has just created it.
                Err(fault) if fault.is(&["1050", "1304"]) => {}
                outcome => drop(outcome?),
            }
        }
        if installed < VERSION {
            let sql = format!("UPDATE holdline_schema SET version = {VERSION} WHERE one = 1");
            ask(&mut conn, &sql).await?;
        }
        Ok::<_, Fault>(())
    };
    answered(clock::now().after(LIMIT), work).await.map_err(|fault| fault.explain(config, ""))
}

/// The version of the tables that are installed. If there are none, or the user may not read it,
/// which an installation does not need, this version.
async fn installed(conn: &mut Conn) -> Result<i32, Fault> {
    match ask(conn, "SELECT version FROM holdline_schema WHERE one = 1").await {
        Ok(answer) => Ok(answer.first().number(0).unwrap_or(VERSION)),
        Err(fault) if fault.is(&["1142", "1146"]) => Ok(VERSION),
        Err(fault) => Err(fault),
    }
}

/// See [`sweep`](crate::schema::sweep).
pub(crate) async fn sweep(rest: &str, idle: Duration) -> Result<u64> {
    let config = Config::read(rest)?;
    if config.scheme == Scheme::Shedlock {
        return Err(not_swept(&config));
    }
    let options = opts::of(&config)?;
    let part = async || {
        let mut conn = connect(&options, &config).await?;
        let answer = ask(&mut conn, &text::sweep(idle, PART)).await?;
        let row = answer.first();
        let number = |at| row.number::<u64>(at).unwrap_or(0);
        Ok::<_, Fault>((number(0), number(1) > 0))
    };
    let mut swept = 0;
    loop {
        let done = answered(clock::now().after(LIMIT), part()).await;
        let (lines, more) = done.map_err(|fault| fault.explain(&config, ""))?;
        swept += lines;
        if !more {
            return Ok(swept);
        }
    }
}

/// The statements of a text with `DELIMITER` lines, which only the client program understands.
pub(super) fn statements(text: &str) -> Vec<String> {
    let (mut statements, mut statement, mut end) = (Vec::new(), String::new(), ";");
    for line in text.lines().filter(|line| !line.starts_with("--") && !line.is_empty()) {
        if let Some(delimiter) = line.strip_prefix("DELIMITER ") {
            end = delimiter;
        } else if let Some(last) = line.strip_suffix(end) {
            statements.push(std::mem::take(&mut statement) + last);
        } else {
            statement.push_str(line);
            statement.push('\n');
        }
    }
    statements
}
