//! The files for clusters name only things that are there: keys, commands and their flags, fields
//! of the status, lines of the log, links. Reads the repository, and runs the binary for its help.

use slowmo::internal::config::RESERVED_VARIABLES;
use slowmo::internal::config::keys::Key;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of ops/ that are no Rust.
const FOLDERS: [&str; 4] = ["kubernetes", "runbooks", "slurm", "systemd"];
/// Where log lines and errors come from.
const SOURCES: [&str; 3] = ["actors/src", "actors/protocol/src", "runtime/src"];
/// Where fields of the status are declared.
const FIELDS: [&str; 3] = [
    "runtime/src/status.rs",
    "actors/src/status.rs",
    "ops/src/commands/job.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn files_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_under(&path, found)
        } else {
            found.push(path)
        }
    }
}

/// Every file for clusters, with its text.
fn texts() -> Vec<(String, String)> {
    let mut files = vec![root().join("ops/Dockerfile")];
    FOLDERS
        .iter()
        .for_each(|folder| files_under(&root().join("ops").join(folder), &mut files));
    files
        .into_iter()
        .map(|path| {
            (
                path.strip_prefix(root()).unwrap().display().to_string(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect()
}

fn runbooks() -> Vec<(String, String)> {
    texts()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".md"))
        .collect()
}

/// The lines of the boxes of one kind.
fn boxed<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let begin = format!("```{kind}");
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.trim() {
            fence if fence.starts_with("```") => inside = fence == begin,
            line if inside => lines.push(line),
            _ => {}
        }
    }
    lines
}

/// Lists the texts between backticks, outside boxes.
fn quoted(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut plain = String::new();
    for line in text.lines() {
        let fence = line.trim().starts_with("```");
        inside ^= fence;
        if !inside && !fence {
            plain.push_str(line);
            plain.push(' ');
        }
    }
    plain
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn words_of(text: &str, is_part: impl Fn(char) -> bool) -> BTreeSet<&str> {
    text.split(|character| !is_part(character))
        .filter(|word| !word.is_empty())
        .collect()
}

#[test]
fn variables_are_keys() {
    let mut named = 0;
    for (file, text) in texts() {
        for word in words_of(&text, |character| {
            character.is_ascii_uppercase() || character.is_ascii_digit() || character == '_'
        }) {
            // A bare prefix stands for all of them.
            let Some(key) = word.strip_prefix("SLOWMO_").filter(|key| !key.is_empty()) else {
                continue;
            };
            let known =
                Key::find(&key.to_lowercase()).is_some() || RESERVED_VARIABLES.contains(&word);
            assert!(known, "{file} names {word}, which is no key");
            named += 1;
        }
    }
    assert!(named > 40, "only {named} were found: the search is broken");
}

#[test]
fn settings_in_runbooks_are_keys() {
    let mut named = 0;
    for (file, text) in runbooks() {
        for setting in quoted(&text)
            .iter()
            .filter_map(|quoted| quoted.split_once(" = "))
        {
            let (name, _) = setting;
            let is_name = name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            if is_name {
                assert!(
                    Key::find(name).is_some(),
                    "{file} names {name}, which is no key"
                );
                named += 1;
            }
        }
    }
    assert!(named > 15, "only {named} were found: the search is broken");
}

fn help_of(command: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
        .args(command)
        .arg("--help")
        .output()
        .unwrap();
    assert!(output.status.success(), "slowmo {command:?} is no command");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the text after the command slowmo, also where something runs it elsewhere.
fn command_line(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("slowmo ")?;
    let runs_it = ["-- ", "-n1 ", "&& "]
        .iter()
        .any(|end| before.ends_with(end));
    (before.is_empty() || runs_it).then_some(rest)
}

#[test]
fn commands_and_flags_exist() {
    let mut named = 0;
    for (file, text) in texts() {
        let lines: Vec<String> = boxed(&text, "sh")
            .into_iter()
            .map(str::to_owned)
            .chain(quoted(&text))
            .collect();
        for line in lines {
            let line = line.split(" # ").next().unwrap().trim_end();
            let Some(rest) = command_line(line) else {
                continue;
            };
            // The training binary's own arguments come behind two dashes.
            let words: Vec<&str> = rest
                .split_whitespace()
                .take_while(|word| !["--", "&&", "|"].contains(word))
                .collect();
            let flags = words.iter().filter(|word| word.starts_with("--"));
            let is_group = words
                .first()
                .is_some_and(|word| ["bench", "checkpoint", "chaos"].contains(word));
            let command: Vec<&str> = words
                .iter()
                .copied()
                .take(if is_group { 2 } else { 1 })
                .collect();
            let help = help_of(&command);
            for flag in flags {
                assert!(
                    help.contains(flag.split('=').next().unwrap()),
                    "{file}: slowmo {command:?} has no flag {flag}"
                );
            }
            named += 1;
        }
    }
    assert!(named > 25, "only {named} were found: the search is broken");
}

#[test]
fn probes_and_drains_of_manifests_make_sense() {
    let statefulset =
        fs::read_to_string(root().join("ops/kubernetes/base/statefulset.yaml")).unwrap();
    let commands: Vec<&str> = statefulset
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("command: [slowmo, ")?
                .strip_suffix(']')
        })
        .collect();
    assert_eq!(commands.len(), 4);
    for command in commands {
        let arguments = command
            .split(", ")
            .map(|argument| argument.trim_matches('"'));
        let output = Command::new(env!("CARGO_BIN_EXE_slowmo"))
            .args(arguments)
            .output()
            .unwrap();
        // Nobody listens there; 2 would say that the arguments make no sense.
        assert_eq!(
            output.status.code(),
            Some(1),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn fields_of_the_status_exist() {
    let declared: String = FIELDS
        .iter()
        .map(|file| fs::read_to_string(root().join(file)).unwrap())
        .collect();
    let mut named = 0;
    for (file, text) in runbooks() {
        for path in quoted(&text)
            .into_iter()
            .filter(|quoted| quoted.starts_with('.') && !quoted.contains('/'))
        {
            for field in path
                .split('.')
                .map(|field| field.trim_end_matches("[]"))
                .filter(|field| !field.is_empty())
            {
                assert!(
                    declared.contains(&format!("    {field}: "))
                        || declared.contains(&format!("pub {field}: ")),
                    "{file}: {path}"
                );
            }
            named += 1;
        }
    }
    assert!(named > 15, "only {named} were found: the search is broken");
}

/// Joins strings that continue in the next line of the code.
fn joined(code: &str) -> String {
    code.split("\\\n").map(str::trim_start).collect()
}

#[test]
fn lines_of_the_log_are_in_the_code() {
    let mut files = Vec::new();
    SOURCES
        .iter()
        .for_each(|folder| files_under(&root().join(folder), &mut files));
    let code: String = files
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(|path| joined(&fs::read_to_string(path).unwrap()))
        .collect();
    let lines: Vec<(String, String)> = runbooks()
        .iter()
        .flat_map(|(file, text)| {
            boxed(text, "log")
                .into_iter()
                .map(|line| (file.clone(), line.to_owned()))
        })
        .collect();
    for (file, line) in &lines {
        assert!(
            code.contains(line.as_str()),
            "{file}: no code logs {line:?}"
        );
    }
    assert!(
        lines.len() > 15,
        "only {} were found: the search is broken",
        lines.len()
    );
}

#[test]
fn links_lead_somewhere() {
    let mut named = 0;
    for (file, text) in runbooks() {
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            assert!(
                root().join(&file).parent().unwrap().join(link).exists(),
                "{file}: there is no {link}"
            );
            named += 1;
        }
    }
    assert!(named > 8, "only {named} were found: the search is broken");
}
