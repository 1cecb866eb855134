//! The signals that the program handles.

use crate::exit::{Exit, Failure};
use rustix::process::Signal;
use std::future::poll_fn;
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// The signals that end a wait, and are forwarded to a command.
const PASSED_ON: &[Signal] =
    &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// The signals that are handled only while a command runs.
const FOR_COMMANDS: &[Signal] = &[Signal::CONT, Signal::WINCH, Signal::TSTP];

/// The streams of the handled signals.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: u64,
}

impl Signals {
    /// Handles the signals that would end the program, except those that our parent had set to be
    /// ignored (as `nohup` does), so that the command ignores them as well.
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut signals = Signals { streams: Vec::new(), ignored: ignored() };
        for signal in PASSED_ON {
            signals.add(*signal)?;
        }
        Ok(signals)
    }

    /// Also handles the signals for a running command. `stops` says whether to forward a stop from
    /// the terminal.
    pub(crate) fn watch_command(&mut self, stops: bool) -> Result<(), Failure> {
        for signal in FOR_COMMANDS.iter().filter(|signal| stops || **signal != Signal::TSTP) {
            self.add(*signal)?;
        }
        Ok(())
    }

    /// Also handles this signal, unless our parent had set it to be ignored.
    pub(crate) fn add(&mut self, signal: Signal) -> Result<(), Failure> {
        let number = signal.as_raw();
        if self.ignored & (1 << (number - 1)) == 0 {
            let stream = unix::signal(SignalKind::from_raw(number)).map_err(|error| {
                let message = format!("cannot watch {}: {error}", name(signal));
                Failure::new(Exit::INTERNAL, "internal", message)
            })?;
            self.streams.push((signal, stream));
        }
        Ok(())
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The signal that has arrived, if there is one.
    pub(crate) async fn arrived(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Some(signal),
            // The runtime looks for signals before it goes on.
            () = tokio::task::yield_now() => None,
        }
    }
}

/// Those of these signals that our parent had not set to be ignored.
#[cfg(feature = "bench")]
pub(crate) fn heeded(signals: &[Signal]) -> Vec<i32> {
    let ignored = ignored();
    let numbers = signals.iter().map(|signal| signal.as_raw());
    numbers.filter(|number| ignored & (1 << (number - 1)) == 0).collect()
}

/// Whether a signal ends a wait: not a change of the terminal's size, nor what stops and continues.
pub(crate) fn ends_waits(signal: Signal) -> bool {
    PASSED_ON.contains(&signal)
}

/// The mask of the signals that were ignored when this process started.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A signal's name, for people.
pub(crate) fn name(signal: Signal) -> String {
    let name = match signal {
        Signal::TERM => "TERM",
        Signal::INT => "INT",
        Signal::HUP => "HUP",
        Signal::QUIT => "QUIT",
        Signal::USR1 => "USR1",
        Signal::USR2 => "USR2",
        other => return format!("signal {}", other.as_raw()),
    };
    format!("signal {name}")
}
