//! Keys of sessions for packets without tunnel: addresses and framed routes (TS 29.244 §5.16).

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::{Used, Writer};
use crate::plan::Plan;
use crate::routes::{Network, Routes};
use crate::session::TableKey;
use crate::tables::prefix64;
use rcu::Block;

impl Writer {
    pub(super) fn publish_route(&mut self, instance: u8, address: IpAddr, length: u8, block: Block) {
        let tables = Arc::clone(&self.tables);
        let Ok(network) = Network::new(address, length) else { return self.arena.discard(block) };
        let known = self.routes.get(&(instance, network)).copied();
        let Some(slot) = known.or_else(|| self.free_slot()) else { return self.arena.discard(block) };
        self.arena.install(&tables.sparse, slot as usize, block);
        if self.routes.insert((instance, network), slot).is_none() {
            self.change_routes(instance, |routes| routes.with(network, slot));
        }
    }

    pub(super) fn withdraw_route(&mut self, instance: u8, address: IpAddr, length: u8, seid: u64) {
        let tables = Arc::clone(&self.tables);
        let Ok(network) = Network::new(address, length) else { return };
        let Some(slot) = self.routes.get(&(instance, network)).copied() else { return };
        let owner = self.arena.get(&tables.sparse, slot as usize).map(|block| block[0].seid());
        if owner == Some(seid) {
            self.routes.remove(&(instance, network));
            self.change_routes(instance, |routes| routes.without(network));
            self.arena.clear(&tables.sparse, slot as usize);
            self.queue.push(Used::Sparse(slot));
        }
    }

    fn change_routes(&mut self, instance: u8, change: impl FnOnce(&Routes<u32>) -> Routes<u32>) {
        let tables = Arc::clone(&self.tables);
        let cell = &tables.instance(instance).keys.routes;
        let routes = {
            let guard = self.reader.enter();
            change(&cell.load(&guard).cloned().unwrap_or_default())
        };
        cell.store(Some(Box::new(routes)), &mut self.bin);
    }
}

/// The keys under which the tables hold a session with packets without tunnel from a network instance, each once.
pub(super) fn native_keys(plan: &Plan, instance: u8) -> Vec<TableKey> {
    let v4 = plan.native.ipv4.iter().map(|address| TableKey::Ue(instance, (*address).into()));
    // A slot is for a /64, which UEs usually have; other prefixes are held as routes with their length.
    let v6 = plan.native.ipv6.iter().map(|(prefix, length)| match length {
        64 => TableKey::Ue(instance, IpAddr::V6(Ipv6Addr::from_bits(prefix64(*prefix)))),
        _ => TableKey::Route(instance, (*prefix).into(), *length),
    });
    let framed =
        plan.native.framed.iter().map(|(prefix, length)| TableKey::Route(instance, *prefix, *length));
    let mut keys: Vec<TableKey> = Vec::new();
    for key in v4.chain(v6).chain(framed) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
