//! The verbs: one file each; `top` has a folder of its own.

pub(crate) mod acquire;
#[cfg(feature = "bench")]
pub(crate) mod bench;
pub(crate) mod break_;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod man;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod sweep;
pub(crate) mod try_;
pub(crate) mod watch;

use crate::cli::Verb;
use crate::context::{Session, block_on, while_read};
use crate::exit::{Exit, Failure};

/// Runs a verb.
pub(crate) fn dispatch(verb: Verb, session: &Session) -> Result<Exit, Failure> {
    match verb {
        Verb::Run(run) => block_on(run.run(session))?,
        Verb::Acquire(acquire) => block_on(acquire.run(session))?,
        Verb::Release(release) => block_on(release.run(session))?,
        Verb::Try(try_) => block_on(try_.run(session))?,
        Verb::Status(status) => block_on(status.run(session))?,
        Verb::Watch(watch) => block_on(while_read(watch.run(session)))?,
        Verb::Top(top) => block_on(top.run(session))?,
        Verb::Break(break_) => block_on(break_.run(session))?,
        Verb::Elect(elect) => block_on(elect.run(session))?,
        Verb::Schema(schema) => block_on(schema.run(session))?,
        Verb::Sweep(sweep) => block_on(sweep.run(session))?,
        Verb::Doctor(doctor) => block_on(doctor.run(session))?,
        #[cfg(feature = "bench")]
        Verb::Bench(bench) => bench.run(session),
        Verb::Completions(completions) => completions.run(),
        Verb::Man(man) => man.run(),
    }
}
