//! The settings as flags, and `forebay config`, which prints them.
//! Promises that a flag beats the environment and that secrets are masked.
//! Does not know what the settings mean; the table does.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde::Serialize;

use super::Failed;
use crate::config::{self, Config, Setting, TABLE};

/// The settings that were given as flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    given: BTreeMap<&'static str, String>,
}

impl Flags {
    /// The value of a setting: from its flag, else from the environment.
    pub(crate) fn look_up(&self, name: &str) -> Option<String> {
        self.given.get(name).cloned().or_else(|| config::environment(name))
    }

    /// The whole configuration.
    pub(crate) fn config(&self) -> Result<Config, Failed> {
        Ok(Config::read(&|name| self.look_up(name))?)
    }
}

impl Flags {
    /// The configuration for a command that does not need these settings: they may be missing.
    pub(crate) fn config_without(&self, unneeded: &[(&str, &str)]) -> Result<Config, Failed> {
        let look_up = |name: &str| {
            let is_given = |file: String| self.look_up(&file).is_some();
            let passing = unneeded.iter().find(|(setting, _)| *setting == name);
            let passing = passing.filter(|_| !is_given(format!("{name}_FILE")));
            self.look_up(name).or_else(|| passing.map(|(_, value)| (*value).to_owned()))
        };
        Ok(Config::read(&look_up)?)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for row in flagged() {
            if let Some(value) = matches.get_one::<String>(row.name) {
                self.given.insert(row.name, value.clone());
            }
        }
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let secrets: Vec<&str> =
            TABLE.iter().filter(|row| row.secret).map(|row| row.name).collect();
        let of_secrets = format!(
            "Secrets come from the environment, or as NAME_FILE from a file: {}. `forebay config` prints all settings.",
            secrets.join(", ")
        );
        flagged().fold(command.after_help(of_secrets), |command, row| {
            let help = format!("{} [environment: {}]", row.reason, row.name);
            let arg = Arg::new(row.name).long(row.flag()).value_name(row.unit).help(help);
            command.arg(arg.hide_short_help(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Secrets have no flag: other users of the machine could read it.
fn flagged() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(|row| !row.secret)
}

/// Arguments of `forebay config`.
#[derive(Args, Debug)]
pub(crate) struct ConfigArguments {
    #[command(flatten)]
    flags: Flags,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One setting with the value that it has.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    value: String,
    default: &'static str,
    unit: &'static str,
    reason: &'static str,
}

/// Prints every setting, and fails when they are no configuration.
pub(crate) fn print(arguments: &ConfigArguments) -> anyhow::Result<()> {
    let line = |row: &Setting| {
        let in_a_file = || arguments.flags.look_up(&format!("{}_FILE", row.name));
        let given = arguments.flags.look_up(row.name);
        let given = given.or_else(|| in_a_file().filter(|_| row.secret));
        let value = match given {
            Some(_) if row.secret => "***".to_owned(),
            Some(value) => value,
            None => row.default.to_owned(),
        };
        Line { name: row.name, value, default: row.default, unit: row.unit, reason: row.reason }
    };
    let lines: Vec<Line> = TABLE.iter().map(line).collect();
    if arguments.json {
        super::print(&serde_json::to_string_pretty(&lines)?);
    } else {
        for line in &lines {
            let default = if line.default.is_empty() { "none" } else { line.default };
            super::print(&format!("{}={}", line.name, line.value));
            super::print(&format!("    {} · default {default} · {}", line.unit, line.reason));
        }
    }
    arguments.flags.config()?;
    Ok(())
}
