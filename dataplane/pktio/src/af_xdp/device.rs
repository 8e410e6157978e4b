//! Index, address, MTU and queues of a network interface, by ioctl. Unlike /sys, ioctl answers for the calling thread's
//! network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use packet::ethernet::Mac;

/// `ETHTOOL_GCHANNELS` and the request it takes (linux/ethtool.h).
const ETHTOOL_GCHANNELS: u32 = 0x3C;

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
