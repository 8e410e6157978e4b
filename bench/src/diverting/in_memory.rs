//! Our switch's host path between ports in memory: no threads, no system calls. It forwards users' packets by Table I and steers half
//! of the users, or it forwards by its forwarding rules alone.

use std::net::Ipv4Addr;

use anyhow::ensure;
use controller::switch::Dialect;
use net::time::{self, Duration};
use openflow::Change;
use path::{Graph as _, Ports};
use pktio::memory::{self, Sink};
use pktio::{Port, VECTOR, Vector};
use switch::core::{Identity, PortCounts, Switch, SwitchPort};
use switch::host::graph::SwitchGraph;
use switch::pipeline::{Limits, Pipeline, Ports as PipelinePorts};

use super::steering::{GTP, Ground};
use super::users::{self, DEVICES, MACS, NEW, OLD};

/// Vectors between two readings of the clock.
const WINDOW: usize = 8;
/// Packets that are compared before the first sample.
const COMPARED: u32 = 64;

/// What the switch does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Steering {
    /// It only forwards.
    Off,
    /// It steers the first half of the users.
    On,
}

impl Steering {
    pub(super) const ALL: [Steering; 2] = [Steering::Off, Steering::On];

    pub(super) fn name(self) -> &'static str {
        match self {
            Steering::Off => "off",
            Steering::On => "on",
        }
    }

    /// How many of the users it steers.
    fn of(self, users: u32) -> u32 {
        if self == Steering::On { users / 2 } else { 0 }
    }
}

/// A switch.
pub(super) struct InMemory {
    pub(super) steering: Steering,
    graph: SwitchGraph,
    discard: Ports,
    users: u32,
    /// A user's packet to the first anchor, and to the second one.
    frames: [Vec<u8>; 2],
    window: Vec<Vector>,
    state: u32,
}

impl InMemory {
    /// A switch with the rules of these users, whose packets have `size` octets.
    ///
    /// # Errors
    /// It refuses a rule.
    pub(super) fn new(steering: Steering, users: u32, size: usize) -> anyhow::Result<InMemory> {
        let port = |(number, name): (u32, &str)| SwitchPort {
            number,
            name: name.to_owned(),
            mac: MACS[number as usize - 1],
            counts: PortCounts::default(),
        };
        let live = (1..).zip(DEVICES).map(|(number, _)| (number, true)).collect();
        let pipeline = Pipeline::new(Limits::default(), PipelinePorts { live, gtp: Some(GTP), hold: None });
        let identity = Identity { datapath_id: 1, description: String::new() };
        let ports = (1..).zip(DEVICES).map(port).collect();
        let switch = Switch::new(identity, pipeline, ports, 1000);
        let ends = [0, OLD, NEW].map(|end| (MACS[end], 1 + end as u32));
        let ground = Ground { dialect: Dialect::Native, ports: switch.port_descriptions(), ends };
        let rules = ground.entries(steering.of(users))?;
        switch.commit(&rules.into_iter().map(Change::FlowMod).collect::<Vec<_>>())?;
        let discard: Ports = DEVICES.map(|_| Box::new(Sink::default()) as Box<dyn Port>).into();
        let (graph, ..) = switch::host::graph(&switch, &discard);
        let window = (0..WINDOW).map(|_| Vector::of(graph.home())).collect();
        let frames = [users::frame(OLD, size)?, users::frame(NEW, size)?];
        Ok(InMemory { steering, graph, discard, users, frames, window, state: 1 })
    }

    /// Sends packets of different users through the switch, and compares what comes out octet by octet.
    ///
    /// # Errors
    /// A packet is not as it must be.
    pub(super) fn verify(&mut self) -> anyhow::Result<()> {
        let (mut ports, wires): (Ports, Vec<_>) = DEVICES
            .map(|_| memory::pair(VECTOR))
            .into_iter()
            .map(|(port, wire)| (Box::new(port) as Box<dyn Port>, wire))
            .unzip();
        let mut vector = Vector::of(self.graph.home());
        for number in 0..COMPARED {
            let user = self.draw();
            self.frames.iter_mut().for_each(|frame| users::mark(frame, number, user));
            vector.clear();
            vector.push(&self.frames[0], nowhere());
            self.graph.process(0, &mut vector, time::now_ns(), &mut ports);
            let to = if user < self.steering.of(self.users) { NEW } else { OLD };
            let sent: Vec<Vec<u8>> = wires[to].take().into_iter().map(|(packet, _)| packet).collect();
            ensure!(
                sent == [self.frames[to - OLD].clone()],
                "user {user}'s packet does not get to {}",
                DEVICES[to]
            );
        }
        Ok(())
    }

    /// Lets every user's packets be in the caches that have room for them.
    pub(super) fn warm(&mut self) {
        let mut vector = Vector::of(self.graph.home());
        for user in 0..self.users {
            users::mark(&mut self.frames[0], user, user);
            vector.push(&self.frames[0], nowhere());
            if vector.len() == VECTOR || user + 1 == self.users {
                self.graph.process(0, &mut vector, time::now_ns(), &mut self.discard);
                vector.clear();
            }
        }
    }

    fn draw(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 8) % self.users
    }

    /// Nanoseconds per packet of users at random, measured for at least so long, without the making of the packets.
    pub(super) fn sample(&mut self, at_least: Duration) -> f64 {
        let (mut spent, mut packets, mut warm) = (Duration::ZERO, 0, true);
        while spent < at_least {
            let mut window = std::mem::take(&mut self.window);
            for vector in &mut window {
                vector.clear();
                for number in 0..VECTOR as u32 {
                    let user = self.draw();
                    users::mark(&mut self.frames[0], number, user);
                    vector.push(&self.frames[0], nowhere());
                }
            }
            let start = time::now_std();
            for vector in &mut window {
                self.graph.process(0, vector, time::now_ns(), &mut self.discard);
            }
            let took = time::now_std() - start;
            self.graph.turn(time::now_ns(), &mut self.discard);
            self.window = window;
            // The first window is not counted: it refills the caches after the other contender's turn.
            if !std::mem::take(&mut warm) {
                spent += took;
                packets += WINDOW * VECTOR;
            }
        }
        spent.as_nanos() as f64 / packets as f64
    }
}

fn nowhere() -> std::net::SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 0).into()
}
