//! `rules`: how many rules a second a switch takes one after the other, and how long a bundle of rules takes until the switch
//! says so, and until all packets are treated by them.
//!
//! The rules are those by which the controller steers users, and come by a connection of the measurement's own. A bundle is sent before
//! the clock starts, which measures its commit alone.

use anyhow::ensure;
use net::time;

use super::control::{self, MS, Plan};
use super::edge::{Edge, diversion};
use super::users::{NEW, OLD};
use crate::ran::Run;
use crate::samples::Axes;

const RATE: Axes = Axes { x: "rules", y: "flow-mods per second", unit: "1/s" };
/// A user without packets, whom the controller keeps at the new anchor, so that the rules are there that all users share.
const GROUND: u32 = 1 << 20;

/// Measures one edge.
///
/// # Errors
/// The switch refuses a rule, or has another number of them than it was given, or packets do not take the way of the rules.
pub(super) fn round<P>(run: &mut Run<P>, edge: &Edge, plan: &Plan) -> anyhow::Result<()> {
    let name = edge.contender.name();
    let mut client = edge.connect()?;
    edge.call("POST", "/v1/diversions", Some(&diversion(GROUND)))?;
    for count in &plan.flow_mods {
        let mut rules = edge.rules_of(0..*count)?;
        // With Open vSwitch a user has several.
        rules.truncate(*count as usize);
        let batch = client.one_by_one(&rules)?;
        let (seconds, present) = edge.run(async {
            let began_ns = time::now_ns();
            client.send(&batch).await?;
            let seconds = (time::now_ns() - began_ns) as f64 / 1e9;
            let present = client.count().await?;
            client.clear().await?;
            Ok((seconds, present))
        })?;
        ensure!(present == *count, "{name}: of {count} rules {present} are there");
        run.results.add(
            format!("rules.{name}.flow_mods"),
            RATE,
            *count as usize,
            f64::from(*count) / seconds,
        );
    }
    for users in &plan.users {
        let [bundle, commit] = client.bundle(&edge.rules_of(0..*users)?)?;
        edge.run(client.send(&bundle))?;
        let (found, reply_ns) = control::under_load(edge, plan, *users, [OLD, NEW], || {
            edge.run(async {
                let began_ns = time::now_ns();
                client.send(&commit).await?;
                Ok(time::now_ns() - began_ns)
            })
        })?;
        edge.run(client.clear())?;
        edge.see(*users, plan.pps, OLD)?;
        let series = format!("rules.{name}.bundle");
        run.results.add(format!("{series}.reply"), MS, *users as usize, reply_ns as f64 / 1e6);
        control::enter(run, &series, edge.contender, *users, &found);
    }
    edge.call("DELETE", &format!("/v1/diversions/gw1~{}", super::users::ue(GROUND)), None)?;
    Ok(())
}
