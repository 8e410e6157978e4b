//! The keys of the access stratum (TS 33.501 §6.2.3.1, annex A.8): from K_gNB to the protection of each radio bearer.
//!
//! A CU gets K_gNB from the AMF, a UE derives it from K_AMF. [`AsKeys`] is the same on both sides.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use types::Key;

use crate::pdcp::Security;
use crate::security::{Cipher, CipheringAlgorithm, Integrity, IntegrityAlgorithm};

/// FC of algorithm keys (annex A.8).
const FC: u8 = 0x69;

/// Algorithm type distinguishers (annex A.8, table A.8-1).
#[derive(Clone, Copy)]
enum Purpose {
    RrcEnc = 3,
    RrcInt = 4,
    UpEnc = 5,
    UpInt = 6,
}

impl CipheringAlgorithm {
    /// Its identity: 0 for NEA0, 2 for 128-NEA2 (TS 33.501 §5.11.1.1).
    pub const fn identity(self) -> u8 {
        match self {
            CipheringAlgorithm::Nea0 => 0,
            CipheringAlgorithm::Nea2 => 2,
        }
    }
}

impl IntegrityAlgorithm {
    /// Its identity: 0 for NIA0, 2 for 128-NIA2 (TS 33.501 §5.11.1.2).
    pub const fn identity(self) -> u8 {
        match self {
            IntegrityAlgorithm::Nia0 => 0,
            IntegrityAlgorithm::Nia2 => 2,
        }
    }
}

/// The algorithms of a UE's bearers, each with its expanded keys.
#[derive(Debug, Clone)]
pub struct AsKeys {
    rrc: (Cipher, Integrity),
    user_plane: (Cipher, Integrity),
}

impl AsKeys {
    /// K_RRCenc, K_RRCint, K_UPenc and K_UPint of a K_gNB.
    pub fn derive(k_gnb: &Key<32>, ciphering: CipheringAlgorithm, integrity: IntegrityAlgorithm) -> Self {
        let cipher = |purpose| Cipher::new(ciphering, &algorithm_key(k_gnb, purpose, ciphering.identity()));
        let integrity =
            |purpose| Integrity::new(integrity, &algorithm_key(k_gnb, purpose, integrity.identity()));
        Self {
            rrc: (cipher(Purpose::RrcEnc), integrity(Purpose::RrcInt)),
            user_plane: (cipher(Purpose::UpEnc), integrity(Purpose::UpInt)),
        }
    }

    /// The algorithms.
    pub fn algorithms(&self) -> (CipheringAlgorithm, IntegrityAlgorithm) {
        (self.rrc.0.algorithm(), self.rrc.1.algorithm())
    }

    /// Protection of signalling bearers: integrity always; ciphering once the security mode command is complete
    /// (TS 33.501 §6.7.4).
    pub fn signalling(&self, ciphered: bool) -> Security {
        let cipher = if ciphered { self.rrc.0.clone() } else { Cipher::nea0() };
        Security::new(cipher, Some(self.rrc.1.clone()))
    }

    /// Protection of a data bearer.
    pub fn data(&self, ciphered: bool, integrity: bool) -> Security {
        let cipher = if ciphered { self.user_plane.0.clone() } else { Cipher::nea0() };
        Security::new(cipher, integrity.then(|| self.user_plane.1.clone()))
    }
}

/// The last 128 bits of the key derivation function (TS 33.220 annex B.2) of the algorithm's type and identity.
fn algorithm_key(k_gnb: &Key<32>, purpose: Purpose, algorithm: u8) -> Key<16> {
    let mut mac = Hmac::<Sha256>::new_from_slice(k_gnb.expose()).expect("HMAC takes keys of any length");
    mac.update(&[FC, purpose as u8, 0, 1, algorithm, 0, 1]);
    let output = mac.finalize().into_bytes();
    let mut key = [0; 16];
    key.copy_from_slice(&output[16..]);
    Key::new(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(purpose: Purpose, algorithm: u8) -> String {
        let k_gnb = Key::new(std::array::from_fn(|octet| octet as u8));
        algorithm_key(&k_gnb, purpose, algorithm)
            .expose()
            .iter()
            .map(|octet| format!("{octet:02x}"))
            .collect()
    }

    /// HMAC-SHA-256 of Python's standard library gives these.
    #[test]
    fn keys_are_those_of_another_implementation() {
        assert_eq!(key_of(Purpose::RrcEnc, 2), "62e9c027277cfbcea25a0af641e7accf");
        assert_eq!(key_of(Purpose::RrcInt, 2), "f4b5fbbe0d3607f81ecb15896dd52fc7");
        assert_eq!(key_of(Purpose::UpEnc, 2), "8663487d48f36f3566370152c84a2a57");
        assert_eq!(key_of(Purpose::UpInt, 2), "2c9cc4390fa37b239a58387a21f4e1d4");
        assert_eq!(key_of(Purpose::UpEnc, 0), "831e50417c0b2c213d41ffd302dd7cd3");
    }

    #[test]
    fn what_is_not_asked_for_is_not_protected() {
        let keys = AsKeys::derive(&Key::new([7; 32]), CipheringAlgorithm::Nea2, IntegrityAlgorithm::Nia2);
        let (nea0, nea2) = (CipheringAlgorithm::Nea0, CipheringAlgorithm::Nea2);
        let nia2 = IntegrityAlgorithm::Nia2;
        assert_eq!(keys.signalling(false).algorithms(), (nea0, Some(nia2)));
        assert_eq!(keys.signalling(true).algorithms(), (nea2, Some(nia2)));
        assert_eq!(keys.data(true, false).algorithms(), (nea2, None));
        assert_eq!(keys.data(false, true).algorithms(), (nea0, Some(nia2)));
    }
}
