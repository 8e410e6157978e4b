//! The units of a gNB in parts as network functions of `godwit run`: `--nf cu`, `--nf du`.
//!
//! [`Unit`] is one that runs, with its administration socket: `GET /status` and `GET /stats`. The other functions say what
//! the units of a configuration need: links, privileges, captures. A gNB knows of the core what the standards tell it, so
//! units take no part in the core's service-based interface. docs/split-ran.md is for users.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use net::sctp::SctpMode;
use net::time::Instant;
use nf::oam::{self, OamServer};
use pktio::capture::{Point, Selector, Taps};
use pktio::interface::{Configured, Content, LinkConfig, WorkersConfig};
use serde_json::{Map, Value, json};
use telemetry::DropReason;
use telemetry::worker::{Drops, Totals};

use crate::config::Config;

/// A running unit.
pub(crate) enum Unit {
    /// A CU.
    Cu(Arc<cu::Cu>, OamServer),
    /// A DU.
    Du(Arc<du::Du>, OamServer),
}

impl Unit {
    /// Starts the unit `name` in this thread's network namespace.
    pub(crate) async fn start(name: &str, config: &Config, taps: Option<&Taps>) -> anyhow::Result<Unit> {
        let path = oam::socket_path(&config.run_dir, name);
        let serve =
            |routes: nf::Oam| routes.serve(&path).with_context(|| format!("cannot serve {}", path.display()));
        match (name, &config.cu, &config.du) {
            ("cu", Some(section), _) => {
                let cu = Arc::new(cu::Cu::start(section, taps).await?);
                let server = serve(cu_oam(&cu))?;
                Ok(Unit::Cu(cu, server))
            }
            ("du", _, Some(section)) => {
                // What the losses and the jitter of the radio links follow from: another sequence at each start.
                let du = Arc::new(du::Du::start(section, taps, nf::random::u64()).await?);
                let server = serve(du_oam(&du, section))?;
                Ok(Unit::Du(du, server))
            }
            _ => bail!("the configuration has no section `{name}`"),
        }
    }

    /// Ends the unit in order.
    pub(crate) async fn stop(self) {
        match self {
            Unit::Cu(cu, server) => {
                drop(server);
                // A request may still be answered; without it this is the only handle.
                if let Some(cu) = Arc::into_inner(cu) {
                    cu.shutdown().await;
                }
            }
            Unit::Du(du, server) => {
                drop(server);
                if let Some(du) = Arc::into_inner(du) {
                    du.shutdown().await;
                }
            }
        }
    }
}

/// The links of the units `names`, each with the name of its reference point.
pub(crate) fn links<'a>(config: &'a Config, names: &[&str]) -> Vec<(&'static str, &'a LinkConfig)> {
    let mut found = Vec::new();
    if let Some(cu) = config.cu.as_ref().filter(|_| names.contains(&"cu")) {
        found.extend(cu.f1u.iter().map(|link| ("f1u", link)));
        found.extend(cu.n3.iter().map(|link| ("n3", link)));
    }
    if let Some(du) = config.du.as_ref().filter(|_| names.contains(&"du")) {
        found.extend([("f1u", &du.f1u), ("uu", &du.uu)]);
    }
    found
}

/// What a unit of the configuration needs of the machine.
pub(crate) struct Needs<'a> {
    /// Its section.
    pub(crate) name: &'static str,
    pub(crate) workers: &'a WorkersConfig,
    pub(crate) links: Vec<Configured<'a>>,
}

/// What the units of the configuration need of the machine.
pub(crate) fn units(config: &Config) -> Vec<Needs<'_>> {
    let of = |name: &'static str| -> Vec<Configured<'_>> {
        let links = links(config, &[name]).into_iter();
        links.map(|(point, link)| Configured { name: point, content: Content::Tunnels, link }).collect()
    };
    let cu = config.cu.iter().map(|cu| Needs { name: "cu", workers: &cu.workers, links: of("cu") });
    let du = config.du.iter().map(|du| Needs { name: "du", workers: &du.workers, links: of("du") });
    cu.chain(du).collect()
}

/// How the units `names` carry SCTP.
pub(crate) fn sctp(config: &Config, names: &[&str]) -> impl Iterator<Item = SctpMode> {
    let cu = config.cu.as_ref().filter(|_| names.contains(&"cu"));
    let du = config.du.as_ref().filter(|_| names.contains(&"du"));
    let du = du.and_then(|du| du.f1c.as_ref()).map(|f1c| f1c.sctp);
    cu.map(|cu| cu.sctp).into_iter().chain(du)
}

/// The reference points of the units `names`. F1-C and F1-U stand in front of N2 and N3, which have all other SCTP and GTP-U.
pub(crate) fn capture_points(config: &Config, names: &[&str]) -> Vec<Point> {
    let links = links(config, names);
    if links.is_empty() {
        return Vec::new();
    }
    let at = |point: &str| -> Vec<SocketAddr> {
        links.iter().filter(|(of, _)| *of == point).filter_map(|(_, link)| link.gtpu).collect()
    };
    let mut points = vec![Point::f1c(), Point::f1u(at("f1u"))];
    if names.contains(&"du") {
        points.push(Point::uu(at("uu")));
    }
    match config.cu.as_ref().filter(|_| names.contains(&"cu")) {
        Some(cu) => {
            points.push(Point::n2(udp_port(cu.sctp)));
            points.extend(cu.n3.iter().map(|_| Point::n3()));
        }
        // Where there is no N2, SCTP in UDP is F1-C.
        None => points[0].any_of.extend(sctp(config, names).find_map(udp_port).map(Selector::Udp)),
    }
    points
}

/// The UDP port that carries SCTP, if one does.
pub(crate) fn udp_port(mode: SctpMode) -> Option<u16> {
    match mode {
        SctpMode::Udp { port } => Some(port),
        _ => None,
    }
}

/// The administration routes of a CU.
fn cu_oam(cu: &Arc<cu::Cu>) -> nf::Oam {
    let (status, stats, started) = (Arc::clone(cu), Arc::clone(cu), net::time::now());
    nf::Oam::new()
        .get("/status", move |_| {
            let status = cu_status(&status, started);
            async move { Ok(status) }
        })
        .get("/stats", move |_| {
            let stats = cu_stats(stats.user_plane().stats());
            async move { Ok(stats) }
        })
}

fn cu_status(cu: &cu::Cu, started: Instant) -> Value {
    let status = cu.status();
    let cells =
        |du: &cu::Du| du.cells.iter().map(|cell| cell.nr_cgi.nr_cell_id.to_string()).collect::<Vec<_>>();
    let dus = status.dus.iter().map(
        |du| json!({"id": du.id.0, "name": du.name, "address": du.address.to_string(), "cells": cells(du)}),
    );
    let of_unit = json!({
        "amf": status.amf,
        "dus": dus.collect::<Vec<_>>(),
        "f1_dus": status.dus.len(),
        "f1_cells": status.dus.iter().map(|du| du.cells.len()).sum::<usize>(),
        "ues": status.ues,
    });
    unit_status("cu", cu.f1c(), started, of_unit)
}

/// The administration routes of a DU.
fn du_oam(du: &Arc<du::Du>, section: &du::Config) -> nf::Oam {
    let (status, stats, started) = (Arc::clone(du), Arc::clone(du), net::time::now());
    let section = section.clone();
    nf::Oam::new()
        .get("/status", move |_| {
            let status = du_status(&status, &section, started);
            async move { Ok(status) }
        })
        .get("/stats", move |_| {
            let stats = du_stats(stats.stats());
            async move { Ok(stats) }
        })
}

fn du_status(du: &du::Du, section: &du::Config, started: Instant) -> Value {
    let uu = section.uu.gtpu.unwrap_or(SocketAddr::from(([0; 4], 0)));
    let detail = json!({
        "cu": section.f1c.as_ref().map(|f1c| f1c.cu.to_string()),
        "in_service": du.is_up(),
        "ues": du.ues(),
        "cell": format!("{:09x}", section.cell),
    });
    unit_status("du", uu, started, detail)
}

fn du_stats(stats: &du::Stats) -> Value {
    json!({
        // Packets are counted once on their way.
        "interfaces": {"bearers": directions(stats.uplink.get(), stats.downlink.get())},
        "drops": drops(&stats.drops),
        "events": {
            "delivery_statuses": stats.status_sent.get(),
            "echo_requests": stats.echo_requests.get(),
            "error_indications_sent": stats.error_indications_sent.get(),
            "error_indications_received": stats.error_indications_received.get(),
            "signalling": stats.signalling.get(),
            "random_accesses": stats.random_accesses.get(),
            "camps": stats.camps.get(),
            "broadcasts": stats.broadcasts.get(),
            "rrc_messages": stats.rrc.get(),
        },
    })
}

fn unit_status(name: &str, address: SocketAddr, started: Instant, detail: Value) -> Value {
    json!({
        "nf": name,
        "address": address.to_string(),
        "pid": std::process::id(),
        "uptime_s": (net::time::now() - started).as_secs(),
        "detail": detail,
    })
}

fn cu_stats(stats: &cu::user_plane::Stats) -> Value {
    json!({
        "interfaces": {
            "n3": directions(stats.n3.0.uplink.get(), stats.n3.0.downlink.get()),
            "f1u": directions(stats.f1u.0.uplink.get(), stats.f1u.0.downlink.get()),
        },
        "drops": drops(&stats.drops),
        "events": {
            "copied": stats.copied.get(),
            "delivery_statuses": stats.statuses.get(),
            "untrue_statuses": stats.untrue_statuses.get(),
            "foreign_statuses": stats.foreign_statuses.get(),
            "lost_on_f1u": stats.lost_on_f1u.get(),
            "echo_requests": stats.echo_requests.get(),
            "error_indications_sent": stats.error_indications_sent.get(),
            "error_indications_received": stats.error_indications_received.get(),
            "signalling": stats.signalling.get(),
            "lost_events": stats.lost_events.get(),
        },
    })
}

fn directions(uplink: Totals, downlink: Totals) -> Value {
    let counts = |totals: Totals| json!({"packets": totals.packets, "bytes": totals.bytes});
    json!({"uplink": counts(uplink), "downlink": counts(downlink)})
}

/// Drops by reason, without those that have not happened.
fn drops(drops: &Drops) -> Map<String, Value> {
    let counted = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), drops.get(*reason)));
    counted.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count.into())).collect()
}
