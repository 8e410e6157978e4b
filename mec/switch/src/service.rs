//! A whole switch on this machine: its interfaces, workers and agent, from a configuration.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use net::link::{self, Links};
use net::task::Boxed;
use net::tcp::{self, TcpListener};
use path::Ports;
use pktio::VECTOR;
use pktio::af_xdp::device::Device;
use pktio::af_xdp::{AfXdpError, AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::tun::{TunError, TunPort};
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;
use telemetry::DropReason;
use telemetry::worker::Drops;

use crate::agent::driver::Agent;
use crate::config::{Config, Hold};
use crate::core::{Identity, PortCounts, Switch, SwitchPort};
use crate::host::{self, Host, PortSet};
use crate::offload::manager::{self, Manager};
use crate::offload::{Message, Offload};
use crate::pipeline::{Limits, Pipeline, Ports as PipelinePorts};
use openflow::PortNo;

/// Why a switch does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An interface cannot be used.
    #[error("port {number}: {error}")]
    Interface {
        /// The port.
        number: u32,
        /// Why.
        error: AfXdpError,
    },
    /// The TAP device cannot be made.
    #[error("local: {0}")]
    Local(#[from] TunError),
    /// It cannot be brought up.
    #[error("local: {0}")]
    LocalLink(#[from] link::LinkError),
    /// XDP for known tunnels.
    #[error("xdp: {0}")]
    Xdp(#[from] manager::StartError),
    /// There are more workers than queues.
    #[error("workers: count is {count}, but {interface} has {queues} queues")]
    Queues {
        /// Workers that were asked for.
        count: u32,
        /// The interface with the fewest.
        interface: String,
        /// Its queues.
        queues: u32,
    },
    /// Something else of the operating system.
    #[error("{what}: {error}")]
    System {
        /// What was to be done.
        what: String,
        /// Its answer.
        error: std::io::Error,
    },
}

/// A running switch. It ends when this is dropped.
pub struct Service {
    switch: Arc<Switch>,
    // The agent first: nobody changes entries while workers end.
    _agent: Agent,
    watch: tokio::task::JoinHandle<()>,
    _manager: Option<Manager>,
    host: Host,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// What was opened.
struct Opened {
    interfaces: Vec<(u32, Arc<Interface>, bool)>,
    local: Option<TunPort>,
}

impl Service {
    /// Starts a switch in this thread's network namespace. Needs a tokio runtime.
    ///
    /// # Errors
    /// What cannot be opened.
    pub fn start(config: &Config) -> Boxed<'_, Result<Service, StartError>> {
        Box::pin(async move {
            let system = |what: &str| {
                let what = what.to_owned();
                move |error| StartError::System { what, error }
            };
            let opened = open(config).await?;
            // Before links are looked at, so that no change is missed.
            let mut links = link::Watch::here().map_err(system("links"))?;
            let ports = describe(config, &opened);
            let devices: Vec<_> =
                ports.iter().map(|port| (port.number, Device::find(&port.name).ok())).collect();
            let live = devices.iter().map(|(number, device)| (*number, is_live(device.as_ref()))).collect();
            let mut limits = Limits { tables: config.tables, entries: config.entries, ..Limits::default() };
            if let Some(hold) = &config.hold {
                limits.hold = hold.limits();
            }
            let hold = config.hold.as_ref().map(Hold::ports);
            let pipeline = Pipeline::new(limits, PipelinePorts { live, gtp: config.gtp_port, hold });
            let identity =
                Identity { datapath_id: config.datapath_id, description: config.description.clone() };
            let switch = Switch::new(identity, pipeline, ports, config.packet_in_per_s);
            let sets = workers(config, &opened)?;
            let messages = offload(config, &opened, &switch)?;
            let host = host::start(&switch, sets, &config.workers).map_err(system("workers"))?;
            let chains: Vec<_> =
                opened.interfaces.iter().map(|(_, interface, _)| interface.chain()).collect();
            let start = |messages| Manager::start(&switch, messages, &chains);
            let manager = messages.map(start).transpose()?.flatten();
            let listener = listen(config).await.map_err(system("listen"))?;
            let agent = Agent::start(&switch, &config.controllers, listener);
            let watched = Arc::clone(&switch);
            let watch = tokio::spawn(async move {
                loop {
                    links.changed().await;
                    devices
                        .iter()
                        .for_each(|(number, device)| watched.set_live(*number, is_live(device.as_ref())));
                }
            });
            Ok(Service { switch, _agent: agent, watch, _manager: manager, host })
        })
    }

    /// The switch.
    pub fn switch(&self) -> &Arc<Switch> {
        &self.switch
    }

    /// All about it, for administration.
    pub fn status(&self) -> Value {
        status(&self.switch, &self.host)
    }
}

/// Whether an interface can send. One that was made anew under the name of a deleted one is another, of which no worker has
/// queues.
fn is_live(device: Option<&Device>) -> bool {
    let is_there = |device: &Device| Device::find(&device.name).is_ok_and(|now| now.index == device.index);
    device.is_some_and(|device| is_there(device) && link::is_running(&device.name).unwrap_or(false))
}

async fn listen(config: &Config) -> std::io::Result<Option<TcpListener>> {
    match config.listen {
        Some(address) => tcp::listen(address).await.map(Some),
        None => Ok(None),
    }
}

async fn open(config: &Config) -> Result<Opened, StartError> {
    let mut interfaces = Vec::new();
    for port in &config.ports {
        let failed = |error| StartError::Interface { number: port.number, error };
        let interface = Interface::open(&port.interface, None, &[Select::Everything]).map_err(failed)?;
        let device = interface.device();
        // Frames are forwarded as they come: with their tags, and with checksums.
        if let Err(error) = device.keep_tags().and_then(|()| device.send_whole_frames()) {
            tracing::warn!(interface = device.name, %error, "the driver may take tags or checksums off frames");
        }
        interfaces.push((port.number, interface, port.busy_poll));
    }
    let local = match &config.local {
        Some(name) => {
            let device = TunPort::create_tap(name)?;
            Links::here()?.up(name).await?;
            Some(device)
        }
        None => None,
    };
    Ok(Opened { interfaces, local })
}

fn describe(config: &Config, opened: &Opened) -> Vec<SwitchPort> {
    let mut ports: Vec<_> = opened
        .interfaces
        .iter()
        .map(|(number, interface, _)| SwitchPort {
            number: *number,
            name: interface.device().name.clone(),
            mac: interface.device().mac,
            counts: PortCounts::default(),
        })
        .collect();
    ports.extend(config.local.iter().map(|name| SwitchPort {
        number: PortNo::LOCAL.0,
        name: name.clone(),
        mac: Device::find(name).map_or([0; 6], |device| device.mac),
        counts: PortCounts::default(),
    }));
    ports
}

/// Gives the switch tables for known tunnels, if they are wanted; what the manager of them receives from.
fn offload(
    config: &Config,
    opened: &Opened,
    switch: &Switch,
) -> Result<Option<Receiver<Message>>, manager::StartError> {
    let Some(xdp) = &config.xdp else { return Ok(None) };
    let index = |(number, interface, _): &(u32, Arc<Interface>, bool)| (*number, interface.device().index);
    let (offload, messages) = Offload::new(xdp, opened.interfaces.iter().map(index).collect())?;
    switch.set_offload(offload);
    Ok(Some(messages))
}

/// The ports of each worker: its share of the queues of every interface.
fn workers(config: &Config, opened: &Opened) -> Result<Vec<PortSet>, StartError> {
    let fewest = opened
        .interfaces
        .iter()
        .map(|(_, interface, _)| interface.device())
        .min_by_key(|device| device.queues);
    let count = match (config.workers.count, fewest) {
        (Some(count), Some(device)) if count > device.queues => {
            let (interface, queues) = (device.name.clone(), device.queues);
            return Err(StartError::Queues { count, interface, queues });
        }
        (count, _) => count.unwrap_or(1),
    };
    (0..count).map(|worker| worker_ports(opened, worker, count)).collect()
}

fn worker_ports(opened: &Opened, worker: u32, count: u32) -> Result<PortSet, StartError> {
    let devices = || opened.interfaces.iter().map(|(_, interface, _)| interface.device());
    let first = opened.interfaces.first().map_or(0, |(number, ..)| *number);
    let failed = |number| move |error| StartError::Interface { number, error };
    let sockets: u32 = devices().map(|device| device.queues.div_ceil(count)).sum();
    // Copies for each port, a vector of frames of a controller, and one of what has waited.
    let more = (opened.interfaces.len() + 4) * VECTOR;
    let mut memory = Memory::with_more(sockets as usize, more, devices()).map_err(failed(first))?;
    let mut ports: Ports = Vec::new();
    for (number, interface, busy_poll) in &opened.interfaces {
        let queues = (0..interface.device().queues).filter(|queue| queue % count == worker);
        let options = Options { busy_poll: *busy_poll, ..Options::default() };
        ports.push(Box::new(
            AfXdpPort::open(interface, queues, &mut memory, options).map_err(failed(*number))?,
        ));
    }
    let mut inputs: Vec<usize> = (0..ports.len()).collect();
    if let Some(local) = &opened.local {
        // A TAP device has one queue.
        if worker == 0 {
            inputs.push(ports.len());
        }
        ports.push(Box::new(local.share()));
    }
    Ok(PortSet { ports, inputs })
}

/// All about a switch.
pub fn status(switch: &Switch, host: &Host) -> Value {
    // Before the lock is held, as workers wait for it too. They bring their counts with this.
    switch.settle_statistics();
    let caches = switch.caches();
    let pipeline = switch.pipeline();
    let ports = switch.ports().iter().map(|port| {
        let counts = &port.counts;
        json!({
            "number": name_of(port.number),
            "name": port.name,
            "live": pipeline.ports().is_live(PortNo(port.number)),
            "rx_packets": counts.rx_packets.load(Relaxed),
            "rx_bytes": counts.rx_bytes.load(Relaxed),
            "rx_dropped": counts.rx_dropped.load(Relaxed),
            "tx_packets": counts.tx_packets.load(Relaxed),
            "tx_bytes": counts.tx_bytes.load(Relaxed),
            "tx_dropped": counts.tx_dropped.load(Relaxed),
        })
    });
    let ports: Vec<_> = ports.collect();
    let tables = pipeline.tables().iter().enumerate().map(|(number, table)| {
        let (lookups, matches) = table.counts();
        json!({"table": number, "entries": table.len(), "masks": table.masks(), "lookups": lookups, "matches": matches})
    });
    let tables: Vec<_> = tables.collect();
    let entries_in_all: usize = pipeline.tables().iter().map(|table| table.len()).sum();
    let (gtp_port, groups) = (pipeline.ports().gtp, pipeline.groups().len());
    let hold_ports = pipeline.ports().hold;
    let all = pipeline.tables().iter().flat_map(|table| table.flows());
    let mut flows: Vec<_> = all.take(MAX_SHOWN).cloned().collect();
    // Packets and controllers go on while all is put into words.
    drop(pipeline);
    flows.sort_by_key(|flow| (flow.table, std::cmp::Reverse(flow.priority), flow.since_ns));
    let entries = flows.iter().map(|flow| {
        let (packets, bytes) = flow.counters.get();
        json!({
            "table": flow.table.0,
            "priority": flow.priority,
            "cookie": format!("{:#x}", flow.cookie),
            "match": crate::text::of_match(&flow.matching),
            "actions": crate::text::of_instructions(&flow.instructions),
            "packets": packets,
            "bytes": bytes,
        })
    });
    let controllers = switch.peers().into_iter().map(|peer| {
        json!({"address": peer.address.to_string(), "role": format!("{:?}", peer.role()).to_lowercase()})
    });
    let drops = DropReason::ALL.iter().map(|reason| {
        let workers = host.drops.iter().map(AsRef::as_ref);
        let all = workers.chain(switch.offload().map(|offload| offload.drops()));
        let sum: u64 = all.map(|drops: &Drops| drops.get(*reason)).sum();
        (reason.name().to_owned(), sum)
    });
    let caches = caches.into_iter().map(|(name, number)| (name.to_owned(), Value::from(number)));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    json!({
        "datapath_id": format!("{:016x}", switch.identity().datapath_id),
        "description": switch.identity().description,
        "gtp_port": gtp_port,
        "hold": hold_ports.map(|_| switch.hold().status()),
        "ports": ports,
        "tables": tables,
        "entries": entries.collect::<Vec<_>>(),
        "entries_in_all": entries_in_all,
        "groups": groups,
        "controllers": controllers.collect::<Vec<_>>(),
        "xdp": switch.offload().map(|offload| offload.status()),
        "caches": caches.collect::<serde_json::Map<_, _>>(),
        "drops": drops.filter(|(_, n)| *n > 0).map(|(name, n)| (name, n.into())).collect::<serde_json::Map<_, _>>(),
        "events": {
            "packet_in_limited": count(&switch.counts.packet_in_limited),
            "packet_in_lost": count(&switch.counts.packet_in_lost),
            "packet_out_lost": count(&switch.counts.packet_out_lost),
            "refused": count(&switch.counts.refused),
            "misbehaved": count(&switch.counts.misbehaved),
        },
    })
}

/// Entries that are shown; controllers can ask for all.
const MAX_SHOWN: usize = 10_000;

fn name_of(port: u32) -> Value {
    if port == PortNo::LOCAL.0 { "LOCAL".into() } else { port.into() }
}
