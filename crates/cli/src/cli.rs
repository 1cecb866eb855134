//! The command line.

#[cfg(feature = "bench")]
use crate::commands::bench;
use crate::commands::{
    acquire, break_, completions, doctor, elect, man, release, run, schema, status, sweep, try_,
    watch,
};
use crate::exit::Failure;
use crate::{defaults, duration, env, exit, top};
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

const EXAMPLES: &str = "\
Examples:
  holdline run nightly-report -- ./report.sh     wait for the lock, then run
  holdline run -n nightly-report -- ./report.sh  run only if nobody else does
  holdline run --permits 1/4 uploads -- ./up.sh  four at a time
  holdline status                                who holds what, and who waits
  holdline run --help                            all there is to say about `run`
";

/// Run a command while holding a distributed lock; see who holds and who waits
#[derive(Debug, Parser)]
#[command(name = "holdline", version, arg_required_else_help = true)]
#[command(subcommand_required = true, disable_help_subcommand = true)]
pub(crate) struct Cli<V: Subcommand = Verb> {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: V,
}

/// The flags of all verbs.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Where the locks are: a URL such as sqlite:PATH
    ///
    /// Without this and HOLDLINE_STORE, the default is /var/lib/holdline/locks.db if it exists,
    /// which the users of this machine share, or else a file in the user's state directory. Prefer
    /// the environment for a URL with a password: other users cannot see it there.
    #[arg(help_heading = "General", long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Print JSON: answers on stdout, events as lines on stderr
    #[arg(help_heading = "General", long, global = true)]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(help_heading = "General", long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Print more; twice or more, also the library's events (HOLDLINE_LOG selects them)
    #[arg(help_heading = "General", long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Time limit for opening the store and its first answer
    /// [default: 1.8s, but 15s for verbs that wait]
    #[arg(help_heading = "General",
          long, global = true, value_name = "TIME", value_parser = duration::parse_limit)]
    pub(crate) connect_timeout: Option<Duration>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(run::Run),
    Acquire(acquire::Acquire),
    Release(release::Release),
    Try(try_::Try),
    Status(status::Status),
    Watch(watch::Watch),
    Top(top::Top),
    Break(break_::Break),
    Elect(elect::Elect),
    Schema(schema::Schema),
    Sweep(sweep::Sweep),
    Doctor(doctor::Doctor),
    #[cfg(feature = "bench")]
    Bench(Box<bench::Bench>),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Verb {
    /// Whether it uses the store of `--store`. A store that makes no sense does not keep the others
    /// from their work, such as a release.
    pub(crate) fn uses_store(&self) -> bool {
        match self {
            Verb::Release(_) | Verb::Schema(_) | Verb::Completions(_) | Verb::Man(_) => false,
            Verb::Doctor(doctor) => doctor.uses_store(),
            #[cfg(feature = "bench")]
            Verb::Bench(bench) => bench.uses_store(),
            _ => true,
        }
    }
}

/// The verb that is used most often, without the others.
#[derive(Debug, Subcommand)]
enum RunAlone {
    Run(run::Run),
}

/// The width of the sections below the flags: that of a usual narrow terminal.
const WIDTH: usize = 80;

/// A line of a table below the flags; a long text continues below its beginning.
pub(crate) fn row(head: &str, indent: usize, text: &str) -> String {
    let mut lines = format!("  {head:<0$}", indent - 2);
    let mut width = indent;
    for word in text.split(' ') {
        if width + word.width() > WIDTH {
            lines.truncate(lines.trim_end().len());
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            width = indent;
        }
        lines.push_str(word);
        lines.push(' ');
        width += word.width() + 1;
    }
    lines.truncate(lines.trim_end().len());
    lines.push('\n');
    lines
}

/// The command, with the sections below its flags.
pub(crate) fn command() -> clap::Command {
    let below = format!("{}\n{}", env::table(), exit::table());
    let brief = format!("{EXAMPLES}\nUse --help for exit codes and the environment.");
    <Cli>::command()
        .after_help(brief)
        .after_long_help(format!("{EXAMPLES}\n{below}"))
        .mut_subcommands(|verb| verb.mut_args(with_negative_numbers))
        .mut_subcommand("acquire", |verb| verb.after_long_help(acquire::EXAMPLES))
        .mut_subcommand("run", |run| run.after_long_help(format!("{}\n{below}", run::EXAMPLES)))
}

/// Lets a time or a number begin with a dash, so that it is refused as a value, and not as a flag.
fn with_negative_numbers(arg: Arg) -> Arg {
    let names = arg.get_value_names().unwrap_or_default();
    let is_number = names.iter().any(|name| matches!(name.as_str(), "TIME" | "N" | "PID"));
    arg.allow_hyphen_values(is_number)
}

/// Parses the command line, with the defaults from the environment and the file. The inner error is
/// clap's, which also shows help.
pub(crate) fn parse() -> Result<Result<Cli, clap::Error>, Failure> {
    let args = words;
    if args().nth(1).is_some_and(|word| word == "run")
        && let Some(cli) = parse_run(args)
    {
        return Ok(Ok(cli));
    }
    // The tree of flags is never freed: that would cost time.
    let mut command = ManuallyDrop::new(defaults::apply(command(), args())?);
    let matches = command.try_get_matches_from_mut(args());
    Ok(matches.and_then(|matches| Cli::from_arg_matches(&matches)))
}

/// The words of the command line. `help VERB` is another way to say `VERB --help`.
fn words() -> impl Iterator<Item = OsString> {
    let mut words = std::env::args_os();
    let program = words.next();
    let mut words = words.peekable();
    let asks_for_help = words.next_if(|word| word == "help").is_some();
    program.into_iter().chain(words).chain(asks_for_help.then(|| "--help".into()))
}

/// Parses a command line of `run`, with only that verb's flags: building those of all verbs takes
/// longer than everything else that the program does in a short run. `None` if anything is wrong,
/// or help is requested: then the whole command answers. A wrong default for another verb goes
/// unnoticed.
fn parse_run<I: Iterator<Item = OsString>>(args: impl Fn() -> I) -> Option<Cli> {
    let command = defaults::apply(Cli::<RunAlone>::command(), args()).ok()?;
    let mut command = ManuallyDrop::new(command);
    let matches = command.try_get_matches_from_mut(args()).ok()?;
    let Cli { common, verb: RunAlone::Run(run) } = Cli::from_arg_matches(&matches).ok()?;
    Some(Cli { common, verb: Verb::Run(run) })
}

#[cfg(test)]
mod tests {
    use super::{Cli, command, parse_run};
    use clap::FromArgMatches;

    #[test]
    fn run_alone_is_read_as_among_all_verbs() {
        for (line, good) in [
            ("run x true", true),
            ("run x --wait 5s -E 3 --json -- true --wait", true),
            ("run --store sqlite:a --permits 1/4 --lease 3s -vv x -c true", true),
            ("run", false),
            ("run --help", false),
            ("run -V", false),
            ("run x --wait 5q true", false),
            ("run x -n -w 5s true", false),
            ("run x --observe true", false),
        ] {
            let args = || ["holdline"].into_iter().chain(line.split(' ')).map(Into::into);
            let matches = command().try_get_matches_from(args()).ok();
            let among_all = matches.map(|matches| Cli::from_arg_matches(&matches).unwrap());
            let alone = parse_run(args);
            assert_eq!(alone.is_some(), good, "{line}");
            assert_eq!(format!("{alone:?}"), format!("{:?}", among_all as Option<Cli>), "{line}");
        }
    }
}
