//! Numbers of the places to which packets are sent: UEs and CUs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use pktio::Peers;
use pktio::peers::PEERS;

/// Numbers of peers, each as long as somebody uses it. A number belongs to an interface.
#[derive(Debug, Default)]
pub(crate) struct PeerNumbers {
    pub(crate) table: Arc<Peers>,
    used: HashMap<(u8, SocketAddr), Use>,
    free: Vec<u16>,
    /// Numbers up to this one have been used.
    highest: u16,
}

#[derive(Debug)]
struct Use {
    number: u16,
    users: usize,
}

impl PeerNumbers {
    /// The number of an address, which gets one more user; `None` when there are no numbers or no memory.
    pub(crate) fn take(&mut self, interface: u8, address: SocketAddr) -> Option<u16> {
        if let Some(known) = self.used.get_mut(&(interface, address)) {
            known.users += 1;
            return Some(known.number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if usize::from(self.highest) + 1 < PEERS => {
                self.highest += 1;
                self.highest
            }
            None => return None,
        };
        if !self.table.set(number, address) {
            self.free.push(number);
            return None;
        }
        self.used.insert((interface, address), Use { number, users: 1 });
        Some(number)
    }

    /// An address has one user less.
    pub(crate) fn give_back(&mut self, interface: u8, address: SocketAddr) {
        let Some(known) = self.used.get_mut(&(interface, address)) else { return };
        known.users -= 1;
        if known.users == 0 {
            self.free.push(known.number);
            self.used.remove(&(interface, address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_when_its_last_user_has_gone() {
        let mut peers = PeerNumbers::default();
        let [a, b] = ["192.0.2.1:1", "192.0.2.2:1"].map(|address| address.parse().unwrap());
        assert_eq!((peers.take(0, a), peers.take(0, b), peers.take(0, a)), (Some(1), Some(2), Some(1)));
        assert_eq!(peers.take(1, a), Some(3), "another interface");
        peers.give_back(0, a);
        assert_eq!(peers.table.address(1), Some(a));
        peers.give_back(0, a);
        let c = "192.0.2.3:1".parse().unwrap();
        assert_eq!((peers.take(0, c), peers.table.address(1)), (Some(1), Some(c)));
    }
}
