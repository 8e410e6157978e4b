//! Sessions and status of N4 for operators, as JSON.

use std::collections::BTreeSet;

use pfcp::NodeId;
use pfcp::endpoint::Counters;
use serde_json::{Value, json};

use super::Server;
use super::compile::network_of;
use super::networks::Networks;
use super::session::N4Session;
use crate::interfaces::Interfaces;

impl Server {
    pub(super) fn status(&self) -> Value {
        let associations: Vec<Value> = self
            .associations
            .iter()
            .map(|(peer, association)| {
                json!({"peer": peer.to_string(), "node_id": node_id_text(&association.node_id)})
            })
            .collect();
        let Counters {
            received,
            sent,
            malformed,
            version,
            duplicates,
            unmatched_responses,
            retransmissions,
            timeouts,
        } = self.endpoint.counters();
        json!({
            "associations": associations,
            "sessions": self.sessions.count(),
            "usage_reports": {"unanswered": self.reports.under_way, "kept": self.reports.kept_usage},
            "pfcp": {
                "received": received, "sent": sent, "malformed": malformed, "version": version,
                "duplicates": duplicates, "unmatched_responses": unmatched_responses,
                "retransmissions": retransmissions, "timeouts": timeouts,
            },
        })
    }
}

fn node_id_text(node_id: &NodeId) -> String {
    match node_id {
        NodeId::Ipv4(address) => address.to_string(),
        NodeId::Ipv6(address) => address.to_string(),
        NodeId::Fqdn(name) => name.clone(),
    }
}

/// One session.
pub(super) fn session(seid: u64, session: &N4Session, interfaces: &Interfaces) -> Value {
    let rules = &session.rules;
    let networks = Networks::of(rules, interfaces);
    let (uplink, downlink) = session.compiled.usage();
    let remote: Vec<Value> = rules
        .pdrs
        .iter()
        .filter_map(|(id, pdr)| {
            let far = rules.far_of(pdr)?;
            let tunnel = networks.tunnel_of(far)?;
            let forwards = far.action.contains(pfcp::ApplyAction::FORW);
            let interface = interfaces.number(tunnel.interface.into()).map(|interface| interface.name());
            let peer = tunnel.peer.ip().to_string();
            forwards.then(|| json!({"pdr": id, "teid": tunnel.teid, "peer": peer, "interface": interface}))
        })
        .collect();
    let (mut ipv4, mut ipv6) = (BTreeSet::new(), BTreeSet::new());
    for pdr in rules.pdrs.values() {
        let ue = rules.ue_of(pdr);
        ipv4.extend(ue.v4);
        ipv6.extend(ue.v6);
    }
    let ipv6: Vec<String> = ipv6.iter().map(|(prefix, len)| format!("{prefix}/{len}")).collect();
    json!({
        "seid": seid,
        "cp_seid": session.cp_seid,
        "cp": session.cp.to_string(),
        "dnn": network_of(rules, interfaces),
        "ipv4": ipv4.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ipv6": ipv6,
        "teids": rules.teids(),
        "remote": remote,
        "pdrs": rules.pdrs.len(),
        "uplink": {"packets": uplink.packets, "bytes": uplink.bytes},
        "downlink": {"packets": downlink.packets, "bytes": downlink.bytes},
    })
}
