//! Defaults of flags: `--wait` is also `HOLDLINE_WAIT` in the environment, and `wait` in a file.
//!
//! They become clap's default values. So a flag on the command line takes precedence, and never
//! conflicts with them.

use crate::exit::Failure;
use clap::{Arg, ArgAction, Command};
use std::env::{var, var_os};
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

/// Sets the defaults.
pub(crate) fn apply(mut command: Command) -> Result<Command, Failure> {
    let file = File::find()?;
    file.check(&command)?;
    // Most runs have no defaults: nothing is copied for them.
    let mut defaults = Vec::new();
    for verb in std::iter::once(None).chain(command.get_subcommands().map(Some)) {
        let name = verb.map(Command::get_name);
        for flag in flags(verb.unwrap_or(&command)) {
            if let Some(value) = file.value(name, flag)? {
                defaults.push((name.map(str::to_owned), flag.get_id().clone(), value));
            }
        }
    }
    for (verb, flag, value) in defaults {
        let set = |arg| with_default(arg, value);
        command = match verb {
            None => command.mut_arg(flag, set),
            Some(verb) => command.mut_subcommand(verb, |verb| verb.mut_arg(flag, set)),
        };
    }
    Ok(command)
}

/// Help shows defaults, except that of the store, whose URL may contain a password.
fn with_default(arg: Arg, value: String) -> Arg {
    let is_secret = arg.get_long() == Some("store");
    arg.default_value(value).hide_default_value(is_secret)
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
        let home = var_os("HOME").map(|home| Path::new(&home).join(".config"));
        let folder = var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
        let own = folder.map(PathBuf::from).or(home).map(|path| path.join("holdline/config.toml"));
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
                Err(error) => Err(refuse(toml::de::Error::message(&error).to_owned())),
            },
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(refuse(error.to_string())),
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
                (Value::Table(_), None) => Some(key.clone()),
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
    fn value(&self, verb: Option<&str>, flag: &Arg) -> Result<Option<String>, Failure> {
        let long = flag.get_long().unwrap_or_default();
        let name = variable(long);
        if let Ok(text) = var(&name) {
            return read(flag, &text).map_err(|why| Failure::usage(format!("{name}: {why}")));
        }
        let section = verb.and_then(|verb| self.table.get(verb)).and_then(Value::as_table);
        let found = section.and_then(|section| section.get(long)).or_else(|| self.table.get(long));
        let Some(found) = found else { return Ok(None) };
        let text = match found {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(on) => on.to_string(),
            _ => return Err(self.fault(&format!("\"{long}\" must be a text, a number, or true"))),
        };
        read(flag, &text).map_err(|why| self.fault(&format!("\"{long}\": {why}")))
    }
}

/// A default as clap reads it; none for an empty text, or for a flag that is off.
fn read(flag: &Arg, text: &str) -> Result<Option<String>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some("true".to_owned())),
            "0" | "false" | "no" | "off" => Ok(None),
            _ => Err("write true or false".to_owned()),
        };
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
    Arg::new(long.clone()).long(long).action(ArgAction::Set).value_parser(parser)
}
