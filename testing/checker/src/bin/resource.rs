//! Serves the guarded resource until a client stops it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use holdline_checker::{Writer, resource::Server};

/// Serve the guarded resource of fault tests on a unix datagram socket, and write its history.
#[derive(Debug, Parser)]
#[command(name = "holdline-resource", version)]
struct Args {
    /// Where to make the socket.
    socket: PathBuf,
    /// The history file to append to.
    history: PathBuf,
    /// The name of the run in the history.
    #[arg(long, default_value = "run")]
    run: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let served = Writer::open(&args.history, &args.run, "resource")
        .and_then(|history| Server::bind(&args.socket)?.run(&history));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("The guarded resource at {} stopped: {error}.", args.socket.display());
            ExitCode::FAILURE
        }
    }
}
