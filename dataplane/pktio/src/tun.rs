//! TUN and TAP devices: IP packets, or Ethernet frames, exchanged with the kernel's network stack.
//!
//! The device exists as long as a descriptor is open, so it disappears with the process; one that was made to stay
//! (`ip tuntap add mode tap …`) is used and left where it is. Its address, MTU and routes are set through `net::link` by
//! whoever opens it. A device that somebody deletes leaves its descriptor behind, which can be attached to a new one
//! ([`TunPort::attach`]). A frame comes and goes without preamble and check sequence, tags within.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use crate::{Batch, Port, Sent};

/// Longest name of an interface, without the terminating zero.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is empty, too long or has characters that an interface name may not have.
    #[error("{0:?} is not an interface name: 1 to {NAME_MAX} letters, digits, dots, dashes or underscores")]
    Name(String),
    /// `/dev/net/tun` could not be opened.
    #[error("/dev/net/tun: {0}; is the tun driver loaded, and may this user open the file?")]
    Device(io::Error),
    /// The kernel refused the device.
    #[error("cannot create device {name}: {error}; it needs CAP_NET_ADMIN and a name not in use")]
    Create {
        /// Name asked for.
        name: String,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// An open TUN or TAP device. [`TunPort::share`] gives another port on the same queue.
#[derive(Debug)]
pub struct TunPort {
    file: Arc<File>,
    name: String,
    /// `IFF_TUN` or `IFF_TAP`.
    kind: libc::c_int,
}

/// Whether a device can have this name, without creating one.
pub fn check_name(name: &str) -> Result<(), TunError> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(valid) {
        return Err(TunError::Name(name.to_owned()));
    }
    Ok(())
}

impl TunPort {
    /// Creates a TUN device in the calling thread's network namespace. It is down and has no address yet.
    pub fn create(name: &str) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TUN)
    }

    /// Creates a TAP device in the calling thread's network namespace. It is down and has no address yet.
    pub fn create_tap(name: &str) -> Result<TunPort, TunError> {
        TunPort::open(name, libc::IFF_TAP)
    }

    fn open(name: &str, kind: libc::c_int) -> Result<TunPort, TunError> {
        check_name(name)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(TunError::Device)?;
        let port = TunPort { file: Arc::new(file), name: name.to_owned(), kind };
        port.attach()?;
        Ok(port)
    }

    /// Creates the device again after it was deleted, or attaches to an existing one of its name, in the calling thread's
    /// network namespace. This port and those that [share](TunPort::share) its queue use the new device from then on.
    pub fn attach(&self) -> Result<(), TunError> {
        let mut request = request();
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        // No packet information header: reads and writes are bare packets or frames.
        request.ifr_ifru.ifru_flags = (self.kind | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, to which we pass an exclusive pointer.
        let status = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        if status < 0 {
            let error = io::Error::last_os_error();
            return Err(TunError::Create { name: self.name.clone(), error });
        }
        Ok(())
    }

    /// Whether the device still exists.
    pub fn is_attached(&self) -> bool {
        let mut request = request();
        // SAFETY: TUNGETIFF writes one `ifreq`, to which we pass an exclusive pointer.
        unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) == 0 }
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another port on the same device: reads take packets from the same queue.
    pub fn share(&self) -> TunPort {
        TunPort { file: Arc::clone(&self.file), name: self.name.clone(), kind: self.kind }
    }
}

fn request() -> libc::ifreq {
    // SAFETY: `ifreq` is a plain C struct for which all zeroes is a valid value.
    unsafe { std::mem::zeroed() }
}

impl Port for TunPort {
    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        batch.clear();
        let mut received = 0;
        for buffer in batch.all_mut() {
            match (&*self.file).read(buffer.space()) {
                Ok(length) => {
                    buffer.filled(length);
                    received += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                // The interface is down: nothing can arrive until it is up again.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => break,
                Err(error) => {
                    if received == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        batch.set_len(received);
        Ok(received)
    }

    fn transmit(&mut self, batch: &mut Batch, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        for &position in selected {
            let Some(buffer) = batch.sendable(position) else {
                sent.errors += 1;
                continue;
            };
            match (&*self.file).write(buffer.packet()) {
                Ok(length) => {
                    sent.packets += 1;
                    sent.bytes += length;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => sent.full += 1,
                    Some(libc::EMSGSIZE) => sent.too_big += 1,
                    _ => sent.errors += 1,
                },
            }
        }
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
