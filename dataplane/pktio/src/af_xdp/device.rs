//! Index, address, MTU and queues of a network interface, by ioctl. Unlike /sys, ioctl answers for the calling thread's
//! network namespace.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use packet::ethernet::Mac;

use crate::stack::netlink::{Netlink, VlanDevice};
use crate::vlan::Tags;

/// `ETHTOOL_GCHANNELS` and the request it takes (linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3C;

/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS` and the flags of interest (linux/ethtool.h).
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
/// Sets whether the device fills in checksums.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// An Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number in the namespace.
    pub index: u32,
    /// Its address.
    pub mac: Mac,
    /// Longest payload of a frame.
    pub mtu: usize,
    /// How many queues receive.
    pub queues: u32,
}

impl Device {
    /// Looks an interface up in the calling thread's network namespace.
    ///
    /// # Errors
    /// `ENODEV` when there is none of that name; `Unsupported` when it is not Ethernet.
    pub fn find(name: &str) -> io::Result<Device> {
        let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let index = nix::net::if_::if_nametoindex(name)?;
        let hardware = ask(&control, name, libc::SIOCGIFHWADDR)?;
        // SAFETY: the request for the hardware address fills this member.
        let address = unsafe { hardware.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{name} is not an Ethernet interface"),
            ));
        }
        let mac = std::array::from_fn(|i| address.sa_data[i] as u8);
        let mtu = ask(&control, name, libc::SIOCGIFMTU)?;
        // SAFETY: the request for the MTU fills this member.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu }.max(0) as usize;
        Ok(Device { name: name.to_owned(), index, mac, mtu, queues: queues(&control, name) })
    }
}

impl Device {
    /// The kernel's device for frames of this one with these tags: itself, or a VLAN device on it, whose addresses,
    /// routes and neighbours are those of the VLAN.
    ///
    /// # Errors
    /// `NotFound` with what to do when there is none.
    pub fn with_tags(&self, tags: Tags) -> io::Result<Device> {
        if tags.is_empty() {
            return Ok(self.clone());
        }
        let vlans = Netlink::open()?.vlans()?;
        let (mut name, mut index) = (self.name.as_str(), self.index);
        for (protocol, id) in tags.all() {
            let is_it = |vlan: &&VlanDevice| (vlan.below, vlan.protocol, vlan.id) == (index, protocol, id);
            let found = vlans.iter().find(is_it).ok_or_else(|| {
                let hint = format!(
                    "there is no device for VLAN {id} ({protocol}) of {name}: ip link add link {name} name {name}.{id} \
                     type vlan proto {protocol} id {id}, with the addresses of the VLAN; or give the interface addresses \
                     of its own (`addresses`)"
                );
                io::Error::new(io::ErrorKind::NotFound, hint)
            })?;
            (name, index) = (&found.name, found.index);
        }
        Device::find(name)
    }

    /// Whether the driver takes VLAN tags off received frames.
    pub fn takes_tags_off(&self) -> bool {
        self.flags(ETHTOOL_GFLAGS, 0).is_ok_and(|flags| flags & ETH_FLAG_RXVLAN != 0)
    }

    /// Makes the driver leave VLAN tags in received frames (`ethtool -K NAME rxvlan off`): XDP programs take frames without
    /// them for untagged ones, of whatever VLAN they are. A driver without such flags takes nothing off.
    ///
    /// # Errors
    /// It goes on taking them off.
    pub fn keep_tags(&self) -> io::Result<()> {
        let Ok(flags) = self.flags(ETHTOOL_GFLAGS, 0) else { return Ok(()) };
        if flags & ETH_FLAG_RXVLAN == 0 {
            return Ok(());
        }
        self.flags(ETHTOOL_SFLAGS, flags & !ETH_FLAG_RXVLAN)?;
        if self.takes_tags_off() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(()) }
    }

    /// Has the device receive frames to the groups in which others ask for the link-layer addresses of `addresses` (RFC 4291
    /// §2.7.1), as long as the result exists. `any_vlan`: also those of VLANs that the kernel has no device for, which
    /// adapters filter out: the device then receives frames to all addresses.
    ///
    /// # Errors
    /// There is no privilege for packet sockets.
    pub fn listen(&self, addresses: &[IpAddr], any_vlan: bool) -> io::Result<Listening> {
        // Without a protocol it receives nothing itself.
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        let groups = addresses.iter().filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => {
                let [.., a, b, c] = address.octets();
                Some([0x33, 0x33, 0xFF, a, b, c])
            }
        });
        let joined = groups.map(|group| (libc::PACKET_MR_MULTICAST, group));
        for (kind, group) in joined.chain(any_vlan.then_some((libc::PACKET_MR_PROMISC, [0; 6]))) {
            let mut address = [0; 8];
            address[..6].copy_from_slice(&group);
            let request = libc::packet_mreq {
                mr_ifindex: self.index as libc::c_int,
                mr_type: kind as libc::c_ushort,
                mr_alen: 6,
                mr_address: address,
            };
            // SAFETY: the pointer and length describe `request`, which outlives the call.
            let status = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_PACKET,
                    libc::PACKET_ADD_MEMBERSHIP,
                    (&raw const request).cast(),
                    size_of_val(&request) as libc::socklen_t,
                )
            };
            if status < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Listening { _socket: socket })
    }

    /// Makes the driver hand over whole frames, with tags and checksums in them: `ethtool -K NAME rxvlan off txvlan off tx
    /// off`. Of a veth device that keeps them aside, the peer's XDP programs see neither.
    pub fn send_whole_frames(&self) -> io::Result<()> {
        let flags = self.flags(ETHTOOL_GFLAGS, 0)? & !(ETH_FLAG_RXVLAN | ETH_FLAG_TXVLAN);
        self.flags(ETHTOOL_SFLAGS, flags)?;
        self.flags(ETHTOOL_STXCSUM, 0).map(drop)
    }

    /// Lets a veth device receive what an XDP program of its peer sends (`ethtool -K NAME gro on`): without this or an XDP program of
    /// its own, such frames are lost.
    pub fn receive_redirected(&self) -> io::Result<()> {
        self.flags(ETHTOOL_SGRO, 1).map(drop)
    }

    fn flags(&self, command: u32, data: u32) -> io::Result<u32> {
        let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut value = Value { command, data };
        let mut request = request(&self.name);
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request reads one `ifreq`, whose data points at the struct that these ethtool commands read or fill.
        let status = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
    }
}

/// What a device receives besides frames to its address; it ends when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Listening {
    _socket: OwnedFd,
}

/// A request about an interface, with its name.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is a plain C struct for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays zero, as a terminator.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn ask(control: &OwnedFd, name: &str, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    let mut request = request(name);
    // SAFETY: these requests read and write one `ifreq`, to which we pass an exclusive pointer.
    let status = unsafe { libc::ioctl(control.as_raw_fd(), what as _, &raw mut request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
}

/// Receive queues; 1 where the driver does not say.
fn queues(control: &OwnedFd, name: &str) -> u32 {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = request(name);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the request reads one `ifreq`, whose data points at the struct that this ethtool command fills.
    let status = unsafe { libc::ioctl(control.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if status < 0 { 1 } else { channels.rx.max(channels.combined).max(1) }
}
