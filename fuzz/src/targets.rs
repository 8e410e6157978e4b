//! The targets. A target decodes, and where the decoder has an encoder, checks that what it understood survives
//! being encoded and decoded again.

/// One decoder or endpoint.
pub struct Target {
    /// As on the command line, and the folder of its regressions.
    pub name: &'static str,
    /// Decodes the input; panics only when something is wrong.
    pub run: fn(&[u8]),
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: &[Target] = &[Target { name: "config", run: config, seeds: config_seeds }];

fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        // Both outcomes are fine; every problem must be on a line that exists.
        if let Err(problems) = cli::config::parse(text) {
            // YAML ends lines with a carriage return alone, too.
            let lines = text.matches(['\n', '\r']).count() + 1;
            for problem in problems {
                assert!(problem.line <= lines, "line {} of {lines}: {problem:?}", problem.line);
            }
        }
    }
}

fn config_seeds() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../godwit.yaml").to_vec()]
}
