//! The control part: rules into a switch ([`rules`]), and users moved by the real controller
//! ([`moves`]), both in edges of all contenders that stand side by side, and take turns within a round.

use anyhow::Context as _;
use net::time::{self, Duration};

use super::edge::Edge;
use super::site::Contender;
use super::users::{Load, Move};
use super::{Figure, Part, moves, rules};
use crate::machine;
use crate::ran::Run;
use crate::samples::{Axes, Results};

pub(super) const MS: Axes = Axes { x: "users", y: "time", unit: "ms" };
pub(super) const PACKETS: Axes = Axes { x: "users", y: "packets", unit: "packets" };
/// Time with traffic before a change, and behind the last packet that it concerns.
const SETTLE: Duration = Duration::from_millis(60);

/// Extent of the measurement.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rounds: usize,
    /// Rules that are sent one after the other.
    pub(super) flow_mods: Vec<u32>,
    /// Users who are moved at once.
    pub(super) users: Vec<u32>,
    /// Packets of all users in a second.
    pub(super) pps: u32,
}

impl Plan {
    /// That of a quick run, and of a full one.
    pub(super) fn new(quick: bool) -> Plan {
        let (rounds, flow_mods, users) = match quick {
            true => (2, vec![1000, 16_000], vec![1, 1000]),
            false => (10, vec![1000, 4000, 16_000, 64_000], vec![1, 1000, 10_000]),
        };
        Plan { rounds, flow_mods, users, pps: 50_000 }
    }
}

/// Measures these parts.
///
/// # Errors
/// A switch or the controller refuses something, or packets do not take the way that they were given.
pub(super) fn run<P>(run: &mut Run<P>, plan: &Plan, parts: &[Part]) -> anyhow::Result<()> {
    // Switches and controllers have threads of their own: they are to run wherever there is room.
    let pinned = run.cores[..1].to_vec();
    machine::pin(&run.cores.clone());
    let result = measure(run, plan, parts);
    machine::pin(&pinned);
    result
}

fn measure<P>(run: &mut Run<P>, plan: &Plan, parts: &[Part]) -> anyhow::Result<()> {
    run.param("control_pps", plan.pps);
    let mut edges = Vec::new();
    for contender in Contender::STEERING {
        run.progress.say(&format!("an edge with {}", contender.name()));
        match Edge::start(contender, &run.cores) {
            Ok(edge) => edges.push(edge),
            Err(error) => {
                let name = format!("{} with the controller starts", contender.name());
                run.check(&name, false, format!("{error:#}"));
            }
        }
    }
    for round in 0..plan.rounds {
        if !round.is_multiple_of(2) {
            edges.reverse();
        }
        for part in parts {
            for edge in &edges {
                run.progress.say(&format!("{part:?}: {}, round {round}", edge.contender.name()));
                match part {
                    Part::Rules => rules::round(run, edge, plan)?,
                    _ => moves::round(run, edge, plan)?,
                }
            }
        }
        if !round.is_multiple_of(2) {
            edges.reverse();
        }
    }
    Ok(())
}

/// The promised figures.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    for contender in Contender::STEERING {
        let name = contender.name();
        let suffix = suffix(contender);
        let flow_mods = format!("rules.{name}.flow_mods");
        let most = results.places(&flow_mods).last().copied().unwrap_or(0);
        figure(&format!("flow_mods_per_s{suffix}"), results.median(&flow_mods, most), None);
        for users in [1, 1000, 10_000] {
            let effective = |series: &str| results.median(&format!("{series}.effective"), users);
            figure(&format!("bundle_{users}_ms{suffix}"), effective(&format!("rules.{name}.bundle")), None);
            for what in ["divert", "undivert"] {
                figure(
                    &format!("{what}_{users}_ms{suffix}"),
                    effective(&format!("moves.{name}.{what}")),
                    None,
                );
            }
        }
    }
}

/// Figures without a contender's name are those of our host path.
fn suffix(contender: Contender) -> String {
    if contender == Contender::Host { String::new() } else { format!("_{}", contender.name()) }
}

/// Makes a change of the first `moved` users' way while they and some others send packets. Returns what became of the packets,
/// with times since the beginning of the change, and what the change returned.
///
/// # Errors
/// The change fails, or users do not get to the other anchor.
pub(super) fn under_load<T>(
    edge: &Edge,
    plan: &Plan,
    moved: u32,
    [from, to]: [usize; 2],
    change: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Move, T)> {
    let users = moved + moved.div_ceil(10);
    let turn = Duration::from_secs_f64(f64::from(users) / f64::from(plan.pps));
    edge.ends.begin(Load { users, moved, pps: plan.pps, to });
    time::sleep_thread(turn + SETTLE);
    let began_ns = time::now_ns();
    let result = change();
    if result.is_ok() {
        edge.wait_for(moved);
    }
    // Some may take the old way once more.
    time::sleep_thread(turn + SETTLE);
    let record = edge.ends.end()?;
    let result = result?;
    let name = edge.contender.name();
    let mut found = record.judge(moved, [from, to]).with_context(|| format!("{name}, {moved} users"))?;
    anyhow::ensure!(found.first_ns >= began_ns, "packets went to the other anchor before the change");
    for at in [&mut found.effective_ns, &mut found.first_ns, &mut found.median_ns, &mut found.last_ns] {
        *at -= began_ns;
    }
    Ok((found, result))
}

/// Enters what became of packets. Ours must do it without a loss; what Open vSwitch does is shown.
pub(super) fn enter<P>(run: &mut Run<P>, name: &str, contender: Contender, users: u32, found: &Move) {
    let faults = [
        ("lost", found.lost),
        ("twice", found.twice),
        ("changed", found.wrong),
        ("at the old anchor behind the new one", found.back),
        ("of other users at the new anchor", found.others),
    ];
    for (what, packets) in faults {
        if contender != Contender::Ovs {
            run.count(&format!("packet {what} while users move ({})", contender.name()), packets);
        }
    }
    let at = users as usize;
    for (what, packets) in [("lost", found.lost), ("back", found.back), ("mixed", found.mixed)] {
        run.results.add(format!("{name}.{what}"), PACKETS, at, packets as f64);
    }
    for (what, ns) in [("effective", found.effective_ns), ("first", found.first_ns), ("last", found.last_ns)]
    {
        run.results.add(format!("{name}.{what}"), MS, at, ns as f64 / 1e6);
    }
    run.results.add(format!("{name}.median"), MS, at, found.median_ns as f64 / 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of our switch without a loss; how Open vSwitch does is not a matter of this test.
    #[test]
    fn users_move_by_rules_and_by_the_controller() {
        let _alone = crate::ran::alone();
        let plan = Plan { rounds: 1, flow_mods: vec![100], users: vec![1, 20], pps: 2000 };
        let mut run = Run::begin("diverting", true, plan.rounds, ()).unwrap();
        super::run(&mut run, &plan, &[Part::Rules, Part::Moves]).unwrap();
        let experiment = run.end(|results, experiment| {
            summarise(results, &mut |name, value, _| {
                experiment.ratios.extend(value.map(|value| (name.to_owned(), value)));
            });
        });
        let started = |contender: &Contender| match contender {
            Contender::Xdp => xdp::programs::BUILT,
            Contender::Ovs => lab::open_vswitch::is_installed(),
            _ => true,
        };
        let missing = Contender::STEERING.into_iter().filter(|one| !started(one)).count();
        let failed = experiment.checks.iter().filter(|check| !check.ok).count();
        assert_eq!(failed, missing, "{:?}", experiment.checks);
        for contender in Contender::STEERING.into_iter().filter(started) {
            let suffix = suffix(contender);
            for name in ["flow_mods_per_s", "bundle_1_ms", "divert_1_ms", "undivert_1_ms"] {
                let name = format!("{name}{suffix}");
                assert!(experiment.ratios[&name] > 0.0, "{name}: {:?}", experiment.ratios);
            }
        }
    }
}
