//! The packets of a vector, by the interface through which they leave.

use pktio::{Sent, VECTOR, Vector};

use crate::Ports;

/// Interfaces that a graph can have: their numbers have 8 bits, so that finding a list takes no check.
pub const MAX_INTERFACES: usize = 256;

/// Positions of packets in a vector, for one interface.
#[derive(Clone, Copy)]
struct List {
    len: u16,
    positions: [u16; VECTOR],
}

/// For every interface, the packets of a vector that it sends, in the order in which they were added.
pub struct Outputs {
    lists: Box<[List; MAX_INTERFACES]>,
    /// Interfaces that exist.
    used: usize,
}

impl Outputs {
    /// For `interfaces` interfaces.
    pub fn new(interfaces: usize) -> Outputs {
        let lists = Box::new([List { len: 0, positions: [0; VECTOR] }; MAX_INTERFACES]);
        Outputs { lists, used: interfaces.min(MAX_INTERFACES) }
    }

    /// Adds the packet at a position of the vector. More packets than a vector has are not added.
    #[inline(always)]
    pub fn push(&mut self, interface: u8, at: usize) {
        let list = &mut self.lists[usize::from(interface)];
        if let Some(position) = list.positions.get_mut(usize::from(list.len)) {
            *position = at as u16;
            list.len += 1;
        }
    }

    /// Forgets all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.lists[..self.used].iter_mut().for_each(|list| list.len = 0);
    }

    /// Sends the packets of `vector` through the ports of their interfaces. Calls `sent` with the number of each interface
    /// that had some, and the result.
    #[inline]
    pub fn transmit(&mut self, vector: &mut Vector, ports: &mut Ports, mut sent: impl FnMut(usize, Sent)) {
        let lists = self.lists[..self.used].iter().zip(ports);
        for (number, (list, port)) in lists.enumerate().filter(|(_, (list, _))| list.len > 0) {
            let positions = &list.positions[..usize::from(list.len).min(VECTOR)];
            sent(number, port.transmit(vector, positions));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::{Arc, Mutex};

    use pktio::Port;

    use super::*;

    /// Notes the packets that it sends.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Port for Notes {
        fn receive(&mut self, _: &mut Vector) -> io::Result<usize> {
            Ok(0)
        }

        fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
            let packets = selected.iter().map(|at| vector.frames()[usize::from(*at)].packet().to_vec());
            self.0.lock().unwrap().extend(packets);
            Sent { packets: selected.len(), ..Sent::default() }
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    #[test]
    fn packets_leave_in_order_through_their_interfaces() {
        let mut vector = Vector::new(VECTOR, 16);
        for n in 0..VECTOR as u8 {
            assert!(vector.push(&[n], ([0; 4], 0).into()));
        }
        let notes: [Notes; 3] = Default::default();
        let mut ports: Ports = notes.iter().map(|notes| Box::new(notes.clone()) as Box<dyn Port>).collect();
        let mut outputs = Outputs::new(3);
        // Interface 1 gets nothing, and interface 9 does not exist.
        for at in 0..VECTOR {
            outputs.push(if at % 3 == 0 { 2 } else { 0 }, at);
        }
        outputs.push(9, 5);
        // More than a vector has.
        (0..2 * VECTOR).for_each(|_| outputs.push(2, 63));
        let mut sent = Vec::new();
        outputs.transmit(&mut vector, &mut ports, |number, result| sent.push((number, result.packets)));
        let taken = |number: usize| -> Vec<u8> {
            notes[number].0.lock().unwrap().iter().map(|packet| packet[0]).collect()
        };
        let expected: [Vec<u8>; 2] =
            [false, true].map(|third| (0..64).filter(|n| (n % 3 == 0) == third).collect());
        assert_eq!(taken(0), expected[0]);
        assert_eq!((&taken(2)[..22], taken(2).len(), taken(1).len()), (&expected[1][..], VECTOR, 0));
        assert_eq!(sent, [(0, 42), (2, VECTOR)]);
        outputs.clear();
        outputs.transmit(&mut vector, &mut ports, |number, _| panic!("{number} has nothing left"));
    }
}
