//! Ciphering and integrity of radio bearers: NEA0, NEA2, NIA0 and NIA2 (TS 33.501 annex D, TS 33.401 annex B).
//!
//! ```text
//! NEA2: AES-128 in counter mode     first counter block: COUNT (32) BEARER (5) DIRECTION (1) 0 (26) | 0 (64)
//! NIA2: AES-128-CMAC, first 32 bits    of the message:   COUNT (32) BEARER (5) DIRECTION (1) 0 (26) | message
//! ```
//! A [`Cipher`] or [`Integrity`] keeps the expanded key (NIA2 also its two subkeys), works in place, and allocates
//! nothing. Whole messages go to the cipher's backend at once, so that the processor's AES instructions are inlined in
//! the loops over blocks and the blocks of the counter mode overlap.

use std::fmt;

use aes::cipher::array::Array;
use aes::cipher::consts::U16;
use aes::cipher::{
    BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt as _, BlockSizeUser, KeyInit as _,
};
use aes::{Aes128Enc, Block};
use types::Key;

/// Octets of an AES block.
const BLOCK: usize = 16;
/// Octets of COUNT, BEARER and DIRECTION in front of the message of NIA2.
const PREFIX: usize = 8;
/// Octets of a MAC-I.
pub const MAC_LEN: usize = 4;

/// Direction of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the UE.
    Uplink = 0,
    /// To the UE.
    Downlink = 1,
}

/// Inputs that differ between the transmissions under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// COUNT; the same value is never used twice with one key, bearer and direction.
    pub count: u32,
    /// BEARER, 5 bits; more are cut off.
    pub bearer: u8,
    /// DIRECTION.
    pub direction: Direction,
}

impl Input {
    /// COUNT, BEARER, DIRECTION and 26 zero bits.
    #[inline]
    fn word(self) -> u64 {
        u64::from(self.count) << 32
            | u64::from(self.bearer & 0x1F) << 27
            | u64::from(self.direction as u8) << 26
    }
}

/// Ciphering algorithms (TS 33.501 §5.11.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CipheringAlgorithm {
    /// No ciphering.
    Nea0,
    /// AES-128 in counter mode.
    Nea2,
}

/// Integrity algorithms (TS 33.501 §5.11.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegrityAlgorithm {
    /// A MAC-I of zeros.
    Nia0,
    /// AES-128-CMAC.
    Nia2,
}

/// A ciphering algorithm with its key (K_RRCenc, K_UPenc).
#[derive(Clone)]
pub struct Cipher(Option<Aes128Enc>);

impl Cipher {
    /// The algorithm with this key; NEA0 does not use it.
    pub fn new(algorithm: CipheringAlgorithm, key: &Key<16>) -> Self {
        match algorithm {
            CipheringAlgorithm::Nea0 => Self(None),
            CipheringAlgorithm::Nea2 => Self(Some(Aes128Enc::new(&Array::from(*key.expose())))),
        }
    }

    /// NEA0.
    pub fn nea0() -> Self {
        Self(None)
    }

    /// The algorithm.
    pub fn algorithm(&self) -> CipheringAlgorithm {
        if self.0.is_some() { CipheringAlgorithm::Nea2 } else { CipheringAlgorithm::Nea0 }
    }

    /// Ciphers or deciphers: the keystream is added to the data.
    #[inline]
    pub fn apply(&self, input: Input, data: &mut [u8]) {
        if let Some(key) = &self.0 {
            key.encrypt_with_backend(CounterMode { word: input.word(), data });
        }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher({:?})", self.algorithm())
    }
}

/// An integrity algorithm with its key (K_RRCint, K_UPint).
#[derive(Clone)]
pub struct Integrity(Option<Cmac>);

/// The key of NIA2 and the subkeys of its last block (RFC 4493 §2.3).
#[derive(Clone)]
struct Cmac {
    key: Aes128Enc,
    /// Added to a last block that is full.
    k1: u128,
    /// Added to a last block that was padded.
    k2: u128,
}

impl Integrity {
    /// The algorithm with this key; NIA0 does not use it.
    pub fn new(algorithm: IntegrityAlgorithm, key: &Key<16>) -> Self {
        match algorithm {
            IntegrityAlgorithm::Nia0 => Self(None),
            IntegrityAlgorithm::Nia2 => {
                let key = Aes128Enc::new(&Array::from(*key.expose()));
                let mut zero = Block::default();
                key.encrypt_block(&mut zero);
                let k1 = double(u128::from_be_bytes(zero.0));
                Self(Some(Cmac { key, k1, k2: double(k1) }))
            }
        }
    }

    /// NIA0.
    pub fn nia0() -> Self {
        Self(None)
    }

    /// The algorithm.
    pub fn algorithm(&self) -> IntegrityAlgorithm {
        if self.0.is_some() { IntegrityAlgorithm::Nia2 } else { IntegrityAlgorithm::Nia0 }
    }

    /// The MAC-I of a message.
    #[inline]
    pub fn mac(&self, input: Input, message: &[u8]) -> [u8; MAC_LEN] {
        let Some(cmac) = &self.0 else { return [0; MAC_LEN] };
        let mut state = 0;
        let (k1, k2) = (cmac.k1, cmac.k2);
        cmac.key.encrypt_with_backend(Chain { word: input.word(), message, k1, k2, state: &mut state });
        ((state >> 96) as u32).to_be_bytes()
    }
}

impl fmt::Debug for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Integrity({:?})", self.algorithm())
    }
}

/// Multiplies by x in the field of CMAC.
fn double(value: u128) -> u128 {
    (value << 1) ^ if value >> 127 == 1 { 0x87 } else { 0 }
}

/// The counter mode over a message.
struct CounterMode<'a> {
    /// The first half of each counter block.
    word: u64,
    data: &'a mut [u8],
}

impl BlockSizeUser for CounterMode<'_> {
    type BlockSize = U16;
}

/// A counter block: no message is so long that the count of its blocks reaches the first half.
#[inline(always)]
fn counter_block(word: u64, block: usize) -> Block {
    Array((u128::from(word) << 64 | block as u128).to_be_bytes())
}

impl BlockCipherEncClosure for CounterMode<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let (blocks, rest) = self.data.as_chunks_mut::<BLOCK>();
        let whole = blocks.len();
        // One by one: blocks do not depend on each other, so the processor overlaps them, about a dozen at a time. Handing them to
        // the backend in its largest groups (64 with AVX-512) was slower at every length, for all that goes through memory.
        for (number, data) in blocks.iter_mut().enumerate() {
            let mut stream = counter_block(self.word, number);
            backend.encrypt_block_inplace(&mut stream);
            *data = (u128::from_ne_bytes(*data) ^ u128::from_ne_bytes(stream.0)).to_ne_bytes();
        }
        if !rest.is_empty() {
            let mut stream = counter_block(self.word, whole);
            backend.encrypt_block_inplace(&mut stream);
            let (words, octets) = rest.as_chunks_mut::<4>();
            let (stream_words, stream_octets) = stream.split_at(words.len() * 4);
            for (data, stream) in words.iter_mut().zip(stream_words.as_chunks::<4>().0) {
                *data = (u32::from_ne_bytes(*data) ^ u32::from_ne_bytes(*stream)).to_ne_bytes();
            }
            for (data, stream) in octets.iter_mut().zip(stream_octets) {
                *data ^= stream;
            }
        }
    }
}

/// CMAC over the prefix and a message.
struct Chain<'a> {
    word: u64,
    message: &'a [u8],
    k1: u128,
    k2: u128,
    /// The result.
    state: &'a mut u128,
}

impl BlockSizeUser for Chain<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Chain<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let encrypt = |state: u128| {
            let mut block = Array(state.to_be_bytes());
            backend.encrypt_block_inplace(&mut block);
            u128::from_be_bytes(block.0)
        };
        let prefix = u128::from(self.word) << 64;
        // The first block holds the prefix and the first octets of the message.
        let Some((first, rest)) = self.message.split_first_chunk::<{ BLOCK - PREFIX }>() else {
            *self.state = encrypt(prefix ^ (padded(self.message, self.message.len()) >> 64) ^ self.k2);
            return;
        };
        let mut block = prefix | u128::from(u64::from_be_bytes(*first));
        let (blocks, rest) = rest.as_chunks::<BLOCK>();
        for next in blocks {
            block = encrypt(block) ^ u128::from_be_bytes(*next);
        }
        *self.state = if rest.is_empty() {
            encrypt(block ^ self.k1)
        } else {
            encrypt(encrypt(block) ^ padded(self.message, rest.len()) ^ self.k2)
        };
    }
}

/// The last `n` octets of a message, fewer than 16, as a block: a one bit follows them, then zeros.
#[inline(always)]
fn padded(message: &[u8], n: usize) -> u128 {
    // The octets before them are shifted out.
    let last = match message.last_chunk::<BLOCK>() {
        Some(last) => u128::from_be_bytes(*last),
        None => message.iter().fold(0, |value, octet| value << 8 | u128::from(*octet)),
    };
    last.checked_shl(8 * (BLOCK - n) as u32).unwrap_or(0) | 1 << (127 - 8 * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    struct Vector {
        name: &'static str,
        key: Key<16>,
        input: Input,
        bits: usize,
        from: Vec<u8>,
        to: Vec<u8>,
    }

    fn vectors() -> Vec<Vector> {
        let text = include_str!("../tests/vectors/ts33401-annex-c.txt");
        let line = |line: &'static str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let direction = if fields[4] == "1" { Direction::Downlink } else { Direction::Uplink };
            Vector {
                name: fields[0],
                key: fields[1].parse().unwrap(),
                input: Input {
                    count: u32::from_str_radix(fields[2], 16).unwrap(),
                    bearer: u8::from_str_radix(fields[3], 16).unwrap(),
                    direction,
                },
                bits: fields[5].parse().unwrap(),
                from: octets(fields[6]),
                to: octets(fields[7]),
            }
        };
        text.lines().filter(|line| !line.starts_with('#')).map(line).collect()
    }

    #[test]
    fn test_data_of_ts_33_401_annex_c_1() {
        let vectors = vectors();
        let sets: Vec<_> = vectors.iter().filter(|vector| vector.name.starts_with("eea2")).collect();
        assert_eq!(sets.len(), 6);
        for vector in sets {
            let cipher = Cipher::new(CipheringAlgorithm::Nea2, &vector.key);
            let mut data = vector.from[..vector.bits.div_ceil(8)].to_vec();
            cipher.apply(vector.input, &mut data);
            let (whole, bits) = (vector.bits / 8, vector.bits % 8);
            assert_eq!(data[..whole], vector.to[..whole], "{}", vector.name);
            if bits > 0 {
                let mask = 0xFF_u8 << (8 - bits);
                assert_eq!(data[whole] & mask, vector.to[whole] & mask, "{}", vector.name);
            }
            cipher.apply(vector.input, &mut data);
            assert_eq!(data, vector.from[..data.len()]);
        }
    }

    /// Sets 2, 5 and 8; the others have lengths that are not octets, which no PDCP PDU has.
    #[test]
    fn test_data_of_ts_33_401_annex_c_2() {
        let vectors = vectors();
        let sets: Vec<_> = vectors.iter().filter(|vector| vector.name.starts_with("eia2")).collect();
        assert_eq!(sets.len(), 3);
        for vector in sets {
            let integrity = Integrity::new(IntegrityAlgorithm::Nia2, &vector.key);
            assert_eq!(vector.bits, vector.from.len() * 8);
            assert_eq!(integrity.mac(vector.input, &vector.from).to_vec(), vector.to, "{}", vector.name);
        }
    }

    /// NEA2 and NIA2 as the standard writes them, one block after the other over a message built in full.
    fn plainly(key: &Key<16>, input: Input, message: &[u8]) -> (Vec<u8>, [u8; 4]) {
        let aes = Aes128Enc::new(&Array::from(*key.expose()));
        let encrypt = |octets: &[u8]| {
            let mut block = Block::try_from(octets).unwrap();
            aes.encrypt_block(&mut block);
            block.to_vec()
        };
        let mut head = input.count.to_be_bytes().to_vec();
        head.extend([input.bearer << 3 | (input.direction as u8) << 2, 0, 0, 0]);
        let stream = (0..message.len() as u64 / 16 + 1)
            .flat_map(|i| encrypt(&[head.clone(), i.to_be_bytes().to_vec()].concat()));
        let ciphered = message.iter().zip(stream).map(|(a, b)| a ^ b).collect();
        let shifted = |octets: &[u8]| {
            let carry = octets[0] >> 7;
            let mut out: Vec<u8> =
                (0..16).map(|i| octets[i] << 1 | octets.get(i + 1).map_or(0, |o| o >> 7)).collect();
            out[15] ^= carry * 0x87;
            out
        };
        let k1 = shifted(&encrypt(&[0; 16]));
        let mut input = [head, message.to_vec()].concat();
        let subkey = if input.len() % 16 == 0 {
            k1
        } else {
            input.push(0x80);
            input.resize(input.len().next_multiple_of(16), 0);
            shifted(&k1)
        };
        let last = input.len() - 16;
        for (octet, key) in input[last..].iter_mut().zip(subkey) {
            *octet ^= key;
        }
        let chain = input.chunks(16).fold(vec![0; 16], |state, block| {
            encrypt(&state.iter().zip(block).map(|(a, b)| a ^ b).collect::<Vec<u8>>())
        });
        (ciphered, chain[..4].try_into().unwrap())
    }

    #[test]
    fn every_length_is_as_the_standard_writes_it() {
        let key = Key::new(std::array::from_fn(|i| i as u8 * 7));
        let cipher = Cipher::new(CipheringAlgorithm::Nea2, &key);
        let integrity = Integrity::new(IntegrityAlgorithm::Nia2, &key);
        let message: Vec<u8> = (0..9100_u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        for length in (0..300).chain(1000..1100).chain(2030..2080).chain([4096, 9000, 9001, 9009]) {
            let direction = if length % 3 == 0 { Direction::Uplink } else { Direction::Downlink };
            let input = Input {
                count: (length as u32).wrapping_mul(0x0101_0307),
                bearer: length as u8 & 31,
                direction,
            };
            let (ciphered, mac) = plainly(&key, input, &message[..length]);
            let mut data = message[..length].to_vec();
            cipher.apply(input, &mut data);
            assert_eq!(data, ciphered, "{length}");
            assert_eq!(integrity.mac(input, &message[..length]), mac, "{length}");
        }
    }

    #[test]
    fn null_algorithms_change_nothing_and_sign_with_zeros() {
        let input = Input { count: 7, bearer: 3, direction: Direction::Uplink };
        let mut data = *b"in the clear";
        Cipher::nea0().apply(input, &mut data);
        assert_eq!(&data, b"in the clear");
        assert_eq!(Integrity::nia0().mac(input, &data), [0; 4]);
    }

    #[test]
    fn debug_output_has_no_key() {
        let key = Key::new([0xAB; 16]);
        let text = format!(
            "{:?} {:?}",
            Cipher::new(CipheringAlgorithm::Nea2, &key),
            Integrity::new(IntegrityAlgorithm::Nia2, &key)
        );
        assert_eq!(text, "Cipher(Nea2) Integrity(Nia2)");
    }
}
