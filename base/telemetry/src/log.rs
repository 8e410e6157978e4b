//! Start of the structured log: `tracing` events, one line each, on standard error.
//!
//! The filter is `RUST_LOG` when set, else what the configuration says (`info`,
//! `amf=debug,info`). Standard output stays free for the output of commands.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not a list of `target=level`.
    #[error(
        "log filter {filter:?}: {reason}; use a level such as \"info\" or a list such as \"amf=debug,info\""
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Checks a filter without starting anything, for the validation of a configuration.
///
/// Stricter than `RUST_LOG`, where a lone word that is no level is a target: in a configuration `log: verbose` is a
/// mistake, and would switch everything off but the target "verbose".
pub fn validate(filter: &str) -> Result<(), LogError> {
    let lone = |word: &&str| !word.contains('=') && word.parse::<LevelFilter>().is_err();
    if let Some(word) = filter.split(',').map(str::trim).find(lone) {
        let reason = format!("{word:?} is no level; there are off, error, warn, info, debug and trace");
        return Err(LogError::Filter { filter: filter.to_owned(), reason });
    }
    parse(filter).map(|_| ())
}

/// `Targets` and not `EnvFilter`, which also selects spans: Godwit has none, and regular expressions to find them in took
/// longer to compile than all the rest of the log.
fn parse(filter: &str) -> Result<Targets, LogError> {
    filter.parse().map_err(|error: ParseError| LogError::Filter {
        filter: filter.to_owned(),
        reason: error.to_string(),
    })
}

/// Starts the log with this filter. A second call changes nothing: libraries and tests may call it freely.
pub fn init(filter: &str) -> Result<(), LogError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(variable) if !variable.is_empty() => parse(&variable)?,
        _ => parse(filter)?,
    };
    // An error here means that a subscriber is already in place, which is what the caller wants.
    let _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish()
        .with(filter)
        .try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        assert!(validate("info").is_ok());
        assert!(validate("amf=debug,info").is_ok());
        assert!(validate("amf=notalevel").is_err());
        let lone = validate("info,verbose").unwrap_err().to_string();
        assert!(lone.contains("\"verbose\" is no level"), "{lone}");
        init("info").unwrap();
        init("debug").unwrap();
    }
}
