//! Socket addresses in the kernel's form, for calls that take many.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `sockaddr_in6`, in whose first octets a `sockaddr_in` may stand: `sin6_family` says so. Every pattern of octets is
/// a valid value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Name(libc::sockaddr_in6);

impl Name {
    /// Room for a name, in octets.
    pub(crate) const ROOM: usize = size_of::<libc::sockaddr_in6>();

    pub(crate) const NONE: Name = Name(libc::sockaddr_in6 {
        sin6_family: 0,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    });

    #[inline]
    pub(crate) fn is_ipv6(&self) -> bool {
        i32::from(self.0.sin6_family) == libc::AF_INET6
    }

    /// Octets of the name.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        if self.is_ipv6() { Name::ROOM } else { size_of::<libc::sockaddr_in>() }
    }

    /// The address; an unspecified one if there is none.
    #[inline]
    pub(crate) fn address(&self) -> SocketAddr {
        if self.is_ipv6() {
            let name = &self.0;
            let (address, port) = (Ipv6Addr::from(name.sin6_addr.s6_addr), u16::from_be(name.sin6_port));
            SocketAddr::V6(SocketAddrV6::new(address, port, name.sin6_flowinfo, name.sin6_scope_id))
        } else {
            // SAFETY: it is shorter than a name and as aligned, and all its bit patterns are valid.
            let name = unsafe { &*std::ptr::from_ref(&self.0).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            SocketAddr::V4(SocketAddrV4::new(address, u16::from_be(name.sin_port)))
        }
    }
}

impl From<SocketAddr> for Name {
    #[inline]
    fn from(address: SocketAddr) -> Name {
        match address {
            SocketAddr::V4(address) => {
                let mut name = Name::NONE;
                let out = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                const { assert!(size_of::<libc::sockaddr_in>() <= Name::ROOM) };
                const { assert!(align_of::<libc::sockaddr_in>() <= align_of::<Name>()) };
                // SAFETY: it is shorter than a name and as aligned.
                unsafe { std::ptr::from_mut(&mut name.0).cast::<libc::sockaddr_in>().write(out) };
                name
            }
            SocketAddr::V6(address) => Name(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_addresses_in_another_form() {
        for text in ["192.0.2.1:2152", "255.255.255.255:65535", "[2001:db8::1]:2152", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let name = Name::from(address);
            assert_eq!((name.address(), name.is_ipv6()), (address, address.is_ipv6()));
            assert_eq!(name.len(), if address.is_ipv6() { 28 } else { 16 });
        }
        assert_eq!(Name::NONE.address(), "0.0.0.0:0".parse().unwrap());
    }
}
