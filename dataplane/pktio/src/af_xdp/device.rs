//! Index, address, MTU and queues of a network interface, by ioctl. Unlike /sys, ioctl answers for the calling thread's
//! network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use packet::ethernet::Mac;

use crate::vlan::Tags;

/// `ETHTOOL_GCHANNELS` and the request it takes (linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3C;

/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS` and the flags of interest (linux/ethtool.h).
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
/// Sets whether the device fills in checksums.
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;
/// Requests about VLAN devices (linux/if_vlan.h).
const SIOCGIFVLAN: libc::c_ulong = 0x8982;
const GET_VLAN_REALDEV_NAME: libc::c_int = 8;
const GET_VLAN_VID: libc::c_int = 9;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct vlan_ioctl_args`; the answer is a name or a number.
#[repr(C, align(4))]
struct VlanRequest {
    command: libc::c_int,
    name: [u8; 24],
    answer: [u8; 24],
    qos: libc::c_short,
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
        let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let mut name = self.name.clone();
        for (place, id) in tags.ids().iter().enumerate() {
            let found = nix::net::if_::if_nameindex()?.iter().find_map(|other| {
                let other = other.name().to_str().ok()?;
                (vlan(&control, other)? == (name.clone(), *id)).then(|| other.to_owned())
            });
            name = found.ok_or_else(|| {
                let kind = if place + 1 < tags.ids().len() { " proto 802.1ad" } else { "" };
                let hint = format!(
                    "there is no device for VLAN {id} of {name}: ip link add link {name} name {name}.{id} type vlan{kind} \
                     id {id}, with the addresses of the VLAN"
                );
                io::Error::new(io::ErrorKind::NotFound, hint)
            })?;
        }
        Device::find(&name)
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
        match self.flags(ETHTOOL_GFLAGS, 0)? & ETH_FLAG_RXVLAN {
            0 => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Makes the driver hand over whole frames, with tags and checksums in them: `ethtool -K NAME rxvlan off txvlan off tx
    /// off`. Of a veth device that keeps them aside, the peer's XDP programs see neither.
    pub fn send_whole_frames(&self) -> io::Result<()> {
        let flags = self.flags(ETHTOOL_GFLAGS, 0)? & !(ETH_FLAG_RXVLAN | ETH_FLAG_TXVLAN);
        self.flags(ETHTOOL_SFLAGS, flags)?;
        self.flags(ETHTOOL_STXCSUM, 0).map(drop)
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

/// The device below a VLAN device, and its identifier; `None` for other devices.
fn vlan(control: &OwnedFd, name: &str) -> Option<(String, u16)> {
    let asked = |command: libc::c_int| {
        let mut request = VlanRequest { command, name: [0; 24], answer: [0; 24], qos: 0 };
        for (to, from) in request.name.iter_mut().take(23).zip(name.bytes()) {
            *to = from;
        }
        // SAFETY: the request reads and writes one `vlan_ioctl_args`, to which we pass an exclusive pointer.
        let status = unsafe { libc::ioctl(control.as_raw_fd(), SIOCGIFVLAN as _, &raw mut request) };
        (status >= 0).then_some(request.answer)
    };
    let [a, b, c, d, ..] = asked(GET_VLAN_VID)?;
    let below = asked(GET_VLAN_REALDEV_NAME)?;
    let below = below.split(|octet| *octet == 0).next()?;
    Some((String::from_utf8(below.to_vec()).ok()?, u16::try_from(i32::from_ne_bytes([a, b, c, d])).ok()?))
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
