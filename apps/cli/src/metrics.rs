//! Metrics of a running process for Prometheus: `metrics: 127.0.0.1:9090` in `godwit.yaml`, then `GET /metrics`.
//!
//! Flow: each request asks the administration sockets of the process's NFs, makes metrics of their
//! answers, and adds the process's event counters. The figures are those of `godwit upf stats` and
//! `godwit status`. Names follow TS 28.552 and are those in dashboards for other cores. No metric has a
//! label whose values depend on subscribers.

use std::path::PathBuf;
use std::sync::Arc;

use nf::metrics::MetricsServer;
use nf::oam;
use serde_json::Value;
use telemetry::DropReason;
use telemetry::prometheus::{Exposition, Kind};

/// Serves the metrics of the NFs `names`, whose sockets are in `run_dir`. The process runs also if the
/// address is in use: a second process of the same machine reads the same configuration.
pub(crate) async fn start(
    address: std::net::SocketAddr,
    run_dir: PathBuf,
    names: Vec<String>,
) -> Option<MetricsServer> {
    let names = Arc::new(names);
    let render = move || {
        let (run_dir, names) = (run_dir.clone(), Arc::clone(&names));
        async move { render(&run_dir, &names).await }
    };
    match MetricsServer::start(address, render).await {
        Ok(server) => Some(server),
        Err(error) => {
            tracing::warn!(%error, %address, "metrics are not served (key `metrics`)");
            None
        }
    }
}

async fn render(run_dir: &std::path::Path, names: &[String]) -> String {
    let mut out = Exposition::new();
    for name in names {
        let socket = oam::socket_path(run_dir, name);
        // An NF that does not answer has no metrics.
        let Ok(status) = oam::call(&socket, "GET", "/status", None).await else { continue };
        match name.as_str() {
            "upf" => {
                let stats = oam::call(&socket, "GET", "/stats", None).await.unwrap_or_default();
                user_plane(&mut out, &stats, &status);
            }
            "amf" => gauges(&mut out, &status["detail"], &AMF_GAUGES),
            "smf" => gauges(&mut out, &status["detail"], &SMF_GAUGES),
            "cu" => {
                gauges(&mut out, &status["detail"], &CU_GAUGES);
                unit(&mut out, "cu", &oam::call(&socket, "GET", "/stats", None).await.unwrap_or_default());
            }
            "du" => {
                let in_service = if status["detail"]["in_service"] == true { 1.0 } else { 0.0 };
                let help = "Whether the cell is in service.";
                out.metric("fivegs_gnbdu_cell_inservice", Kind::Gauge, help).sample(&[], in_service);
                unit(&mut out, "du", &oam::call(&socket, "GET", "/stats", None).await.unwrap_or_default());
            }
            _ => {}
        }
    }
    out.counters(&telemetry::counters::snapshot());
    out.into_text()
}

/// A member of an answer, the metric's name, its help text.
type Named = (&'static str, &'static str, &'static str);

const AMF_GAUGES: [Named; 3] = [
    ("ues", "fivegs_amffunction_rm_registeredsubnbr", "Registered UEs (RM.RegisteredSubNbr)."),
    ("ues_connected", "fivegs_amffunction_cm_connectedsubnbr", "UEs with a signalling connection."),
    ("gnbs", "fivegs_amffunction_gnbnbr", "gNBs with an N2 association."),
];
const SMF_GAUGES: [Named; 1] =
    [("sessions", "fivegs_smffunction_sm_sessionnbr", "PDU sessions (SM.SessionNbr).")];

const CU_GAUGES: [Named; 3] = [
    ("ues", "fivegs_gnbcu_rrc_connectedues", "UEs with an RRC connection."),
    ("f1_dus", "fivegs_gnbcu_f1_dunbr", "DUs with an F1-C association."),
    ("f1_cells", "fivegs_gnbcu_f1_cellnbr", "Cells of these DUs."),
];

/// Metrics of a gNB unit's answer to `/stats`: packets and octets by interface or direction, drops by reason, and events.
fn unit(out: &mut Exposition, name: &str, stats: &Value) {
    for (what, unit) in [("packets", "Packets"), ("bytes", "Octets")] {
        let help = format!("{unit} of the user plane, by interface and direction.");
        let mut all = out.metric(&format!("fivegs_gnb{name}_interface_{what}"), Kind::Counter, &help);
        for (interface, directions) in stats["interfaces"].as_object().into_iter().flatten() {
            for direction in ["uplink", "downlink"] {
                let labels = [("interface", interface.as_str()), ("direction", direction)];
                all.sample(&labels, directions[direction][what].as_f64().unwrap_or(0.0));
            }
        }
    }
    let help = "Packets not forwarded, by reason.";
    let mut drops = out.metric(&format!("fivegs_gnb{name}_droppedpkt"), Kind::Counter, help);
    for reason in DropReason::ALL {
        drops.sample(&[("reason", reason.name())], stats["drops"][reason.name()].as_f64().unwrap_or(0.0));
    }
    for (event, count) in stats["events"].as_object().into_iter().flatten() {
        let help = format!("Events of the user plane: {}.", event.replace('_', " "));
        let value = count.as_f64().unwrap_or(0.0);
        out.metric(&format!("fivegs_gnb{name}_{event}"), Kind::Counter, &help).sample(&[], value);
    }
}

fn gauges(out: &mut Exposition, answer: &Value, of: &[Named]) {
    for (member, name, help) in of {
        if let Some(value) = answer[*member].as_f64() {
            out.metric(name, Kind::Gauge, help).sample(&[], value);
        }
    }
}

/// Roles of interfaces, members of their counters, and the metrics of all interfaces with the role together.
const TRAFFIC: [(&str, &str, &str, &str, &str); 8] = [
    (
        "n3",
        "received",
        "packets",
        "fivegs_ep_n3_gtp_indatapktn3upf",
        "GTP data packets received on N3 (GTP.InDataPktN3UPF).",
    ),
    (
        "n3",
        "sent",
        "packets",
        "fivegs_ep_n3_gtp_outdatapktn3upf",
        "GTP data packets sent on N3 (GTP.OutDataPktN3UPF).",
    ),
    (
        "n3",
        "received",
        "bytes",
        "fivegs_ep_n3_gtp_indataoctn3upf",
        "Octets of GTP data packets received on N3 (GTP.InDataOctN3UPF).",
    ),
    (
        "n3",
        "sent",
        "bytes",
        "fivegs_ep_n3_gtp_outdataoctn3upf",
        "Octets of GTP data packets sent on N3 (GTP.OutDataOctN3UPF).",
    ),
    ("n6", "received", "packets", "fivegs_ep_n6_ip_indatapktn6upf", "IP packets received on N6."),
    ("n6", "sent", "packets", "fivegs_ep_n6_ip_outdatapktn6upf", "IP packets sent on N6."),
    (
        "n6",
        "received",
        "bytes",
        "fivegs_ep_n6_ip_n6inclinkusage",
        "Octets received on N6 (IP.N6IncLinkUsage).",
    ),
    ("n6", "sent", "bytes", "fivegs_ep_n6_ip_n6outlinkusage", "Octets sent on N6 (IP.N6OutLinkUsage)."),
];

/// Metrics of the UPF's answers to `/stats` and `/status`.
fn user_plane(out: &mut Exposition, stats: &Value, status: &Value) {
    let interfaces = || stats["interfaces"].as_object().into_iter().flatten();
    for (role, direction, what, name, help) in TRAFFIC {
        let of_role = interfaces().filter(|(_, interface)| interface["role"] == role);
        let values: Vec<f64> = of_role.filter_map(|(_, own)| own[direction][what].as_f64()).collect();
        if !values.is_empty() {
            out.metric(name, Kind::Counter, help).sample(&[], values.iter().sum());
        }
    }
    for (what, unit) in [("packets", "Packets"), ("bytes", "Octets")] {
        let help = format!("{unit} by interface of the UPF, with its name and role in godwit.yaml.");
        let mut all = out.metric(&format!("fivegs_upffunction_interface_{what}"), Kind::Counter, &help);
        for (name, interface) in interfaces() {
            for direction in ["received", "sent"] {
                let role = interface["role"].as_str().unwrap_or_default();
                let labels = [("interface", name.as_str()), ("role", role), ("direction", direction)];
                all.sample(&labels, interface[direction][what].as_f64().unwrap_or(0.0));
            }
        }
    }
    let help = "Packets sent that lay in other memory than the interface's and were copied, by interface.";
    let mut copied = out.metric("fivegs_upffunction_interface_copied", Kind::Counter, help);
    for (name, interface) in interfaces() {
        let labels = [("interface", name.as_str()), ("role", interface["role"].as_str().unwrap_or_default())];
        copied.sample(&labels, interface["sent"]["copied"].as_f64().unwrap_or(0.0));
    }
    let mut drops = out.metric(
        "fivegs_upffunction_upf_droppedpkt",
        Kind::Counter,
        "Packets not forwarded, by reason (godwit upf stats explains them).",
    );
    // Reasons without drops are included as zeroes, so that their rates exist from the start.
    for reason in DropReason::ALL {
        drops.sample(&[("reason", reason.name())], stats["drops"][reason.name()].as_f64().unwrap_or(0.0));
    }
    for (member, value) in stats["gtpu"].as_object().into_iter().flatten() {
        if let Some(value) = value.as_f64() {
            let name = format!("fivegs_ep_n3_gtp_{}", member.replace('_', ""));
            let help = format!("GTP-U signalling: {}.", member.replace('_', " "));
            out.metric(&name, Kind::Counter, &help).sample(&[], value);
        }
    }
    if let Some(sessions) = status["sessions"].as_f64() {
        let help = "N4 sessions (UPF.SessionNbr).";
        out.metric("fivegs_upffunction_upf_sessionnbr", Kind::Gauge, help).sample(&[], sessions);
    }
    for (member, value) in status["pfcp"].as_object().into_iter().flatten() {
        if let Some(value) = value.as_f64() {
            let help = format!("PFCP messages on N4: {}.", member.replace('_', " "));
            out.metric(&format!("fivegs_ep_n4_pfcp_{member}"), Kind::Counter, &help).sample(&[], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_reason_and_interface_has_its_metric() {
        let stats = json!({
            "interfaces": {
                "access": {"role": "n3", "received": {"packets": 4, "bytes": 400}, "sent": {"packets": 5, "bytes": 300, "copied": 2}},
                "private": {"role": "n3", "received": {"packets": 3, "bytes": 300}, "sent": {"packets": 0, "bytes": 200}},
                "internet": {"role": "n6", "received": {"packets": 6, "bytes": 600}, "sent": {"packets": 4, "bytes": 400}},
            },
            "drops": {"unknown_teid": 3},
            "gtpu": {"echo_requests": 2},
        });
        let status = json!({"sessions": 9, "pfcp": {"received": 11, "retransmissions": 0}});
        let mut out = Exposition::new();
        user_plane(&mut out, &stats, &status);
        let text = out.into_text();
        for line in [
            "fivegs_ep_n3_gtp_indatapktn3upf 7",
            "fivegs_ep_n3_gtp_outdataoctn3upf 500",
            "fivegs_ep_n6_ip_n6inclinkusage 600",
            "fivegs_upffunction_interface_packets{interface=\"private\",role=\"n3\",direction=\"received\"} 3",
            "fivegs_upffunction_interface_bytes{interface=\"internet\",role=\"n6\",direction=\"sent\"} 400",
            "fivegs_upffunction_interface_copied{interface=\"access\",role=\"n3\"} 2",
            "fivegs_upffunction_upf_droppedpkt{reason=\"unknown_teid\"} 3",
            "fivegs_upffunction_upf_droppedpkt{reason=\"rate_limit\"} 0",
            "fivegs_ep_n3_gtp_echorequests 2",
            "fivegs_upffunction_upf_sessionnbr 9",
            "fivegs_ep_n4_pfcp_received 11",
        ] {
            assert!(text.lines().any(|of| of == line), "{line}\n{text}");
        }
        let mut out = Exposition::new();
        let of = |packets: u64| json!({"packets": packets, "bytes": 10 * packets});
        let stats = json!({"interfaces": {"n3": {"uplink": of(3), "downlink": of(4)}}, "drops": {"no_bearer": 2}, "events": {"echo_requests": 1}});
        unit(&mut out, "cu", &stats);
        let of_unit = out.into_text();
        for line in [
            "fivegs_gnbcu_interface_packets{interface=\"n3\",direction=\"uplink\"} 3",
            "fivegs_gnbcu_interface_bytes{interface=\"n3\",direction=\"downlink\"} 40",
            "fivegs_gnbcu_droppedpkt{reason=\"no_bearer\"} 2",
            "fivegs_gnbcu_droppedpkt{reason=\"rate_limit\"} 0",
            "fivegs_gnbcu_echo_requests 1",
        ] {
            assert!(of_unit.lines().any(|of| of == line), "{line}\n{of_unit}");
        }
        let reasons = text.lines().filter(|line| line.contains("{reason=")).count();
        assert_eq!(reasons, DropReason::COUNT);
    }
}
