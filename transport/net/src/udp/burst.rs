//! Several datagrams per system call, for peers that send in bursts.
//!
//! [`Burst`] receives the datagrams that have arrived. [`send`] sends datagrams; consecutive ones of
//! the same length to the same peer go as one message, which the kernel cuts (`UDP_SEGMENT`). So they
//! pass down the network stack only once. The receiver sees no difference. If the kernel or the device
//! cannot cut, they are sent one by one.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Most datagrams of one system call.
pub const BURST: usize = 64;
/// Longest datagram that is sent together with others: the pieces must fit the device's MTU.
const SEGMENT: usize = 1200;
/// Most octets of one message that the kernel cuts.
const SEGMENTED: usize = 60_000;

/// Datagrams received together. Its memory is allocated when first used, so room for the largest
/// datagram costs little.
pub struct Burst {
    octets: Box<[u8]>,
    size: usize,
    received: Vec<(usize, SocketAddr)>,
}

impl std::fmt::Debug for Burst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Burst").field("received", &self.received).finish()
    }
}

impl Burst {
    /// Room for [`BURST`] datagrams of at most `size` octets; longer ones are truncated.
    pub fn new(size: usize) -> Burst {
        Burst { octets: vec![0; BURST * size].into_boxed_slice(), size, received: Vec::with_capacity(BURST) }
    }

    /// Waits for datagrams and returns their number. Cancel-safe: no datagram is lost.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)`.
    pub async fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.received.clear();
        socket.async_io(Interest::READABLE, || self.receive_now(socket)).await
    }

    /// Receives the datagrams that have arrived. On a blocking socket, waits for the first one.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)`, `WouldBlock` among them.
    pub fn receive_now(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.received.clear();
        let mut names = [const { MaybeUninit::<Name>::uninit() }; BURST];
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
        // SAFETY: `mmsghdr` is a plain C struct for which all zeroes is a valid value.
        let mut messages: [libc::mmsghdr; BURST] = unsafe { mem::zeroed() };
        // Each message has its own slice of octets: they do not overlap.
        for (i, octets) in self.octets.chunks_exact_mut(self.size).enumerate() {
            vectors[i] = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
            let header = &mut messages[i].msg_hdr;
            header.msg_name = names[i].as_mut_ptr().cast();
            header.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
        }
        // SAFETY: `BURST` messages are initialised above; buffers and names that they point to live until the end of this
        // function and have the lengths that are given.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                BURST as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (message, name) in messages.iter().zip(&names).take(count) {
            // SAFETY: the kernel has written a name of this length into zeroed or written memory of a received message.
            let from = unsafe { Name::read(name, message.msg_hdr.msg_namelen) };
            // A name of another family is impossible on a UDP socket; such a datagram counts as empty.
            let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let length = if from.is_some() { message.msg_len as usize } else { 0 };
            self.received.push((length.min(self.size), from.unwrap_or(unknown)));
        }
        Ok(count)
    }

    /// The datagrams received last, with their senders.
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let octets = self.octets.chunks_exact(self.size);
        self.received.iter().zip(octets).map(|((length, from), octets)| (*from, &octets[..*length]))
    }
}

/// Sends up to [`BURST`] datagrams and returns how many the kernel accepted: at least one.
///
/// # Errors
/// Why the first was not accepted: `WouldBlock`, or an error of the datagram or its receiver. The
/// others have not been tried.
pub fn send<T: AsRef<[u8]>>(socket: &impl AsFd, datagrams: &[(SocketAddr, T)]) -> io::Result<usize> {
    let together = send_in(socket, datagrams, true);
    match together {
        // A device without offloads, or a tunnel on the path: the kernel reports it with one of these
        // errors.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
            ) =>
        {
            send_in(socket, datagrams, false)
        }
        result => result,
    }
}

/// Sends all datagrams and waits for room where necessary. Calls `refused` for those that cannot be
/// sent.
pub async fn send_all<T: AsRef<[u8]>>(
    socket: &UdpSocket,
    datagrams: &[(SocketAddr, T)],
    mut refused: impl FnMut(SocketAddr, io::Error),
) {
    let mut rest = datagrams;
    while let Some((to, _)) = rest.first() {
        let sent = socket.async_io(Interest::WRITABLE, || send(socket, rest)).await;
        let taken = sent.unwrap_or_else(|error| {
            refused(*to, error);
            1
        });
        rest = &rest[taken.clamp(1, rest.len())..];
    }
}

/// Sends datagrams, with or without cutting by the kernel.
fn send_in<T: AsRef<[u8]>>(
    socket: &impl AsFd,
    datagrams: &[(SocketAddr, T)],
    cut: bool,
) -> io::Result<usize> {
    let mut names = [const { MaybeUninit::<Name>::uninit() }; BURST];
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BURST];
    let mut controls = [const { MaybeUninit::<Segments>::uninit() }; BURST];
    // SAFETY: as in `receive_now`.
    let mut messages: [libc::mmsghdr; BURST] = unsafe { mem::zeroed() };
    let mut rest = &datagrams[..datagrams.len().min(BURST)];
    let (mut count, mut at) = (0, 0);
    while let Some((to, first)) = rest.first() {
        let length = if cut { run(rest) } else { 1 };
        let (together, after) = rest.split_at(length);
        let segment = first.as_ref().len();
        let header = &mut messages[count].msg_hdr;
        header.msg_namelen = Name::write(&mut names[count], *to);
        header.msg_name = names[count].as_mut_ptr().cast();
        header.msg_iov = &raw mut vectors[at];
        header.msg_iovlen = length;
        if length > 1 {
            header.msg_controllen = size_of::<Segments>();
            header.msg_control = std::ptr::from_mut(controls[count].write(Segments::new(segment))).cast();
        }
        for (vector, (_, octets)) in vectors[at..].iter_mut().zip(together) {
            let octets = octets.as_ref();
            // The kernel only reads it.
            *vector = libc::iovec { iov_base: octets.as_ptr().cast_mut().cast(), iov_len: octets.len() };
        }
        at += length;
        count += 1;
        rest = after;
    }
    // SAFETY: `count` messages are initialised; what they point to (names, control messages, vectors, the datagrams) lives
    // until the end of this function and has the lengths that are given.
    let sent = unsafe {
        libc::sendmmsg(socket.as_fd().as_raw_fd(), messages.as_mut_ptr(), count as libc::c_uint, 0)
    };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
    Ok(messages[..sent.min(count)].iter().map(|message| message.msg_hdr.msg_iovlen).sum())
}

/// How many of the first datagrams can go to one peer as one message: all of the same length, except
/// for a shorter last one.
fn run<T: AsRef<[u8]>>(datagrams: &[(SocketAddr, T)]) -> usize {
    let Some((to, first)) = datagrams.first() else { return 0 };
    let segment = first.as_ref().len();
    if segment == 0 || segment > SEGMENT {
        return 1;
    }
    let most = (SEGMENTED / segment).max(1);
    let mut length = 1;
    for (other, octets) in &datagrams[1..datagrams.len().min(most)] {
        let octets = octets.as_ref().len();
        if other != to || octets > segment || octets == 0 {
            break;
        }
        length += 1;
        if octets < segment {
            break;
        }
    }
    length
}

/// A control message with the length of a message's segments.
#[repr(C)]
struct Segments {
    header: libc::cmsghdr,
    value: [u8; 8],
}

impl Segments {
    fn new(segment: usize) -> Segments {
        // SAFETY: `cmsghdr` is a plain C struct for which all zeroes is a valid value.
        let mut header: libc::cmsghdr = unsafe { mem::zeroed() };
        header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = libc::UDP_SEGMENT;
        let mut value = [0; 8];
        value[..2].copy_from_slice(&(segment as u16).to_ne_bytes());
        Segments { header, value }
    }
}

/// A socket address in the kernel's form.
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// Writes an address; returns its length.
    fn write(to: &mut MaybeUninit<Name>, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                to.write(Name {
                    v4: libc::sockaddr_in {
                        sin_family: libc::AF_INET as libc::sa_family_t,
                        sin_port: address.port().to_be(),
                        sin_addr: libc::in_addr { s_addr: address.ip().to_bits().to_be() },
                        sin_zero: [0; 8],
                    },
                });
                size_of::<libc::sockaddr_in>() as libc::socklen_t
            }
            SocketAddr::V6(address) => {
                to.write(Name {
                    v6: libc::sockaddr_in6 {
                        sin6_family: libc::AF_INET6 as libc::sa_family_t,
                        sin6_port: address.port().to_be(),
                        sin6_flowinfo: address.flowinfo(),
                        sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                        sin6_scope_id: address.scope_id(),
                    },
                });
                size_of::<libc::sockaddr_in6>() as libc::socklen_t
            }
        }
    }

    /// Reads an address that the kernel has written.
    ///
    /// # Safety
    /// The first `length` octets, at most the size of the union, are initialised.
    unsafe fn read(from: &MaybeUninit<Name>, length: libc::socklen_t) -> Option<SocketAddr> {
        let length = length as usize;
        if length < size_of::<libc::sockaddr_in>() {
            return None;
        }
        let name = from.as_ptr();
        // SAFETY: both structs begin with the family, which lies within `length`.
        match i32::from(unsafe { (*name).v4.sin_family }) {
            libc::AF_INET => {
                // SAFETY: `length` covers the struct, as checked above.
                let v4 = unsafe { (*name).v4 };
                let ip = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: `length` covers the struct, as checked here.
                let v6 = unsafe { (*name).v6 };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, bind, bind_std};
    use super::*;

    #[test]
    fn runs_are_of_one_length_and_one_peer() {
        let (a, b) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
        let sized = |sizes: &[(SocketAddr, usize)]| {
            let datagrams: Vec<_> = sizes.iter().map(|(to, size)| (*to, vec![0u8; *size])).collect();
            run(&datagrams)
        };
        assert_eq!(sized(&[(a, 100), (a, 100), (a, 60), (a, 60)]), 3, "a shorter one is the last");
        assert_eq!(sized(&[(a, 100), (a, 101)]), 1);
        assert_eq!(sized(&[(a, 100), (b, 100)]), 1);
        assert_eq!(sized(&[(a, 0), (a, 0)]), 1);
        assert_eq!(sized(&[(a, 100), (a, 0)]), 1);
        assert_eq!(sized(&[(a, 1201), (a, 1201)]), 1);
        assert_eq!(sized(&[(a, 1200); 64]), 50);
    }

    /// Of all lengths, to several receivers, more than one call can send; each arrives once, whole and
    /// from the right sender.
    #[tokio::test]
    async fn what_is_sent_in_bursts_arrives_datagram_by_datagram() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().unwrap();
            let roomy = Options { receive_buffer: Some(1 << 22), ..Options::default() };
            let sender = bind_std(any, roomy).unwrap();
            let from = sender.local_addr().unwrap();
            let receivers = [super::super::bind_with(any, roomy).await.unwrap(), bind(any).await.unwrap()];
            let to = receivers.each_ref().map(|receiver| receiver.local_addr().unwrap());
            let sizes = [180, 180, 180, 90, 1, 1300, 1300, 0, 180, 9000, 30_000];
            let datagrams: Vec<(SocketAddr, Vec<u8>)> = (0..150usize)
                .map(|n| (to[usize::from(n % 8 == 7)], vec![n as u8; sizes[n % sizes.len()]]))
                .collect();
            let mut rest = &datagrams[..];
            let mut arrived = [const { Vec::new() }; 2];
            let mut burst = Burst::new(65_535);
            while !rest.is_empty() {
                rest = &rest[send(&sender, rest).unwrap()..];
                for (receiver, arrived) in receivers.iter().zip(&mut arrived) {
                    while burst.receive_now(receiver).is_ok() {
                        arrived.extend(burst.iter().map(|(from, octets)| (from, octets.to_vec())));
                    }
                }
            }
            for (to, arrived) in to.iter().zip(arrived) {
                let expected: Vec<_> = datagrams
                    .iter()
                    .filter(|(receiver, _)| receiver == to)
                    .map(|(_, octets)| (from, octets.clone()))
                    .collect();
                assert!(arrived == expected, "{} of {}", arrived.len(), expected.len());
            }
        }
    }

    #[tokio::test]
    async fn waits_for_the_first_and_cuts_what_is_too_long() {
        let receiver = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let sender = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut burst = Burst::new(4);
        assert_eq!(burst.receive_now(&receiver).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let to = receiver.local_addr().unwrap();
        let sent = async {
            tokio::task::yield_now().await;
            send(&sender, &[(to, &b"abcdef"[..]), (to, b"gh")]).unwrap()
        };
        let (received, sent) = tokio::join!(burst.receive(&receiver), sent);
        assert_eq!((received.unwrap(), sent), (2, 2));
        let octets: Vec<&[u8]> = burst.iter().map(|(_, octets)| octets).collect();
        assert_eq!(octets, [&b"abcd"[..], b"gh"]);
    }

    #[tokio::test]
    async fn what_cannot_be_sent_is_said_and_the_rest_goes() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (sender, receiver) = (bind(any).await.unwrap(), bind(any).await.unwrap());
        let good = receiver.local_addr().unwrap();
        // No socket has port 0.
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let datagrams = [(nowhere, b"a"), (good, b"b"), (nowhere, b"c"), (good, b"d")];
        let mut refused = Vec::new();
        send_all(&sender, &datagrams, |to, _| refused.push(to)).await;
        assert_eq!(refused, [nowhere; 2]);
        let mut burst = Burst::new(16);
        let mut arrived = Vec::new();
        while arrived.len() < 2 {
            burst.receive(&receiver).await.unwrap();
            arrived.extend(burst.iter().map(|(_, octets)| octets[0]));
        }
        assert_eq!(arrived, *b"bd");
    }
}
