//! Masquerading of UE addresses that leave through N6, with the system's `nft`.
//!
//! The rules are in one table named `godwit` per family. The table is removed when [`Masquerade`] is
//! dropped (and, in a lab, with the namespace).

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::capability;
use crate::link::Cidr;
use crate::netns::NetNs;

/// Why masquerading could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NatError {
    /// The program is not installed.
    #[error(
        "NAT needs `nft`, which is not installed (Debian/Ubuntu: apt install nftables), or turn `nat` off"
    )]
    NoNft,
    /// The program could not be run.
    #[error("cannot run nft: {0}")]
    Run(#[from] io::Error),
    /// The program refused the rules: missing rights, or a kernel without nftables.
    #[error("nft refused the masquerading rules: {0}")]
    Refused(String),
}

/// Active masquerading; ends when dropped.
#[derive(Debug)]
pub struct Masquerade {
    table: String,
    namespace: NetNs,
}

impl Masquerade {
    /// Masquerades packets from `sources` that leave by any interface except `inside` (the N6 TUN
    /// device), in the calling thread's namespace. `name` distinguishes several: the table is
    /// `godwit_<name>`, or `godwit` if the name is empty. A table of that name left by a killed process
    /// is replaced.
    ///
    /// # Errors
    /// [`NatError`].
    pub fn start(name: &str, sources: &[Cidr], inside: &str) -> Result<Masquerade, NatError> {
        let table = if name.is_empty() { "godwit".to_owned() } else { format!("godwit_{name}") };
        nft(&ruleset(&table, sources, inside))?;
        Ok(Masquerade { table, namespace: NetNs::current()? })
    }
}

impl Drop for Masquerade {
    fn drop(&mut self) {
        let script = format!("delete table ip {0}\ndelete table ip6 {0}\n", self.table);
        match self.namespace.enter(|| nft(&script)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, table = self.table, "NAT rules stay behind"),
            Err(error) => tracing::warn!(%error, table = self.table, "NAT rules stay behind"),
        }
    }
}

/// One atomic nft script: (re)creates both tables.
fn ruleset(table: &str, sources: &[Cidr], inside: &str) -> String {
    let mut script = String::new();
    for (family, v4) in [("ip", true), ("ip6", false)] {
        // Adding before deleting: then the deletion works whether or not the table existed.
        script += &format!(
            "add table {family} {table}\ndelete table {family} {table}\nadd table {family} {table}\n"
        );
        script += &format!(
            "add chain {family} {table} postrouting {{ type nat hook postrouting priority srcnat; policy accept; }}\n"
        );
        for source in sources.iter().filter(|source| source.address().is_ipv4() == v4) {
            let network = source.network();
            script += &format!(
                "add rule {family} {table} postrouting {family} saddr {network} oifname != \"{inside}\" masquerade\n"
            );
        }
    }
    script
}

fn nft(script: &str) -> Result<(), NatError> {
    let program = capability::program("nft").ok_or(NatError::NoNft)?;
    let mut child = Command::new(program)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(NatError::Refused(reason.lines().next().unwrap_or("no reason given").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_exist_while_held_and_survive_a_stale_table() {
        let Some(namespace) = NetNs::for_test() else { return };
        let list = || {
            let program = capability::program("nft").expect("nftables is a test dependency");
            let output = Command::new(program).args(["list", "ruleset"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let pools: Vec<Cidr> = vec!["10.45.0.1/16".parse().unwrap(), "fd00:45::/48".parse().unwrap()];
        namespace
            .enter(|| {
                let nat = Masquerade::start("internet", &pools, "gw0").unwrap();
                let rules = list();
                assert!(rules.contains("ip saddr 10.45.0.0/16 oifname != \"gw0\" masquerade"), "{rules}");
                assert!(rules.contains("ip6 saddr fd00:45::/48 oifname != \"gw0\" masquerade"), "{rules}");
                // As after a kill: the table exists.
                std::mem::forget(nat);
                let again = Masquerade::start("internet", &pools, "gw0").unwrap();
                assert_eq!(list().matches("masquerade").count(), 2);
                drop(again);
                assert_eq!(list(), "");
            })
            .unwrap();
    }
}
