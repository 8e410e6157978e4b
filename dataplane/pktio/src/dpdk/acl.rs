//! DPDK's packet classifier `rte_acl` for IPv4 5-tuples: multi-bit tries, many packets at once in vector registers.
//!
//! Rules are added once and built; an update is another [`Acl`]. It is here to be compared with the crate
//! `classifier`, not for the packet path of the UPF.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Error;

/// A rule. Equal to `struct godwit_acl_rule` of acl.c.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Rule {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// The highest wins; 1 to 2²⁹ - 1.
    pub priority: u32,
    /// What a match gives; not zero.
    pub value: u32,
    /// First and last.
    pub source_ports: [u16; 2],
    /// First and last.
    pub destination_ports: [u16; 2],
    /// Length of the source prefix.
    pub source_length: u8,
    /// Length of the destination prefix.
    pub destination_length: u8,
    /// Transport protocol.
    pub protocol: u8,
    /// 255, or 0 for any protocol.
    pub protocol_mask: u8,
}

/// How packets are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Algorithm {
    /// One after the other.
    Scalar = 0,
    /// Eight or sixteen at once.
    Avx2 = 1,
    /// Sixteen at once.
    Avx512x16 = 2,
    /// Thirty-two at once.
    Avx512x32 = 3,
}

/// Octets of a key: protocol, three unused, addresses, ports.
const KEY: usize = 16;
/// Octets that the run-time structure may have; zero lets rte_acl choose, which makes it smaller and slower.
const MAX_SIZE: usize = 0;

unsafe extern "C" {
    fn godwit_acl_create(name: *const c_char, rules: c_uint) -> *mut c_void;
    fn godwit_acl_add(context: *mut c_void, rule: *const Rule) -> c_int;
    fn godwit_acl_build(context: *mut c_void, max_size: usize) -> c_int;
    fn godwit_acl_algorithm(context: *mut c_void, algorithm: c_int) -> c_int;
    fn godwit_acl_classify(
        context: *const c_void,
        keys: *const *const u8,
        values: *mut u32,
        count: u32,
    ) -> c_int;
    fn godwit_acl_free(context: *mut c_void);
}

/// Packets in rte_acl's form.
#[derive(Debug, Default)]
pub struct Packets {
    keys: Vec<[u8; KEY]>,
}

impl Packets {
    /// Adds a packet.
    pub fn push(
        &mut self,
        source: u32,
        destination: u32,
        protocol: u8,
        source_port: u16,
        destination_port: u16,
    ) {
        let mut key = [0; KEY];
        key[0] = protocol;
        key[4..8].copy_from_slice(&source.to_be_bytes());
        key[8..12].copy_from_slice(&destination.to_be_bytes());
        key[12..14].copy_from_slice(&source_port.to_be_bytes());
        key[14..16].copy_from_slice(&destination_port.to_be_bytes());
        self.keys.push(key);
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// A built set of rules.
#[derive(Debug)]
pub struct Acl {
    context: NonNull<c_void>,
}

/// Packets per call at most: the size of the array of pointers on the stack.
const CALL: usize = 32;

impl Acl {
    /// Builds a set of rules. [`start`](super::start) must have been called.
    ///
    /// # Errors
    /// A rule is malformed, or memory does not suffice.
    pub fn build(rules: &[Rule]) -> Result<Acl, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Contexts are found by name: another name for each.
        let name = format!("godwit{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name ends with zero; DPDK copies it.
        let context = unsafe { godwit_acl_create(name.as_ptr(), rules.len().max(1) as c_uint) };
        let context = NonNull::new(context).ok_or_else(|| Error::from_code("create", -libc::ENOMEM))?;
        let acl = Acl { context };
        for rule in rules {
            // SAFETY: the context lives; the rule is copied.
            Error::check("add", unsafe { godwit_acl_add(context.as_ptr(), rule) })?;
        }
        // SAFETY: the context lives.
        Error::check("build", unsafe { godwit_acl_build(context.as_ptr(), MAX_SIZE) })?;
        Ok(acl)
    }

    /// Chooses how packets are looked up; the default is the widest that the processor has.
    ///
    /// # Errors
    /// The processor does not have it.
    pub fn choose(&mut self, algorithm: Algorithm) -> Result<(), Error> {
        // SAFETY: the context lives and nobody else uses it.
        Error::check("algorithm", unsafe { godwit_acl_algorithm(self.context.as_ptr(), algorithm as c_int) })
    }

    /// Looks up the packets of a range, up to `batch` (32 at most) per call of rte_acl; zero for those without a match.
    ///
    /// # Panics
    /// When the range leaves the packets, or `values` is shorter than it.
    pub fn classify(&self, packets: &Packets, range: Range<usize>, batch: usize, values: &mut [u32]) {
        let batch = batch.clamp(1, CALL);
        for (keys, values) in
            packets.keys[range.clone()].chunks(batch).zip(values[..range.len()].chunks_mut(batch))
        {
            let mut pointers = [std::ptr::null(); CALL];
            for (pointer, key) in pointers.iter_mut().zip(keys) {
                *pointer = key.as_ptr();
            }
            // SAFETY: as many pointers to keys of sixteen octets, and as many places for values, as the count says;
            // the context is only read.
            unsafe {
                godwit_acl_classify(
                    self.context.as_ptr(),
                    pointers.as_ptr(),
                    values.as_mut_ptr(),
                    keys.len() as u32,
                );
            }
        }
    }
}

impl Drop for Acl {
    fn drop(&mut self) {
        // SAFETY: it was created and is not used any more.
        unsafe { godwit_acl_free(self.context.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_priority_wins_with_every_algorithm() {
        crate::dpdk::start(0).unwrap();
        let any = [0, u16::MAX];
        let wide = Rule {
            source: 0x0A00_0000,
            source_length: 8,
            destination: 0,
            destination_length: 0,
            protocol: 0,
            protocol_mask: 0,
            source_ports: any,
            destination_ports: any,
            priority: 1,
            value: 7,
        };
        let narrow = Rule {
            protocol: 17,
            protocol_mask: 255,
            destination_ports: [53, 60],
            priority: 2,
            value: 9,
            ..wide
        };
        let mut acl = Acl::build(&[wide, narrow]).unwrap();
        let mut packets = Packets::default();
        for number in 0..40_u32 {
            packets.push(0x0A00_0001 + number, 1, 17, 1, 50 + number as u16);
        }
        packets.push(0x0B00_0001, 1, 17, 1, 53);
        let expected: Vec<u32> =
            (0..40).map(|number| if (3..=10).contains(&number) { 9 } else { 7 }).chain([0]).collect();
        let mut tried = 0;
        for algorithm in [Algorithm::Scalar, Algorithm::Avx2, Algorithm::Avx512x16, Algorithm::Avx512x32] {
            if acl.choose(algorithm).is_ok() {
                tried += 1;
                for batch in [1, 32] {
                    let mut values = vec![0; packets.len()];
                    acl.classify(&packets, 0..packets.len(), batch, &mut values);
                    assert_eq!(values, expected, "{algorithm:?}");
                }
            }
        }
        assert!(tried >= 1);
    }
}
