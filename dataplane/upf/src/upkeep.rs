//! Follows changes of the machine while the UPF runs: addresses of interfaces, and the UPF's own devices.
//!
//! Addresses matter in two places: UEs must not reach them ([`Guard`]), and packets in a tunnel to one of them
//! would come back ([`Tables::set_local_addresses`]). One task follows them and repairs the devices of data
//! networks ([`crate::n6::Devices`]), when the kernel reports a change and once a second.

use std::sync::Arc;
use std::time::Duration;

use net::link::{Cidr, InterfaceAddress, Watch};
use tokio::sync::watch;

use crate::config::Config;
use crate::n6::Devices;
use crate::pipeline::guard::Guard;
use crate::tables::Tables;

/// Interval of checks when no change is reported.
const LOOK: Duration = Duration::from_secs(1);
/// Wait after a change, as further changes mostly follow, as when an interface gets its addresses.
const SETTLE: Duration = Duration::from_millis(10);

/// Follows the addresses of this machine.
pub struct Addresses {
    config: Arc<Config>,
    guard: Arc<Guard>,
    tables: Arc<Tables>,
    known: Vec<InterfaceAddress>,
}

impl Addresses {
    /// Passes the present addresses of the machine to guard and tables.
    ///
    /// # Errors
    /// The kernel did not list the addresses.
    pub fn new(config: Arc<Config>, guard: Arc<Guard>, tables: Arc<Tables>) -> std::io::Result<Addresses> {
        let mut addresses = Addresses { config, guard, tables, known: Vec::new() };
        addresses.set(net::link::local_addresses()?);
        Ok(addresses)
    }

    fn update(&mut self) {
        // If the addresses cannot be listed now, the next check lists them.
        if let Ok(listed) = net::link::local_addresses()
            && listed != self.known
        {
            self.set(listed);
        }
    }

    fn set(&mut self, listed: Vec<InterfaceAddress>) {
        self.guard.set_addresses(listed.iter().map(|own| own.address));
        let addresses: Vec<Cidr> = listed.iter().map(|own| own.address).collect();
        let peers = self.tables.set_local_addresses(self.config.local_far_ends(&addresses));
        if !peers.is_empty() {
            tracing::error!(
                ?peers,
                "tunnels lead to addresses that are now this machine's or broadcast addresses of its networks; \
                 their packets are dropped"
            );
        }
        self.known = listed;
    }
}

/// Follows addresses and repairs devices until told to stop.
pub async fn run(mut addresses: Addresses, mut devices: Devices, mut stop: watch::Receiver<bool>) {
    let mut changes = Watch::here()
        .inspect_err(|error| tracing::warn!(%error, "changes of addresses are noticed after a second only"))
        .ok();
    loop {
        let changed = async {
            match &mut changes {
                Some(changes) => changes.changed().await,
                None => std::future::pending().await,
            }
        };
        let told = tokio::select! {
            () = net::time::sleep(LOOK) => false,
            () = changed => true,
            // An error means that nobody is left who could stop this task.
            _ = stop.changed() => return,
        };
        if told {
            addresses.update();
            net::time::sleep(SETTLE).await;
        }
        addresses.update();
        devices.repair().await;
    }
}
