//! Merges file, variables and flags. The only part of the configuration that reads the process's
//! arguments, environment and files.

use super::keys::{KEYS, Key};
use super::{Config, ConfigError, Origin};
use crate::launcher::{LAUNCHER_VARIABLE, NODES_VARIABLE, SOCKET_VARIABLE};
use crate::secret_file;
use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// `SLOWMO_` variables that are not keys: the launcher's process, nodes and socket, the path of the
/// configuration file, the log filter.
pub const RESERVED_VARIABLES: [&str; 5] = [
    LAUNCHER_VARIABLE,
    NODES_VARIABLE,
    SOCKET_VARIABLE,
    CONFIG_VARIABLE,
    "SLOWMO_LOG",
];
/// Largest configuration file, in bytes.
pub const CONFIG_FILE_BYTES_MAX: u64 = 1 << 20;

/// Most variables that a node names as ignored.
const IGNORED_TOLD_MAX: usize = 16;
/// So many characters of a name allow for one mistake.
const CHARACTERS_PER_MISTAKE: usize = 4;

const CONFIG_VARIABLE: &str = "SLOWMO_CONFIG";
const CONFIG_FLAG_KEY: &str = "config";
const VARIABLE_PREFIX: &str = "SLOWMO_";
const FLAG_PREFIX: &str = "--slowmo";

/// Implements [`Config::load`].
pub(super) fn load() -> Result<Config, ConfigError> {
    load_of(std::env::vars_os(), std::env::args_os().skip(1))
}

/// Does what [`Config::load`] does for a process with these variables and arguments.
///
/// # Errors
/// As [`Config::load`].
pub fn load_of(
    variables: impl Iterator<Item = (OsString, OsString)>,
    arguments: impl Iterator<Item = OsString>,
) -> Result<Config, ConfigError> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let arguments: Vec<String> = arguments.map(text).collect();
    let variables: Vec<(String, String)> = variables
        .map(|(name, value)| (text(name), text(value)))
        .collect();
    let file = file_path(&variables, &arguments)?
        .map(|path| read(&path).map(|text| (path, text)))
        .transpose()?;
    let file = file
        .as_ref()
        .map(|(path, text)| (path.as_path(), text.as_str()));
    merge(file, variables.into_iter(), arguments.into_iter())
}

/// Implements [`Config::from_sources`].
pub(super) fn merge(
    file: Option<(&Path, &str)>,
    variables: impl Iterator<Item = (String, String)>,
    arguments: impl Iterator<Item = String>,
) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    if let Some((path, text)) = file {
        apply_file(&mut config, path, text)?;
    }
    apply_variables(&mut config, variables)?;
    let arguments: Vec<String> = arguments.collect();
    for flag in split(&arguments)?
        .flags
        .iter()
        .filter(|flag| flag.key != CONFIG_FLAG_KEY)
    {
        config.set_from(&flag.key, &flag.value, &Origin::Flag(flag.name.clone()))?;
    }
    config.check()?;
    Ok(config)
}

/// The arguments of the user's binary: all but the `--slowmo-*` flags and their values. Everything
/// from `--` on belongs to the user. A parser like clap takes what is left; alone it would refuse
/// `--slowmo-tau` as an unexpected argument.
///
/// ```
/// use clap::Parser;
///
/// #[derive(Parser)]
/// struct Arguments {
///     #[arg(long)]
///     epochs: u64,
/// }
///
/// // As std::env::args() gives them.
/// let typed = || ["train", "--slowmo-tau", "12", "--epochs", "3"].map(String::from).into_iter();
/// assert!(Arguments::try_parse_from(typed()).is_err(), "unexpected argument '--slowmo-tau'");
/// let arguments = Arguments::try_parse_from(slowmo::user_arguments(typed())?)?;
/// assert_eq!(arguments.epochs, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A `--slowmo-*` flag without a value.
pub fn user_arguments(arguments: impl Iterator<Item = String>) -> Result<Vec<String>, ConfigError> {
    let arguments: Vec<String> = arguments.collect();
    split(&arguments).map(|split| split.others)
}

fn file_path(
    variables: &[(String, String)],
    arguments: &[String],
) -> Result<Option<PathBuf>, ConfigError> {
    let flags = split(arguments)?.flags;
    let flag = flags
        .into_iter()
        .rev()
        .find(|flag| flag.key == CONFIG_FLAG_KEY)
        .map(|flag| flag.value);
    let variable = || {
        variables
            .iter()
            .find(|(name, _)| name == CONFIG_VARIABLE)
            .map(|(_, value)| value.clone())
    };
    Ok(flag.or_else(variable).map(PathBuf::from))
}

pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |message: String| ConfigError::FileUnreadable {
        path: path.to_owned(),
        message,
    };
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => ConfigError::FileMissing {
            path: path.to_owned(),
        },
        _ => unreadable(error.to_string()),
    })?;
    let found = file
        .metadata()
        .map_err(|error| unreadable(error.to_string()))?;
    let mut text = String::new();
    let length = file
        .take(CONFIG_FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| unreadable(error.to_string()))?;
    if length as u64 > CONFIG_FILE_BYTES_MAX {
        return Err(unreadable(format!(
            "it is larger than {CONFIG_FILE_BYTES_MAX} bytes"
        )));
    }
    if let Some(fault) = secret_file::fault_of(&found)
        && let Some(key) = secret_in(&text)
    {
        return Err(ConfigError::FileWithSecret {
            path: path.to_owned(),
            key,
            fault,
        });
    }
    Ok(text)
}

/// The first key in a configuration file whose value is a secret. A file that is no TOML has none:
/// it is refused for that.
fn secret_in(text: &str) -> Option<&'static str> {
    let table = DeTable::parse(text).ok()?;
    let mut names = table.get_ref().keys();
    names.find_map(|name| {
        Key::find(name.get_ref())
            .filter(|key| key.is_secret())
            .map(|key| key.name)
    })
}

fn apply_file(config: &mut Config, path: &Path, text: &str) -> Result<(), ConfigError> {
    let line = |offset: usize| {
        1 + text
            .bytes()
            .take(offset)
            .filter(|byte| *byte == b'\n')
            .count()
    };
    let table = DeTable::parse(text).map_err(|error| ConfigError::FileSyntax {
        path: path.to_owned(),
        line: line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut entries: Vec<_> = table.get_ref().iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        let origin = Origin::File {
            path: path.to_owned(),
            line: line(key.span().start),
        };
        let name = key.get_ref().as_ref();
        match plain_text(value.get_ref()) {
            Some(text) => config.set_from(name, &text, &origin)?,
            None if Key::find(name).is_none() && !value.get_ref().is_table() => {
                config.set_from(name, "", &origin)?;
            }
            None => {
                return Err(ConfigError::NotAValue {
                    key: name.to_owned(),
                    origin,
                    found: value.get_ref().type_str(),
                });
            }
        }
    }
    Ok(())
}

/// A TOML value as the text that a variable would hold; `None` for tables, dates and arrays that do
/// not hold only strings.
fn plain_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .ok()
            .map(|number| number.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Array(entries) => {
            let texts: Option<Vec<&str>> = entries
                .iter()
                .map(|entry| entry.get_ref().as_str())
                .collect();
            texts.map(|texts| texts.join(","))
        }
        DeValue::Table(_) | DeValue::Datetime(_) => None,
    }
}

fn apply_variables(
    config: &mut Config,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<(), ConfigError> {
    let is_key =
        |name: &str| name.starts_with(VARIABLE_PREFIX) && !RESERVED_VARIABLES.contains(&name);
    let mut variables: Vec<(String, String)> = variables.filter(|(name, _)| is_key(name)).collect();
    // Sorted, because the environment has no order, and the first error should not depend on it.
    variables.sort();
    for (name, value) in variables {
        let key = name[VARIABLE_PREFIX.len()..].to_lowercase();
        let (nearest, is_meant) = nearest(&key);
        if Key::find(&key).is_some() {
            config.set_from(&key, &value, &Origin::Variable(name))?;
        } else if is_meant {
            let origin = Origin::Variable(name);
            return Err(ConfigError::UnknownKey {
                key,
                origin,
                nearest,
            });
        }
    }
    Ok(())
}

/// The name that is closest to that of an unknown variable, without the prefix, and whether it was
/// probably meant: so few characters differ that the variable is no other tool's.
fn nearest(name: &str) -> (&'static str, bool) {
    let names = KEYS
        .iter()
        .map(|key| key.name)
        .chain([CONFIG_FLAG_KEY, "log"]);
    let by_distance = names.map(|known| (strsim::damerau_levenshtein(known, name), known));
    let Some((distance, nearest)) = by_distance.min_by_key(|(distance, _)| *distance) else {
        return ("", false);
    };
    let mistakes_max = (nearest.len() / CHARACTERS_PER_MISTAKE).max(1);
    (nearest, distance <= mistakes_max)
}

/// Lists the warnings about `SLOWMO_` variables of this process that no setting has the name of:
/// those of another tool.
pub(crate) fn ignored_variables() -> Vec<String> {
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    ignored_of(names)
}

pub(super) fn ignored_of(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_ignored = |name: &String| {
        name.strip_prefix(VARIABLE_PREFIX).is_some_and(|key| {
            !RESERVED_VARIABLES.contains(&name.as_str()) && Key::find(&key.to_lowercase()).is_none()
        })
    };
    let mut names: Vec<String> = names.filter(is_ignored).collect();
    names.sort();
    names.truncate(IGNORED_TOLD_MAX);
    let told = |name: String| {
        let (nearest, _) = nearest(&name[VARIABLE_PREFIX.len()..].to_lowercase());
        let nearest = nearest.to_uppercase();
        format!(
            "variable {name} is ignored: it is no setting of slowmo (the nearest is \
             {VARIABLE_PREFIX}{nearest})"
        )
    };
    names.into_iter().map(told).collect()
}

/// One `--slowmo-*` flag.
struct Flag {
    /// The flag as written, without its value.
    name: String,
    /// The key that the flag names.
    key: String,
    /// The flag's value.
    value: String,
}

/// A command line, split into `--slowmo-*` flags and the user's arguments.
struct Split {
    flags: Vec<Flag>,
    others: Vec<String>,
}

fn split(arguments: &[String]) -> Result<Split, ConfigError> {
    let mut split = Split {
        flags: Vec::new(),
        others: Vec::new(),
    };
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            split.others.push(argument.clone());
            split.others.extend(rest.by_ref().cloned());
        } else if let Some(key) = flag_key(argument) {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (
                    argument.clone(),
                    rest.next_if(|next| !next.starts_with("--")).cloned(),
                ),
            };
            let value = value.ok_or_else(|| ConfigError::MissingValue { flag: name.clone() })?;
            split.flags.push(Flag { name, key, value });
        } else {
            split.others.push(argument.clone());
        }
    }
    Ok(split)
}

/// The key that a flag names; `None` if the flag belongs to the user.
fn flag_key(argument: &str) -> Option<String> {
    let rest = argument.strip_prefix(FLAG_PREFIX)?;
    let rest = rest.strip_prefix(['-', '_'])?;
    let key = rest.split_once('=').map_or(rest, |(key, _)| key);
    Some(key.replace('-', "_"))
}
