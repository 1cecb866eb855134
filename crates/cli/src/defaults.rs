//! Defaults of flags: `--wait` is also `HOLDLINE_WAIT` in the environment, and `wait` in a file.
//!
//! They become clap's default values. So a flag on the command line takes precedence, also over the
//! defaults of other flags that contradict it; and so does one default over another.

use crate::exit::Failure;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, Id};
use std::env::{VarError, var, var_os};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The variable that names the file; empty for none.
pub(crate) const CONFIG: &str = "HOLDLINE_CONFIG";
/// The file for users without one of their own.
const SYSTEM: &str = "/etc/holdline.toml";
/// The flags without a default: each call must give them.
const WITHOUT: &[&str] =
    &["help", "version", "also", "shell", "no-fork", "observe", "yes", "install", "worker"];

/// The origin of a default: the earlier ones take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Environment,
    Section,
    File,
}

/// A default of one flag.
struct FlagDefault {
    origin: Origin,
    /// The verb of the flag; `None` for a flag of all verbs.
    verb: Option<String>,
    flag: Id,
    /// The flags that contradict it.
    rivals: Vec<Id>,
    value: String,
}

/// Sets the defaults for a command line.
pub(crate) fn apply(
    mut command: Command,
    args: impl Iterator<Item = OsString>,
) -> Result<Command, Failure> {
    // Most runs have no defaults: nothing is copied for them.
    let mut defaults = find(&command)?;
    if defaults.iter().any(|default| !default.rivals.is_empty()) {
        let given = given(&command, args);
        defaults.sort_by_key(|default| default.origin);
        let mut kept: Vec<FlagDefault> = Vec::new();
        for default in defaults {
            let is_rival = |other: &FlagDefault| {
                other.verb == default.verb && default.rivals.contains(&other.flag)
            };
            if !default.rivals.iter().any(|rival| given.contains(rival))
                && !kept.iter().any(is_rival)
            {
                kept.push(default);
            }
        }
        defaults = kept;
    }
    for FlagDefault { verb, flag, value, .. } in defaults {
        let set = |arg| with_default(arg, value);
        command = match verb {
            None => command.mut_arg(flag, set),
            Some(verb) => command.mut_subcommand(verb, |verb| verb.mut_arg(flag, set)),
        };
    }
    Ok(command)
}

/// All defaults.
fn find(command: &Command) -> Result<Vec<FlagDefault>, Failure> {
    let file = File::find()?;
    file.check(command)?;
    let mut defaults = Vec::new();
    for verb in std::iter::once(None).chain(command.get_subcommands().map(Some)) {
        let name = verb.map(Command::get_name);
        let command = verb.unwrap_or(command);
        for flag in flags(command) {
            if let Some((origin, value)) = file.value(name, flag)? {
                let (verb, rivals) = (name.map(str::to_owned), rivals(command, flag));
                defaults.push(FlagDefault {
                    origin,
                    verb,
                    flag: flag.get_id().clone(),
                    rivals,
                    value,
                });
            }
        }
    }
    Ok(defaults)
}

/// The flags and arguments of a command that contradict this flag.
fn rivals(command: &Command, flag: &Arg) -> Vec<Id> {
    let contradicts = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let others = command.get_arguments();
    let rivals = others.filter(|other| contradicts(flag, other) || contradicts(other, flag));
    rivals.map(|rival| rival.get_id().clone()).collect()
}

/// The flags and arguments on the command line, of whatever verb.
fn given(command: &Command, args: impl Iterator<Item = OsString>) -> Vec<Id> {
    let mut given = Vec::new();
    // Errors are reported when it is parsed with the defaults.
    let matches = command.clone().ignore_errors(true).try_get_matches_from(args).ok();
    let mut level = matches.as_ref();
    while let Some(matches) = level {
        let is_given =
            |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        given.extend(matches.ids().filter(is_given).cloned());
        level = matches.subcommand().map(|(_, below)| below);
    }
    given
}

/// Help shows defaults, except that of the store, whose URL may contain a password.
fn with_default(arg: Arg, value: String) -> Arg {
    let is_secret = is_store(&arg);
    arg.default_value(value).required(false).hide_default_value(is_secret)
}

fn is_store(flag: &Arg) -> bool {
    flag.get_long() == Some("store")
}

/// The flags of a command that may have a default.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| arg.get_long().is_some_and(|long| !WITHOUT.contains(&long)))
}

/// The environment variable of a flag.
fn variable(long: &str) -> String {
    format!("HOLDLINE_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// A file of defaults: keys for all verbs, and a table for each verb.
#[derive(Default)]
struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// Reads the file named in `HOLDLINE_CONFIG`, the user's, or the system's.
    fn find() -> Result<File, Failure> {
        if let Some(path) = var_os(CONFIG) {
            if path.is_empty() {
                return Ok(File::default());
            }
            return File::read(Path::new(&path))?.ok_or_else(|| {
                let why = format!("there is no file {} ({CONFIG})", path.to_string_lossy());
                Failure::usage(why)
            });
        }
        // A relative path would be another file in each folder, and maybe another user's.
        let absolute = |name| var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".config"));
        let folder = absolute("XDG_CONFIG_HOME").or_else(home);
        let own = folder.map(|path| path.join("holdline/config.toml"));
        for path in own.iter().map(PathBuf::as_path).chain([Path::new(SYSTEM)]) {
            if let Some(file) = File::read(path)? {
                return Ok(file);
            }
        }
        Ok(File::default())
    }

    fn read(path: &Path) -> Result<Option<File>, Failure> {
        let refuse = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        match std::fs::read_to_string(path) {
            Ok(text) => match text.parse() {
                Ok(table) => Ok(Some(File { path: path.to_owned(), table })),
                // Without the line itself, which may contain a password.
                Err(error) => Err(refuse(place_and_reason(&text, &error))),
            },
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(refuse(format!(
                "{error}; let this user read it, or name another file in {CONFIG} (empty: none)"
            ))),
        }
    }

    fn fault(&self, why: &str) -> Failure {
        Failure::usage(format!("{}: {why}", self.path.display()))
    }

    /// Refuses keys that no verb has.
    fn check(&self, command: &Command) -> Result<(), Failure> {
        let has =
            |command: &Command, key: &str| flags(command).any(|flag| flag.get_long() == Some(key));
        for (key, value) in &self.table {
            let verb = command.find_subcommand(key);
            let unknown = match (value, verb) {
                (Value::Table(section), Some(verb)) => {
                    section.keys().find(|key| !has(verb, key)).map(|inner| format!("{key}.{inner}"))
                }
                (Value::Table(_), None) => {
                    let meant = similar_verb(command, key);
                    let meant = meant.map(|verb| format!(" (did you mean [{verb}]?)"));
                    let meant = meant.unwrap_or_default();
                    return Err(self.fault(&format!("[{key}] is a table, but no verb{meant}")));
                }
                _ if has(command, key) || command.get_subcommands().any(|verb| has(verb, key)) => {
                    None
                }
                _ => Some(key.clone()),
            };
            if let Some(key) = unknown {
                return Err(self.fault(&format!("\"{key}\" is no flag that has a default")));
            }
        }
        Ok(())
    }

    /// The default of a flag, by the environment or by the file.
    fn value(&self, verb: Option<&str>, flag: &Arg) -> Result<Option<(Origin, String)>, Failure> {
        let long = flag.get_long().unwrap_or_default();
        let name = variable(long);
        let given = match var(&name) {
            Ok(text) => Some(read(flag, &text)),
            Err(VarError::NotUnicode(_)) => Some(Err("it is not UTF-8".to_owned())),
            Err(VarError::NotPresent) => None,
        };
        if let Some(given) = given {
            let given = given.map_err(|why| Failure::usage(format!("{name}: {why}")))?;
            return Ok(given.map(|text| (Origin::Environment, text)));
        }
        let section = verb.and_then(|verb| self.table.get(verb)).and_then(Value::as_table);
        let in_section = section.and_then(|section| section.get(long));
        let origin = if in_section.is_some() { Origin::Section } else { Origin::File };
        let Some(found) = in_section.or_else(|| self.table.get(long)) else { return Ok(None) };
        let text = match found {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(on) => on.to_string(),
            _ => return Err(self.fault(&format!("\"{long}\" must be a text, a number, or true"))),
        };
        let read = read(flag, &text).map_err(|why| self.fault(&format!("\"{long}\": {why}")))?;
        Ok(read.map(|text| (origin, text)))
    }
}

/// The verb that resembles this word, as the error for an unknown verb suggests it.
fn similar_verb(command: &Command, word: &str) -> Option<String> {
    let error = command.clone().try_get_matches_from(["holdline", word]).err()?;
    match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::Strings(verbs) => verbs.last().cloned(), // the most similar
        _ => None,
    }
}

/// "line 3: ...".
fn place_and_reason(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", before.matches('\n').count() + 1));
    format!("{}{}", line.unwrap_or_default(), error.message())
}

/// Whether the environment asks for JSON, even if the command line or the file makes no sense.
pub(crate) fn json_by_environment() -> bool {
    var(variable("json")).is_ok_and(|text| on_or_off(&text) == Some(true))
}

fn on_or_off(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A default as clap reads it; none for an empty text, or for a flag that is off. An empty store is
/// passed on, so that verbs that need a store refuse it.
fn read(flag: &Arg, text: &str) -> Result<Option<String>, String> {
    if text.is_empty() {
        return Ok(is_store(flag).then(String::new));
    }
    let is_counted = matches!(flag.get_action(), ArgAction::Count);
    if is_counted || matches!(flag.get_action(), ArgAction::SetTrue) {
        let on = if is_counted { "1" } else { "true" };
        match on_or_off(text) {
            Some(is_on) => return Ok(is_on.then(|| on.to_owned())),
            None if is_counted => {}
            None => return Err("write true or false".to_owned()),
        }
    }
    // The flag alone, so that an error is reported with the place of the default.
    let alone = Command::new("").disable_help_flag(true).arg(alone(flag));
    let given = format!("--{}={text}", flag.get_long().unwrap_or_default());
    match alone.try_get_matches_from(["", &given]) {
        Ok(_) => Ok(Some(text.to_owned())),
        Err(error) => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Err(first.to_owned())
        }
    }
}

/// The flag without its relations to others.
fn alone(flag: &Arg) -> Arg {
    let long = flag.get_long().unwrap_or_default().to_owned();
    let parser = flag.get_value_parser().clone();
    let alone = Arg::new(long.clone()).long(long).action(ArgAction::Set).value_parser(parser);
    let alone = alone.value_names(flag.get_value_names().unwrap_or_default().to_vec());
    match flag.get_value_delimiter() {
        Some(delimiter) => alone.action(ArgAction::Append).value_delimiter(delimiter),
        None => alone,
    }
}
