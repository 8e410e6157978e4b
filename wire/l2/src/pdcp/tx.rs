//! The transmitting entity (TS 38.323 §5.2.1).

use super::{Config, MAX_SDU, Security};
use crate::security::MAC_LEN;

/// Numbers, signs and ciphers the SDUs of a bearer.
#[derive(Debug, Clone)]
pub struct Tx {
    config: Config,
    security: Security,
    /// TX_NEXT: COUNT of the next SDU. One more than the last COUNT when all are used.
    tx_next: u64,
}

/// Why an SDU cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Every COUNT was used with these keys: the bearer is released, or gets new keys (TS 38.331 §5.3.1.2).
    #[error("all COUNT values of the bearer are used")]
    Exhausted,
    /// The slice has no room for header, SDAP header and MAC-I.
    #[error("the slice is shorter than the headers and the MAC-I")]
    TooShort,
    /// The SDU is longer than PDCP carries.
    #[error("the SDU is longer than {MAX_SDU} octets")]
    TooLong,
}

impl Tx {
    /// An entity whose first SDU gets COUNT 0.
    pub fn new(config: Config, security: Security) -> Self {
        Self { config, security, tx_next: 0 }
    }

    /// An entity that continues at `tx_next`, such as that of a bearer that moved here.
    pub fn starting_at(config: Config, security: Security, tx_next: u32) -> Self {
        Self { config, security, tx_next: tx_next.into() }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes algorithms and keys from the next SDU on, such as when RRC activates security (§5.8, §5.9). COUNT continues.
    pub fn set_security(&mut self, security: Security) {
        self.security = security;
    }

    /// TX_NEXT; `None` when all COUNT values are used.
    pub fn tx_next(&self) -> Option<u32> {
        u32::try_from(self.tx_next).ok()
    }

    /// Octets in front of an SDU.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.config.header_len()
    }

    /// Octets behind an SDU.
    #[inline]
    pub fn trailer_len(&self) -> usize {
        self.security.trailer_len(&self.config)
    }

    /// Makes a PDU of an SDU: `pdu` is [`Tx::header_len`] octets, the SDU (with its SDAP header, if the bearer has it), and
    /// [`Tx::trailer_len`] octets. Returns its COUNT. After an error COUNT and `pdu` are as before.
    ///
    /// # Errors
    /// See [`SealError`].
    #[inline]
    pub fn seal(&mut self, pdu: &mut [u8]) -> Result<u32, SealError> {
        let count = u32::try_from(self.tx_next).map_err(|_| SealError::Exhausted)?;
        let (header_len, trailer_len) = (self.header_len(), self.trailer_len());
        let clear_len = header_len + self.config.sdap_len();
        let Some(mac_at) = pdu.len().checked_sub(trailer_len).filter(|at| *at >= clear_len) else {
            return Err(SealError::TooShort);
        };
        if mac_at - header_len > MAX_SDU {
            return Err(SealError::TooLong);
        }
        self.config.write_header(count, &mut pdu[..header_len]);
        let input = self.config.input(count);
        if trailer_len == MAC_LEN {
            let (message, mac) = pdu.split_at_mut(mac_at);
            let integrity = self.security.integrity.as_ref();
            mac.copy_from_slice(&integrity.map_or([0; MAC_LEN], |integrity| integrity.mac(input, message)));
        }
        self.security.cipher.apply(input, &mut pdu[clear_len..]);
        self.tx_next += 1;
        Ok(count)
    }
}
