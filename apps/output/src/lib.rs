//! Output of commands: tables for people, JSON for programs, errors with their causes.
//!
//! Shared by the programs `godwit` and `godwit-bench`, so that their output looks alike.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use serde::Serialize;

/// `--json`, an option of every listing.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Format {
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// A table that aligns its columns.
#[derive(Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these column titles.
    pub fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, one line per row.
    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([self.header[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut text = String::new();
        let titles = self.header.iter().map(|title| (*title).to_owned()).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Writes text to standard output. It is no error if the reader has gone (`| head`).
///
/// # Errors
/// Standard output cannot be written for another reason.
pub fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Writes a value as indented JSON.
///
/// # Errors
/// As [`text`].
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string_pretty(value)?;
    line.push('\n');
    Ok(text(&line)?)
}

/// Writes a value as JSON in one line, for a program that reads lines.
///
/// # Errors
/// As [`text`].
pub fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(text(&(serde_json::to_string(value)? + "\n"))?)
}

/// Writes JSON or, without `--json`, the table; `empty` if the table has no rows.
///
/// # Errors
/// As [`text`].
pub fn listing(format: Format, value: &impl Serialize, table: &Table, empty: &str) -> anyhow::Result<()> {
    match (format.json, table.is_empty()) {
        (true, _) => json(value),
        (false, true) => Ok(text(&format!("{empty}\n"))?),
        (false, false) => Ok(text(&table.render())?),
    }
}

/// The error code of a process that may open no more files; the same number on all of Linux's
/// architectures.
const EMFILE: i32 = 24;

/// The text of an error and its causes. A cause that the text already contains is left out.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    let out_of_files = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.raw_os_error() == Some(EMFILE))
    };
    if error.chain().any(out_of_files) {
        text += ": raise `ulimit -n`";
    }
    text
}

/// Writes an error and its causes to standard error, with the name of the program in front.
pub fn error(error: &anyhow::Error) {
    // A closed standard error is no error: the exit code still tells that the command failed.
    let _ = writeln!(io::stderr().lock(), "godwit: {}", with_causes(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["SUPI", "STATE"]);
        table.row(["imsi-999700000000001".to_owned(), "registered".to_owned()]);
        table.row(["x".to_owned()]);
        assert_eq!(table.render(), "SUPI                  STATE\nimsi-999700000000001  registered\nx\n");
    }

    #[test]
    fn a_cause_is_named_once() {
        let error = anyhow::anyhow!("no such file").context("cannot read x: no such file").context("start");
        assert_eq!(with_causes(&error), "start: cannot read x: no such file");
    }
}
