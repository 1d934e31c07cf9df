//! `specgen list`: the models that have a name.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use specgen::models::{ListEntry, Store, StoreOptions};

use crate::{
    args::ListArgs,
    output::{bytes, note, print, print_json},
};

pub(crate) fn run(args: &ListArgs) -> Result<ExitCode> {
    let entries = Store::new(StoreOptions::from_env()?).list();
    if args.json {
        print_json(&entries.iter().map(JsonEntry::from).collect::<Vec<_>>())?;
    } else {
        print(&table(entries.iter().filter(|entry| entry.problem.is_none())))?;
        for entry in &entries {
            if let Some(problem) = &entry.problem {
                note(format_args!("specgen: {} cannot be used: {problem}", entry.name));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table<'a>(entries: impl Iterator<Item = &'a ListEntry>) -> String {
    let head = ["NAME", "SIZE", "LICENCE", "HERE", "TESTED", "DRAFT"].map(str::to_owned);
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(entries.map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(entry: &ListEntry) -> [String; 6] {
    let size = match entry.size {
        Some(size) if entry.size_is_exact => bytes(size),
        Some(size) => format!("~{}", bytes(size)),
        None => "?".into(),
    };
    [
        entry.name.clone(),
        size,
        entry.licence.clone(),
        if entry.present { "yes" } else { "no" }.into(),
        if entry.tested { "tested" } else { "not yet run" }.into(),
        entry.recommended_draft.clone().unwrap_or_else(|| "suffix".into()),
    ]
}

#[derive(Serialize)]
struct JsonEntry<'a> {
    name: &'a str,
    aliases: &'a [String],
    description: &'a str,
    licence: &'a str,
    parameters: &'a str,
    format: &'a str,
    /// Bytes.
    size: Option<u64>,
    size_is_exact: bool,
    present: bool,
    tested: bool,
    recommended_draft: Option<&'a str>,
    problem: Option<&'a str>,
}

impl<'a> From<&'a ListEntry> for JsonEntry<'a> {
    fn from(entry: &'a ListEntry) -> Self {
        Self {
            name: &entry.name,
            aliases: &entry.aliases,
            description: &entry.description,
            licence: &entry.licence,
            parameters: &entry.parameters,
            format: &entry.format,
            size: entry.size,
            size_is_exact: entry.size_is_exact,
            present: entry.present,
            tested: entry.tested,
            recommended_draft: entry.recommended_draft.as_deref(),
            problem: entry.problem.as_deref(),
        }
    }
}
