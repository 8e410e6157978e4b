//! `moves`: how long it takes from a request to the controller until users' packets arrive at the other anchor, there and back.
//!
//! The request goes by the REST API of the real controller, as `godwit mec divert` sends it, for one user or for many at once, while
//! all of them and some others send packets at a steady rate.

use anyhow::ensure;
use net::time;
use serde_json::{Value, json};

use super::control::{self, MS, Plan};
use super::edge::{Edge, diversion};
use super::users::{self, NEW, OLD};
use crate::ran::Run;

/// Measures one edge.
///
/// # Errors
/// The controller refuses, or packets do not get to the other anchor.
pub(super) fn round<P>(run: &mut Run<P>, edge: &Edge, plan: &Plan) -> anyhow::Result<()> {
    for count in &plan.users {
        let all: Vec<Value> = (0..*count).map(diversion).collect();
        let ues: Vec<_> = (0..*count).map(users::ue).collect();
        let requests = [
            ("divert", "/v1/diversions", Value::from(all), [OLD, NEW]),
            ("undivert", "/v1/diversions/remove", json!({"ues": ues}), [NEW, OLD]),
        ];
        for (what, path, body, ways) in requests {
            let (found, answer_ns) = control::under_load(edge, plan, *count, ways, || {
                let began_ns = time::now_ns();
                let done = edge.call("POST", path, Some(&body))?;
                let changed = done["changed"].as_array().map_or(0, Vec::len);
                ensure!(changed == *count as usize, "{what}: {changed} of {count} users");
                Ok(time::now_ns() - began_ns)
            })?;
            let series = format!("moves.{}.{what}", edge.contender.name());
            run.results.add(format!("{series}.answer"), MS, *count as usize, answer_ns as f64 / 1e6);
            control::enter(run, &series, edge.contender, *count, &found);
        }
    }
    Ok(())
}
