//! The headers of messages as `recvmmsg` and `sendmmsg` want them.

use std::mem;
use std::net::SocketAddr;

use super::CALL;
use crate::name::Name;

/// A received message of one or several packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub length: usize,
    /// Length of each packet but the last, which may be shorter.
    pub segment: usize,
    pub peer: SocketAddr,
}

impl Message {
    pub fn packets(&self) -> usize {
        self.length.div_ceil(self.segment).max(1)
    }

    /// Length of its longest packet.
    pub fn longest(&self) -> usize {
        self.segment.min(self.length)
    }
}

/// One control message with a small value, as `sendmsg` wants it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    value: [u8; 8],
}

impl Control {
    fn set(&mut self, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        self.header.cmsg_len = (size_of::<libc::cmsghdr>() + value.len()) as _;
        self.header.cmsg_level = level;
        self.header.cmsg_type = kind;
        self.value[..value.len()].copy_from_slice(value);
    }
}

/// The arrays that `recvmmsg` and `sendmmsg` want, allocated once. Their pointers are set anew before
/// every call and are never read by us, so moving the struct is harmless.
pub(super) struct Headers {
    pub messages: Box<[libc::mmsghdr]>,
    /// One per packet that is sent, two per message that is received.
    pub vectors: Box<[libc::iovec]>,
    pub names: Box<[Name]>,
    /// Two per message: traffic class and length of segments, in either order.
    controls: Box<[[Control; 2]]>,
}

// SAFETY: the raw pointers inside are scratch space for one system call: each call writes them before
// the kernel reads them, through `&mut self`, so no pointer is used from two threads.
unsafe impl Send for Headers {}

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Headers")
    }
}

impl Headers {
    pub fn new() -> Headers {
        // SAFETY: the types are plain C structs for which all zeroes is a valid value.
        let (message, vector, control) = unsafe {
            (mem::zeroed::<libc::mmsghdr>(), mem::zeroed::<libc::iovec>(), mem::zeroed::<Control>())
        };
        Headers {
            messages: vec![message; CALL].into_boxed_slice(),
            vectors: vec![vector; 2 * CALL].into_boxed_slice(),
            names: vec![Name::NONE; CALL].into_boxed_slice(),
            controls: vec![[control; 2]; CALL].into_boxed_slice(),
        }
    }

    /// Makes message `i` to be received into `data`, and behind that into `more`.
    #[inline]
    pub fn set(&mut self, i: usize, data: &mut [u8], more: &mut [u8]) {
        let vector =
            |memory: &mut [u8]| libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        (self.vectors[2 * i], self.vectors[2 * i + 1]) = (vector(data), vector(more));
        self.start(i, 2 * i, Name::ROOM);
        let header = &mut self.messages[i].msg_hdr;
        header.msg_iovlen = 2;
        header.msg_control = self.controls[i].as_mut_ptr().cast();
        header.msg_controllen = size_of::<[Control; 2]>();
    }

    /// The message that was received at `i`.
    #[inline]
    pub fn received(&self, i: usize) -> Message {
        let (header, length) = (&self.messages[i].msg_hdr, self.messages[i].msg_len as usize);
        let control = &self.controls[i][0];
        let is_several = header.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<libc::c_int>()
            && control.header.cmsg_level == libc::SOL_UDP
            && control.header.cmsg_type == libc::UDP_GRO;
        let [a, b, c, d, ..] = control.value;
        let segment =
            if is_several { libc::c_int::from_ne_bytes([a, b, c, d]).max(1) as usize } else { length };
        Message { length, segment: segment.max(1), peer: self.names[i].address() }
    }

    /// Makes message `i` of vector `vector`, with its name of `name_len` octets.
    #[inline]
    pub fn start(&mut self, i: usize, vector: usize, name_len: usize) {
        let header = &mut self.messages[i].msg_hdr;
        header.msg_name = (&raw mut self.names[i]).cast();
        header.msg_namelen = name_len as libc::socklen_t;
        header.msg_iov = &raw mut self.vectors[vector];
        header.msg_iovlen = 1;
        header.msg_control = std::ptr::null_mut();
        header.msg_controllen = 0;
        header.msg_flags = 0;
        self.messages[i].msg_len = 0;
    }

    /// Adds a control message to message `i`.
    pub fn control(&mut self, i: usize, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        let header = &mut self.messages[i].msg_hdr;
        let used = header.msg_controllen / size_of::<Control>();
        self.controls[i][used].set(level, kind, value);
        header.msg_control = self.controls[i].as_mut_ptr().cast();
        header.msg_controllen = (used + 1) * size_of::<Control>();
    }

    /// Gives message `i` a traffic class other than the socket's.
    pub fn set_tos(&mut self, i: usize, tos: u8, ipv6: bool) {
        let (level, kind) = match ipv6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            false => (libc::IPPROTO_IP, libc::IP_TOS),
        };
        self.control(i, level, kind, &libc::c_int::from(tos).to_ne_bytes());
    }

    /// Adds the vector behind the last one to message `i`, which is cut into segments of `segment` octets.
    #[inline]
    pub fn extend(&mut self, i: usize, segment: usize) {
        if self.messages[i].msg_hdr.msg_iovlen == 1 {
            self.control(i, libc::SOL_UDP, libc::UDP_SEGMENT, &(segment as u16).to_ne_bytes());
        }
        self.messages[i].msg_hdr.msg_iovlen += 1;
    }

    /// Makes message `i`, which had several packets, one of a single packet.
    pub fn reduce(&mut self, i: usize) {
        let header = &mut self.messages[i].msg_hdr;
        // The traffic class, if there is one, stands in front of the length of segments.
        header.msg_controllen -= size_of::<Control>();
        if header.msg_controllen == 0 {
            header.msg_control = std::ptr::null_mut();
        }
        header.msg_iovlen = 1;
    }

    /// How many packets message `i` has.
    #[inline]
    pub fn packets(&self, i: usize) -> usize {
        self.messages[i].msg_hdr.msg_iovlen
    }
}
