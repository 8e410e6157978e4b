//! The experiments behind `godwit bench`: one module per figure, one JSON form for all, raw samples kept.
//!
//! Flow: an experiment fills a [`result::Experiment`]; [`write()`] puts it into `DIR/<id>.json` and draws
//! `DIR/<id>.svg` from the same samples. Read first: [`result`], then an experiment such as [`procedures`].
//!
//! Results in `bench/results` are published; [`publish`] decides which results may be.
//!
//! Invariants: a figure is a median with its spread, never a single run. Contenders take turns within one run,
//! and a ratio is computed pair by pair. No sample is left out.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub mod backhaul;
pub mod buffering;
pub mod command;
pub mod cotcp;
mod distance;
pub mod diverting;
pub mod end_to_end;
pub mod epc;
pub mod machine;
pub mod midhaul;
pub mod pdr;
pub mod plot;
pub mod procedures;
pub mod progress;
pub mod publish;
mod ran;
pub mod relocation;
pub mod replication;
pub mod result;
mod samples;
pub mod stats;
pub mod upf;
pub mod video;

/// Options of every experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether to end within a minute, with fewer samples.
    pub quick: bool,
    /// Folder for result and plot.
    pub out: PathBuf,
}

/// Writes `<id>.json` and `<id>.svg`; returns their paths. A result that must not be published goes to
/// [`publish::latest`] instead.
///
/// # Errors
/// When the folder or a file cannot be written, and when the result must not be published.
pub fn write(experiment: &result::Experiment, folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let Err(refused) = publish::permit_result(experiment, folder) else {
        return write_to(experiment, folder);
    };
    let (json, _) = write_to(experiment, &publish::latest(folder))?;
    anyhow::bail!("not published: {refused}. The result is in {}", json.display())
}

fn write_to(experiment: &result::Experiment, folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let json = folder.join(format!("{}.json", experiment.experiment));
    let text = serde_json::to_string(experiment)? + "\n";
    std::fs::write(&json, text).with_context(|| format!("cannot write {}", json.display()))?;
    let svg = folder.join(format!("{}.svg", experiment.experiment));
    match experiment.experiment.as_str() {
        "cotcp" => plot::draw_panels(experiment, &cotcp::panels::panels(experiment), &svg)?,
        "buffering" => plot::draw_panels(experiment, &buffering::panels(experiment), &svg)?,
        "backhaul" => plot::draw_panels(experiment, &backhaul::panels::panels(experiment), &svg)?,
        "end-to-end" => plot::draw_panels(experiment, &end_to_end::panels::panels(experiment), &svg)?,
        "midhaul" => plot::draw_panels(experiment, &midhaul::panels::panels(experiment), &svg)?,
        "diverting" => plot::draw_panels(experiment, &diverting::panels::panels(experiment), &svg)?,
        "video" => plot::draw_panels(experiment, &video::panels::panels(experiment), &svg)?,
        "relocation" => plot::draw_panels(experiment, &relocation::panels(experiment), &svg)?,
        "replication" => plot::draw_panels(experiment, &replication::panels(experiment), &svg)?,
        "upf" => plot::draw_panels(experiment, &upf::panels::panels(experiment), &svg)?,
        "pdr" => plot::draw_panels(experiment, &pdr::panels::panels(experiment), &svg)?,
        _ => plot::draw(experiment, &svg)?,
    }
    Ok((json, svg))
}
