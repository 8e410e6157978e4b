//! A gNB in parts: its namespaces, and its sections of the configuration.
//!
//! ```text
//!  core ── n2: 10.200.0.0/24 ── cu ── f1: 10.202.0.0/24 ── du ── uu: 10.203.0.0/24 ── ran (UEs)
//! ```
//! Each unit is a process in a namespace of its own. The links are veth pairs. [`Model`] says which reference points of the
//! user plane go past the kernel instead: by memif between the two processes, with addresses of their own.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

use crate::network::{CORE_N2, RAN_N2};

/// Which part of the user plane goes past the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Model {
    /// None.
    #[default]
    Kernel,
    /// F1-U: memif between DU and CU; N3 and `uu` are the kernel's.
    Hybrid,
    /// `uu`, F1-U and N3: memif from the UEs to the UPF.
    Bypass,
}

impl Model {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Model::Kernel => "kernel",
            Model::Hybrid => "hybrid",
            Model::Bypass => "bypass",
        }
    }
}

impl std::str::FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Model, String> {
        let all = [Model::Kernel, Model::Hybrid, Model::Bypass];
        let found = all.into_iter().find(|model| model.name() == text);
        found.ok_or_else(|| "there are kernel, hybrid and bypass".to_owned())
    }
}

/// The CU's address towards the DU.
pub(crate) const CU_F1: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 1);
/// The DU's address towards the CU.
pub(crate) const DU_F1: Ipv4Addr = Ipv4Addr::new(10, 202, 0, 2);
/// The DU's address towards UEs.
pub(crate) const DU_UU: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 1);
/// The UEs' address towards the DU.
pub(crate) const UE_UU: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 2);
/// Longest packet of the links: a packet of a UE with the headers of N3, F1-U or `uu`.
pub(crate) const MTU: u32 = 1600;

/// NR Cell Identity of the only cell: gNB 1, cell 1.
const CELL: u64 = 0x1001;
/// Port of `uu`.
const UU_PORT: u16 = 38321;
/// Port of F1-C.
const F1AP_PORT: u16 = 38472;
/// Port of GTP-U.
const GTPU_PORT: u16 = 2152;

/// Adds the sections of CU, DU and UEs, and moves the UPF's N3 to a memif if the model says so.
pub(crate) fn add(configuration: &mut Value, model: Model, folder: &Path) {
    let (f1u, beyond) = (model != Model::Kernel, model == Model::Bypass);
    let link = |name: &str, by_memif: bool, kernel: Ipv4Addr, (third, host): (u8, u8), port: u16| {
        if !by_memif {
            return json!({"gtpu": format!("{kernel}:{port}")});
        }
        let role = if host == 1 { "server" } else { "client" };
        let socket = folder.join(format!("{name}.sock"));
        json!({
            "gtpu": format!("10.{third}.0.{host}:{port}"),
            "backend": "memif",
            "device": format!("{name},role={role},socket={}", socket.display()),
            "addresses": [format!("10.{third}.0.{host}/24")],
            "mtu": MTU,
        })
    };
    // Addresses on memifs differ from those of the veth pairs beside them.
    let (n3, f1, uu) = (210, 212, 213);
    configuration["cu"] = json!({
        "gnb_id": CELL >> 12,
        "f1c": format!("{CU_F1}:{F1AP_PORT}"),
        "n2": {"address": RAN_N2, "amf": [format!("{CORE_N2}:38412")]},
        "f1u": [link("f1u", f1u, CU_F1, (f1, 1), GTPU_PORT)],
        "n3": link("n3", beyond, RAN_N2, (n3, 2), GTPU_PORT),
    });
    configuration["du"] = json!({
        "cell": CELL,
        "f1c": {"local": DU_F1, "cu": format!("{CU_F1}:{F1AP_PORT}")},
        "f1u": link("f1u", f1u, DU_F1, (f1, 2), GTPU_PORT),
        "uu": link("uu", beyond, DU_UU, (uu, 1), UU_PORT),
    });
    let du = if beyond { format!("10.{uu}.0.1:{UU_PORT}") } else { format!("{DU_UU}:{UU_PORT}") };
    configuration["ran"] = json!({
        "uu": link("uu", beyond, UE_UU, (uu, 2), UU_PORT),
        "cells": [{"id": CELL, "du": du}],
    });
    if beyond {
        let mut access = link("n3", true, CORE_N2, (n3, 1), GTPU_PORT);
        access["name"] = "n3".into();
        access["role"] = "n3".into();
        // The SMF, which answers router solicitations, is reached by the kernel.
        let n4u = json!({"name": "n4u", "role": "n4u", "gtpu": format!("127.0.0.7:{GTPU_PORT}")});
        if let Some(upf) = configuration["upf"].as_object_mut() {
            upf.remove("gtpu");
            upf.insert("interfaces".to_owned(), json!([access, n4u]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names_and_differ_in_their_links_only() {
        let configuration = |model| {
            let mut made = json!({"upf": {"gtpu": "10.200.0.1:2152"}});
            add(&mut made, model, Path::new("/tmp/x"));
            made
        };
        let by_memif = |made: &Value| {
            let links = [&made["ran"]["uu"], &made["du"]["f1u"], &made["cu"]["f1u"][0], &made["cu"]["n3"]];
            links.map(|link| link["backend"] == "memif")
        };
        for (model, expected) in [
            (Model::Kernel, [false; 4]),
            (Model::Hybrid, [false, true, true, false]),
            (Model::Bypass, [true; 4]),
        ] {
            assert_eq!(model.name().parse(), Ok(model));
            let made = configuration(model);
            assert_eq!(by_memif(&made), expected, "{model:?}");
            assert_eq!(made["upf"].get("gtpu").is_none(), model == Model::Bypass);
            assert_eq!(made["cu"]["f1c"], made["du"]["f1c"]["cu"]);
        }
        assert!("kernels".parse::<Model>().is_err());
    }
}
