//! Objects that clang has compiled for the target bpf: the code of one program, and the names in it.
//!
//! A name in the code is a map, memory that is shared with this process, or a number that is known when the program is loaded
//! (`bpf/program.h`). Each is the immediate value of an instruction of 16 octets; [`Object::link`] writes it. That is all of ELF
//! that our programs need: they have no functions of their own, no data and no types.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

use pktio::bpf::asm::{PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use pktio::bpf::{BpfError, Program};

// Of an ELF header, and of its sections, symbols and relocations (ELF-64 object file format).
const MAGIC: &[u8] = b"\x7FELF\x02\x01";
const MACHINE_BPF: u16 = 247;
const SECTION_SIZE: usize = 64;
const SYMBOL_SIZE: usize = 24;
const RELOCATION_SIZE: usize = 16;
const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 9;
/// The kind of relocation that is a 64-bit immediate.
const R_BPF_64_64: u64 = 1;
/// Opcode of the instruction that loads it.
const LD_IMM64: u8 = 0x18;

/// Why a program cannot be read or loaded.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The build had no clang.
    #[error(
        "this build has no XDP programs: install clang (Debian: clang), and build again with `make build`"
    )]
    NotBuilt,
    /// What clang made is not what is read here.
    #[error("a compiled XDP program cannot be read: {0}")]
    Unreadable(&'static str),
    /// The code has a name that nobody gave a value.
    #[error("an XDP program refers to `{0}`, which is not there")]
    Unknown(String),
    /// What the kernel did not do.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// What a name in the code stands for.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A map.
    Map(BorrowedFd<'a>),
    /// The address of shared memory ([`pktio::bpf::SharedWords`]).
    Memory(BorrowedFd<'a>),
    /// A number.
    Number(u64),
}

/// A compiled program.
#[derive(Debug)]
pub struct Object {
    code: Vec<u64>,
    /// Which instruction has which name.
    names: Vec<(usize, String)>,
    licence: CString,
    sections: HashMap<String, Vec<u8>>,
}

/// A section header.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    kind: u32,
    contents: &'a [u8],
    /// The section that it is about.
    info: u32,
}

fn part(bytes: &[u8], at: usize, length: usize) -> Result<&[u8], ObjectError> {
    at.checked_add(length)
        .and_then(|end| bytes.get(at..end))
        .ok_or(ObjectError::Unreadable("it is shorter than its headers say"))
}

fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64, ObjectError> {
    let mut octets = [0; 8];
    octets[..length].copy_from_slice(part(bytes, at, length)?);
    Ok(u64::from_le_bytes(octets))
}

fn text(table: &[u8], at: usize) -> Result<&str, ObjectError> {
    let rest = table.get(at..).ok_or(ObjectError::Unreadable("a name is outside its table"))?;
    let end = rest.iter().position(|octet| *octet == 0).unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).map_err(|_| ObjectError::Unreadable("a name is not text"))
}

impl Object {
    /// Reads the program in the section `xdp` of an object.
    ///
    /// # Errors
    /// It is none that clang makes of our programs.
    pub fn read(bytes: &[u8]) -> Result<Object, ObjectError> {
        if !bytes.starts_with(MAGIC) || number(bytes, 18, 2)? != u64::from(MACHINE_BPF) {
            return Err(ObjectError::Unreadable("it is not for eBPF"));
        }
        let sections = sections(bytes)?;
        let missing = ObjectError::Unreadable("a section is missing");
        let find = |name: &str| sections.iter().position(|section| section.name == name);
        let program = find("xdp").ok_or(missing)?;
        let code: Vec<u64> = sections[program]
            .contents
            .chunks_exact(8)
            .map(|octets| u64::from_le_bytes(octets.try_into().expect("chunks of eight")))
            .collect();
        let symbols = sections.iter().find(|section| section.kind == SYMBOLS);
        let names = find(".strtab").map(|at| sections[at].contents).unwrap_or_default();
        let mut named = Vec::new();
        for section in &sections {
            if section.kind != RELOCATIONS || section.info as usize != program {
                continue;
            }
            for relocation in section.contents.chunks_exact(RELOCATION_SIZE) {
                let (place, info) = (number(relocation, 0, 8)? as usize / 8, number(relocation, 8, 8)?);
                let wide = code.get(place).is_some_and(|code| *code as u8 == LD_IMM64);
                if info & 0xFFFF_FFFF != R_BPF_64_64 || !wide || place + 1 >= code.len() {
                    return Err(ObjectError::Unreadable(
                        "it refers to something else than an immediate value",
                    ));
                }
                let symbol = symbols.ok_or(ObjectError::Unreadable("it has no symbols"))?.contents;
                let at = (info >> 32) as usize * SYMBOL_SIZE;
                named.push((place, text(names, number(symbol, at, 4)? as usize)?.to_owned()));
            }
        }
        let licence =
            find("license").map(|at| text(sections[at].contents, 0)).transpose()?.unwrap_or_default();
        Ok(Object {
            code,
            names: named,
            licence: CString::new(licence).map_err(|_| ObjectError::Unreadable("its licence is not text"))?,
            sections: sections
                .iter()
                .map(|section| (section.name.to_owned(), section.contents.to_vec()))
                .collect(),
        })
    }

    /// The contents of another section.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections.get(name).map(Vec::as_slice)
    }

    /// The code with the values of its names. Values that it does not have are left out.
    ///
    /// # Errors
    /// A name has no value.
    pub fn link(&self, values: &[(&str, Value<'_>)]) -> Result<Vec<u64>, ObjectError> {
        let mut code = self.code.clone();
        for (place, name) in &self.names {
            let value = values.iter().find(|(known, _)| known == name);
            let (_, value) = value.ok_or_else(|| ObjectError::Unknown(name.clone()))?;
            // The compiler leaves the distance from the name here.
            let distance = code[*place] >> 32;
            let (source, low, high) = match value {
                Value::Map(map) => (PSEUDO_MAP_FD, map.as_raw_fd() as u64, 0),
                Value::Memory(memory) => (PSEUDO_MAP_VALUE, memory.as_raw_fd() as u64, distance),
                Value::Number(number) => {
                    let sum = number.wrapping_add_signed(i64::from(distance as i32));
                    (0, sum & 0xFFFF_FFFF, sum >> 32)
                }
            };
            let register = code[*place] & 0x0F00;
            code[*place] = u64::from(LD_IMM64) | register | u64::from(source) << 12 | low << 32;
            code[*place + 1] = high << 32;
        }
        Ok(code)
    }

    /// Links and loads the program.
    ///
    /// # Errors
    /// A name has no value, or the kernel refuses the program.
    pub fn load(&self, name: &str, values: &[(&str, Value<'_>)]) -> Result<Program, ObjectError> {
        Ok(Program::load_licensed(name, &self.link(values)?, &self.licence)?)
    }
}

/// The sections of an object.
fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>, ObjectError> {
    let (table, count) = (number(bytes, 40, 8)? as usize, number(bytes, 60, 2)? as usize);
    let header = |at: usize| {
        let at = at.checked_mul(SECTION_SIZE).and_then(|offset| offset.checked_add(table));
        part(bytes, at.unwrap_or(usize::MAX), SECTION_SIZE)
    };
    let contents = |header: &[u8]| {
        // A section without contents in the file has no program or table of ours.
        if number(header, 4, 4)? == 8 {
            return Ok(&[][..]);
        }
        part(bytes, number(header, 24, 8)? as usize, number(header, 32, 8)? as usize)
    };
    let names = contents(header(number(bytes, 62, 2)? as usize)?)?;
    (0..count)
        .map(|at| {
            let header = header(at)?;
            Ok(Section {
                name: text(names, number(header, 0, 4)? as usize)?,
                kind: number(header, 4, 4)? as u32,
                contents: contents(header)?,
                info: number(header, 44, 4)? as u32,
            })
        })
        .collect()
}

#[cfg(all(test, feature = "clang"))]
mod tests {
    use super::*;

    const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/generate.o"));

    #[test]
    fn names_become_values() {
        let object = Object::read(OBJECT).unwrap();
        assert_eq!(object.licence.as_c_str(), c"Dual BSD/GPL");
        let error = object.link(&[("first_teid", Value::Number(1))]).unwrap_err();
        assert!(matches!(&error, ObjectError::Unknown(name) if name != "first_teid"), "{error}");
        let number = 0x1234_5678_9ABC_DEF0;
        let values =
            ["template", "sequence", "first_teid", "teid_mask"].map(|name| (name, Value::Number(number)));
        let code = object.link(&values).unwrap();
        assert_eq!(code.len(), object.code.len());
        let plain: Vec<_> = object.names.iter().filter(|(place, _)| object.code[*place] >> 32 == 0).collect();
        assert!(!plain.is_empty());
        for (place, _) in plain {
            assert_eq!((code[*place] >> 32, code[*place + 1] >> 32), (number & 0xFFFF_FFFF, number >> 32));
        }
    }

    #[test]
    fn objects_that_are_cut_or_damaged_are_errors() {
        for length in 0..OBJECT.len() {
            // The section headers are at the end, so every cut hits one.
            assert!(Object::read(&OBJECT[..length]).is_err(), "{length}");
        }
        for bit in 0..OBJECT.len() * 8 {
            let mut damaged = OBJECT.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Whether it can be read depends on the bit; it must not panic.
            drop(Object::read(&damaged));
        }
    }
}

#[cfg(all(test, not(feature = "clang")))]
mod tests {
    use crate::steer::{Capacity, Steer};

    #[test]
    fn without_clang_loading_says_what_to_install() {
        let error = Steer::new(Capacity::default()).unwrap_err();
        assert!(error.to_string().contains("install clang"), "{error}");
    }
}
