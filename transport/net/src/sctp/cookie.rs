//! Authenticated state cookies (RFC 9260 §5.1.3): a listener stores nothing about a peer until the peer
//! has echoed a cookie that only this listener can have made. So a flood of INITs costs no memory.
//!
//! ```text
//! sealed cookie   the protocol machine's cookie | created, ms 64 | HMAC-SHA-256, first 16 bytes
//! ```
//! The MAC also covers both addresses and ports, so that a cookie is valid only between these two.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const CREATED: usize = 8;
const MAC: usize = 16;

/// Longest time until a cookie comes back: Valid.Cookie.Life (RFC 9260 §16).
const LIFETIME_MS: u64 = 60_000;

/// The two ends for which a cookie is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    pub local: IpAddr,
    /// The peer's address and SCTP port.
    pub peer: SocketAddr,
}

/// Why a cookie is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadCookie {
    /// Not made by us, for another path, or changed.
    Forged,
    /// Ours, but too old, by so many milliseconds.
    Stale(u64),
}

/// The secret of one endpoint; never stored or printed.
pub(super) struct CookieKey([u8; 32]);

impl CookieKey {
    pub fn random() -> std::io::Result<CookieKey> {
        let mut key = [0; 32];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut key)?;
        Ok(CookieKey(key))
    }

    /// Seals the protocol machine's cookie; `now_ms` must be of the same clock as for
    /// [`CookieKey::open`].
    pub fn seal(&self, path: &Path, now_ms: u64, cookie: &[u8]) -> Vec<u8> {
        let mut sealed = cookie.to_vec();
        sealed.extend_from_slice(&now_ms.to_be_bytes());
        let tag = self.mac(path, &sealed).finalize().into_bytes();
        sealed.extend_from_slice(&tag[..MAC]);
        sealed
    }

    /// Returns the cookie in a valid sealed cookie.
    pub fn open<'a>(&self, path: &Path, now_ms: u64, sealed: &'a [u8]) -> Result<&'a [u8], BadCookie> {
        let covered = sealed.len().checked_sub(MAC).ok_or(BadCookie::Forged)?;
        let (covered, tag) = sealed.split_at(covered);
        self.mac(path, covered).verify_truncated_left(tag).map_err(|_| BadCookie::Forged)?;
        let (cookie, created) = covered.split_last_chunk::<CREATED>().ok_or(BadCookie::Forged)?;
        let age = now_ms.saturating_sub(u64::from_be_bytes(*created));
        if age > LIFETIME_MS { Err(BadCookie::Stale(age - LIFETIME_MS)) } else { Ok(cookie) }
    }

    fn mac(&self, path: &Path, covered: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(&octets(path.local));
        mac.update(&octets(path.peer.ip()));
        mac.update(&path.peer.port().to_be_bytes());
        mac.update(covered);
        mac
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_maker_s_unchanged_fresh_cookie_opens_and_only_on_its_path() {
        let key = CookieKey::random().unwrap();
        let path = Path { local: "10.0.0.1".parse().unwrap(), peer: "10.0.0.2:38412".parse().unwrap() };
        let sealed = key.seal(&path, 1000, b"cookie");
        assert_eq!(key.open(&path, 1000 + LIFETIME_MS, &sealed), Ok(&b"cookie"[..]));
        assert_eq!(key.open(&path, 1007 + LIFETIME_MS, &sealed), Err(BadCookie::Stale(7)));
        assert_eq!(CookieKey::random().unwrap().open(&path, 1000, &sealed), Err(BadCookie::Forged));
        for elsewhere in [
            Path { peer: "10.0.0.2:38413".parse().unwrap(), ..path },
            Path { peer: "10.0.0.3:38412".parse().unwrap(), ..path },
            Path { local: "10.0.0.9".parse().unwrap(), ..path },
        ] {
            assert_eq!(key.open(&elsewhere, 1000, &sealed), Err(BadCookie::Forged));
        }
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&path, 1000, &bad), Err(BadCookie::Forged));
        }
        for length in 0..sealed.len() {
            assert_eq!(key.open(&path, 1000, &sealed[..length]), Err(BadCookie::Forged));
        }
    }
}
