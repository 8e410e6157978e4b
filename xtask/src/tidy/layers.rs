//! Which crate may depend on which: the table of ARCHITECTURE.md, checked against `cargo metadata`.
//!
//! Planes are connected at reference points only. So a controlplane crate that links a dataplane crate,
//! or an NF that links another, is wrong even if it compiles.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use super::Finding;

/// What the crates of one group may depend on: whole groups, or single crates of other groups.
struct Rule {
    group: &'static str,
    groups: &'static [&'static str],
    crates: &'static [&'static str],
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule { group: "base", groups: &["base"], crates: &[], why: "base is what everything else stands on" },
    Rule {
        group: "wire",
        groups: &["base"],
        crates: &[],
        why: "a codec knows no other codec, no socket and no clock, so that it runs under the fuzzer unchanged",
    },
    Rule {
        group: "transport",
        groups: &["base", "transport"],
        // The endpoint without I/O to which `gtpc` gives a socket.
        crates: &["gtpv2c"],
        why: "transport moves bytes and operations; it does not know what they mean",
    },
    Rule {
        group: "dataplane",
        groups: &["base", "wire", "transport", "dataplane"],
        crates: &[],
        why: "the user plane meets the control plane on N4 only",
    },
    Rule {
        group: "controlplane",
        groups: &["base", "wire", "transport"],
        crates: &["nf", "store", "n4", "ipam"],
        why: "an NF reaches another one only through its SBI operations, and the UPF only through PFCP",
    },
    Rule {
        group: "epc",
        groups: &["base", "wire", "transport"],
        crates: &["nf", "store", "n4", "ipam"],
        why: "the gateway meets the user plane on PFCP only",
    },
    Rule {
        group: "mec",
        groups: &["base", "wire", "transport"],
        // The switch is a node of the forwarding engine, with tables of its own. The controller has replication as an application.
        crates: &["replication", "nf", "store", "pktio", "path", "rcu", "xdp"],
        why: "edge control steers through standard interfaces, and its switch is no part of the UPF",
    },
    Rule {
        group: "ran",
        groups: &["base", "wire", "transport", "ran"],
        crates: &["pktio", "path"],
        why: "the simulator must work against any core, so it knows nothing of ours",
    },
];

/// Groups that may depend on every crate, and on which no crate may depend (see [`SHARED_TOPS`] for
/// exceptions).
const TOPS: &[&str] = &["apps", "bench", "tests", "fuzz", "xtask"];

/// Crates of the top groups that other top groups may use (docs/adr/0001-lab-is-a-library.md).
const SHARED_TOPS: &[(&str, &[&str])] = &[
    ("lab", &["apps", "bench", "tests"]),
    ("output", &["apps", "bench"]),
    ("testkit", &["tests", "bench"]),
    // The independent switch, for tests of what speaks OpenFlow.
    ("openvswitch", &["wire", "mec"]),
    // The server, for tests of what keeps records in it.
    ("postgres", &["controlplane", "epc", "mec", "bench"]),
    // Independent neighbours of the gateway.
    ("gogtp", &["epc", "tests", "bench", "apps"]),
    // Its configuration reader is a decoder and needs fuzzing.
    ("cli", &["fuzz"]),
];

/// Third-party crates that one crate wraps, so that only that crate changes when they are replaced.
const WRAPPED: &[(&str, &[&str], &str)] = &[
    ("oxirush-ngap", &["ngap"], "use the types of our `ngap`"),
    ("oxirush-nas", &["nas"], "use the types of our `nas`"),
    ("oxirush-security", &["nas"], "use `nas`, which wraps algorithms and key derivation"),
    ("dcsctp", &["net"], "use `net::sctp`"),
    ("rtnetlink", &["net"], "use `net::link`"),
    ("rusqlite", &["store"], "use the trait of `store`"),
    ("tokio-postgres", &["store"], "use `store::records`"),
    ("hyper", &["sbi", "nf", "lab", "bench"], "use `sbi` for SBI operations, `nf::oam` for administration"),
];

/// Groups that may use anyhow, because they are programs and experiments: libraries have typed errors.
const ANYHOW_GROUPS: &[&str] = &["apps", "bench", "tests", "fuzz", "xtask"];

struct Package {
    name: String,
    group: String,
    manifest: PathBuf,
    dependencies: Vec<String>,
}

/// Appends a finding for each dependency that the table does not allow.
pub fn check(root: &Path, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let packages = packages(root)?;
    for package in &packages {
        for dependency in &package.dependencies {
            if let Some(target) = packages.iter().find(|p| p.name == *dependency) {
                if let Some(why) = refuse(package, target) {
                    let message = format!(
                        "`{}` ({}) may not depend on `{}` ({}): {why}. Move the shared part down to a crate both may \
                         use, or talk through the reference point.",
                        package.name, package.group, target.name, target.group
                    );
                    findings.push(Finding::new(&package.manifest, 0, "layers", message));
                }
            } else {
                third_party(package, dependency, findings);
            }
        }
        manifest_text(root, package, findings)?;
    }
    Ok(())
}

/// Why `package` may not use `target`; `None` if it may.
fn refuse(package: &Package, target: &Package) -> Option<&'static str> {
    if package.name == target.name {
        // The crate's tests turn on one of its own features.
        return None;
    }
    if ["classifier", "cotcp"].contains(&package.name.as_str()) {
        return Some("it is offered as a library of its own and depends on nothing of ours");
    }
    if TOPS.contains(&target.group.as_str()) {
        let shared = SHARED_TOPS.iter().find(|(name, _)| *name == target.name);
        return match shared {
            Some((_, users)) if users.contains(&package.group.as_str()) => None,
            _ => Some("programs, experiments and tests are not depended on"),
        };
    }
    if TOPS.contains(&package.group.as_str()) {
        return None;
    }
    let Some(rule) = RULES.iter().find(|rule| rule.group == package.group) else {
        return Some("this folder has no row in the table of xtask/src/tidy/layers.rs; add one, with an ADR");
    };
    let allowed = rule.groups.contains(&target.group.as_str()) || rule.crates.contains(&target.name.as_str());
    (!allowed).then_some(rule.why)
}

fn third_party(package: &Package, dependency: &str, findings: &mut Vec<Finding>) {
    if let Some((_, users, instead)) = WRAPPED.iter().find(|(name, ..)| *name == dependency)
        && !users.contains(&package.name.as_str())
    {
        let message = format!("`{dependency}` is wrapped by one crate: {instead}.");
        findings.push(Finding::new(&package.manifest, 0, "wrapped", message));
    }
    if dependency == "anyhow" && !ANYHOW_GROUPS.contains(&package.group.as_str()) {
        let message = "a library names its errors: one `thiserror` enum per operation, so that callers can act on \
                       the cause. `anyhow` is for apps, bench, tests and xtask.";
        findings.push(Finding::new(&package.manifest, 0, "errors", message));
    }
    if package.group == "wire" && ["tokio", "nix", "libc", "socket2", "mio"].contains(&dependency) {
        let message =
            format!("a wire crate opens no socket and reads no clock, so it has no use for `{dependency}`.");
        findings.push(Finding::new(&package.manifest, 0, "wire", message));
    }
}

/// Rules about the manifests: where versions are written, and that the workspace's lints are on.
fn manifest_text(root: &Path, package: &Package, findings: &mut Vec<Finding>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(&package.manifest))?;
    if !text.contains("[lints]\nworkspace = true") {
        let message = "add `[lints]` with `workspace = true`: all crates share one set of lints.";
        findings.push(Finding::new(&package.manifest, 0, "lints", message));
    }
    let mut in_dependencies = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies
            && (line.contains("= \"") || line.contains("version =") || line.contains("path ="))
        {
            let message = "write `name.workspace = true` and put the version in the root Cargo.toml: one version of \
                           each dependency, chosen in one place.";
            findings.push(Finding::new(&package.manifest, index + 1, "versions", message));
        }
    }
    Ok(())
}

fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = super::metadata(root, false)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    packages.iter().map(|package| read(root, package)).collect()
}

fn read(root: &Path, package: &Value) -> anyhow::Result<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("unexpected form of cargo metadata");
    let manifest = text(&package["manifest_path"])?;
    let manifest = Path::new(&manifest).strip_prefix(root).context("a member outside the root")?.to_owned();
    let group = manifest.iter().next().map(|part| part.to_string_lossy().into_owned()).unwrap_or_default();
    let mut dependencies = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        // Development dependencies count, too: otherwise a test could connect two planes.
        dependencies.push(text(&dependency["name"])?);
    }
    Ok(Package { name: text(&package["name"])?, group, manifest, dependencies })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, group: &str) -> Package {
        Package { name: name.into(), group: group.into(), manifest: PathBuf::new(), dependencies: Vec::new() }
    }

    fn allowed(from: (&str, &str), to: (&str, &str)) -> bool {
        refuse(&package(from.0, from.1), &package(to.0, to.1)).is_none()
    }

    #[test]
    fn the_table_of_the_design() {
        assert!(allowed(("amf", "controlplane"), ("nf", "controlplane")));
        assert!(allowed(("smf", "controlplane"), ("pfcp", "wire")));
        assert!(allowed(("smf", "controlplane"), ("n4", "controlplane")));
        assert!(allowed(("epc", "epc"), ("ipam", "controlplane")));
        assert!(!allowed(("epc", "epc"), ("smf", "controlplane")));
        assert!(allowed(("controller", "mec"), ("replication", "mec")));
        assert!(!allowed(("controller", "mec"), ("switch", "mec")));
        assert!(allowed(("cli", "apps"), ("upf", "dataplane")));
        assert!(allowed(("simulator", "ran"), ("pktio", "dataplane")));
        assert!(allowed(("cu", "ran"), ("n2", "ran")));
        assert!(!allowed(("amf", "controlplane"), ("smf", "controlplane")));
        assert!(!allowed(("smf", "controlplane"), ("upf", "dataplane")));
        assert!(!allowed(("upf", "dataplane"), ("smf", "controlplane")));
        assert!(!allowed(("pfcp", "wire"), ("packet", "wire")));
        assert!(!allowed(("sbi", "transport"), ("nas", "wire")));
        assert!(allowed(("gtpc", "transport"), ("gtpv2c", "wire")));
        assert!(!allowed(("simulator", "ran"), ("amf", "controlplane")));
        assert!(!allowed(("classifier", "dataplane"), ("types", "base")));
        assert!(!allowed(("cotcp", "transport"), ("net", "transport")));
    }

    #[test]
    fn programs_are_not_depended_on_apart_from_the_shared_ones() {
        assert!(!allowed(("cli", "apps"), ("bench", "bench")));
        assert!(allowed(("bench", "bench"), ("output", "apps")));
        assert!(allowed(("bench", "bench"), ("lab", "apps")));
        assert!(allowed(("e2e", "tests"), ("lab", "apps")));
        assert!(allowed(("e2e", "tests"), ("testkit", "tests")));
        assert!(allowed(("openflow", "wire"), ("openvswitch", "tests")));
        assert!(allowed(("epc", "epc"), ("gogtp", "tests")));
        assert!(allowed(("cli", "apps"), ("gogtp", "tests")));
        assert!(allowed(("store", "controlplane"), ("postgres", "tests")));
        assert!(!allowed(("upf", "dataplane"), ("postgres", "tests")));
        assert!(!allowed(("upf", "dataplane"), ("openvswitch", "tests")));
        assert!(!allowed(("sbi", "transport"), ("testkit", "tests")));
        assert!(!allowed(("upf", "dataplane"), ("lab", "apps")));
        assert!(!allowed(("e2e", "tests"), ("cli", "apps")));
    }
}
