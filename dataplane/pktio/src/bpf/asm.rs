//! A small assembler for eBPF: enough for programs that look at headers and redirect.
//!
//! Jumps go to labels, which are placed before or after; [`Assembler::finish`] puts the distances in.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A register. R0 holds results, R1–R5 arguments, R6–R9 survive calls, R10 is the frame pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reg {
    /// Result of calls and of the program.
    R0,
    /// First argument; at the start the context.
    R1,
    /// Second argument.
    R2,
    /// Third argument.
    R3,
    /// Fourth argument.
    R4,
    /// Fifth argument.
    R5,
    /// Kept over calls.
    R6,
    /// Kept over calls.
    R7,
    /// Kept over calls.
    R8,
    /// Kept over calls.
    R9,
    /// Frame pointer, read only.
    R10,
}

/// How much a load or store moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Size {
    /// Four octets.
    Word = 0x00,
    /// Two octets.
    Half = 0x08,
    /// One octet.
    Byte = 0x10,
    /// Eight octets.
    Double = 0x18,
}

/// A place in the program that jumps go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Why a program cannot be assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AsmError {
    /// A jump to a label that was never placed.
    #[error("label {0} is not placed")]
    Unplaced(usize),
    /// A jump over more than 32,767 instructions.
    #[error("a jump from instruction {0} goes too far")]
    TooFar(usize),
}

// Instruction classes and modes of the instruction set (RFC 9669 §3, §4, §5).
const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const ST_MEM: u8 = 0x62;
const LD_IMM64: u8 = 0x18;
const LD_ABS: u8 = 0x20;
const ALU64_IMM: u8 = 0x07;
const ALU64_REG: u8 = 0x0F;
const ALU32_IMM: u8 = 0x04;
const ALU32_REG: u8 = 0x0C;
const JMP_REG: u8 = 0x0D;
const JMP_IMM: u8 = 0x05;
const JMP32_IMM: u8 = 0x06;
const JA: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const ADD: u8 = 0x00;
const MUL: u8 = 0x20;
const AND: u8 = 0x50;
const RSH: u8 = 0x70;
const XOR: u8 = 0xA0;
const MOV: u8 = 0xB0;
const JEQ: u8 = 0x10;
const JGT: u8 = 0x20;
const JNE: u8 = 0x50;
const ST_ATOMIC: u8 = 0xC3;
/// `src` of a 64-bit immediate that is a map's descriptor.
pub const PSEUDO_MAP_FD: u8 = 1;
/// `src` of a 64-bit immediate that is a map's descriptor and an offset in its value.
pub const PSEUDO_MAP_VALUE: u8 = 2;

/// A program in the making.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// Which instructions jump to which label.
    jumps: Vec<(usize, Label)>,
}

/// One instruction: opcode, registers (4 bits each), offset, immediate.
fn instruction(opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(opcode)
        | u64::from(dst | src << 4) << 8
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}

impl Assembler {
    /// An empty program.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    fn push(&mut self, opcode: u8, dst: Reg, src: u8, offset: i16, immediate: i32) {
        self.code.push(instruction(opcode, dst as u8, src, offset, immediate));
    }

    /// A label to be placed.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label in front of the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// `dst = value`.
    pub fn set(&mut self, dst: Reg, value: i32) {
        self.push(ALU64_IMM | MOV, dst, 0, 0, value);
    }

    /// `dst = src`.
    pub fn copy(&mut self, dst: Reg, src: Reg) {
        self.push(ALU64_REG | MOV, dst, src as u8, 0, 0);
    }

    /// `dst += value`.
    pub fn add(&mut self, dst: Reg, value: i32) {
        self.push(ALU64_IMM | ADD, dst, 0, 0, value);
    }

    /// `dst &= mask`, upper half cleared.
    pub fn and32(&mut self, dst: Reg, mask: u32) {
        self.push(ALU32_IMM | AND, dst, 0, 0, mask as i32);
    }

    /// `dst >>= bits`, on 64 bits.
    pub fn shift_right(&mut self, dst: Reg, bits: u8) {
        self.push(ALU64_IMM | RSH, dst, 0, 0, bits.into());
    }

    /// `dst >>= bits` on the lower half, upper half cleared.
    pub fn shift_right32(&mut self, dst: Reg, bits: u8) {
        self.push(ALU32_IMM | RSH, dst, 0, 0, bits.into());
    }

    /// `dst *= value`, on 64 bits.
    pub fn multiply(&mut self, dst: Reg, value: i32) {
        self.push(ALU64_IMM | MUL, dst, 0, 0, value);
    }

    /// `dst *= value` on the lower half, upper half cleared.
    pub fn multiply32(&mut self, dst: Reg, value: u32) {
        self.push(ALU32_IMM | MUL, dst, 0, 0, value as i32);
    }

    /// `dst ^= src` on the lower half, upper half cleared.
    pub fn xor32(&mut self, dst: Reg, src: Reg) {
        self.push(ALU32_REG | XOR, dst, src as u8, 0, 0);
    }

    /// `R0` = up to four octets of the packet from `offset` on, in network order. R6 is the context; R1 to R5 are lost.
    /// If the packet is shorter, the program ends with the result 0. Only for socket filters.
    pub fn load_packet(&mut self, size: Size, offset: u16) {
        self.push(LD_ABS | size as u8, Reg::R0, 0, 0, offset.into());
    }

    /// `dst = *(base + offset)`.
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) {
        self.push(LDX_MEM | size as u8, dst, base as u8, offset, 0);
    }

    /// `*(base + offset) = src`.
    pub fn store(&mut self, size: Size, base: Reg, offset: i16, src: Reg) {
        self.push(STX_MEM | size as u8, base, src as u8, offset, 0);
    }

    /// `*(base + offset) = value`.
    pub fn store_imm(&mut self, size: Size, base: Reg, offset: i16, value: i32) {
        self.push(ST_MEM | size as u8, base, 0, offset, value);
    }

    /// `dst` = the map behind a descriptor.
    pub fn load_map(&mut self, dst: Reg, map: BorrowedFd<'_>) {
        self.push(LD_IMM64, dst, PSEUDO_MAP_FD, 0, map.as_raw_fd());
        self.code.push(0);
    }

    /// `dst` = the address `offset` octets behind the start of the value of an array that has one
    /// ([`SharedWords`](super::SharedWords)).
    pub fn load_value(&mut self, dst: Reg, array: BorrowedFd<'_>, offset: i32) {
        self.push(LD_IMM64, dst, PSEUDO_MAP_VALUE, 0, array.as_raw_fd());
        self.code.push(instruction(0, 0, 0, 0, offset));
    }

    /// `*(base + offset) += src`, atomically; four or eight octets.
    pub fn atomic_add(&mut self, size: Size, base: Reg, offset: i16, src: Reg) {
        self.push(ST_ATOMIC | size as u8, base, src as u8, offset, ADD.into());
    }

    fn jump_by(&mut self, opcode: u8, dst: Reg, src: u8, immediate: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(opcode, dst, src, 0, immediate);
    }

    /// Jumps.
    pub fn jump(&mut self, to: Label) {
        self.jump_by(JA, Reg::R0, 0, 0, to);
    }

    /// Jumps if the lower half of `dst` is `value`.
    pub fn jump_if_eq32(&mut self, dst: Reg, value: u32, to: Label) {
        self.jump_by(JMP32_IMM | JEQ, dst, 0, value as i32, to);
    }

    /// Jumps unless the lower half of `dst` is `value`.
    pub fn jump_if_ne32(&mut self, dst: Reg, value: u32, to: Label) {
        self.jump_by(JMP32_IMM | JNE, dst, 0, value as i32, to);
    }

    /// Jumps if `dst` is zero: a pointer to nothing.
    pub fn jump_if_zero(&mut self, dst: Reg, to: Label) {
        self.jump_by(JMP_IMM | JEQ, dst, 0, 0, to);
    }

    /// Jumps if `a > b`, without sign.
    pub fn jump_if_greater(&mut self, a: Reg, b: Reg, to: Label) {
        self.jump_by(JMP_REG | JGT, a, b as u8, 0, to);
    }

    /// Calls a helper of the kernel by its number.
    pub fn call(&mut self, helper: i32) {
        self.push(CALL, Reg::R0, 0, 0, helper);
    }

    /// Ends the program; R0 is its result.
    pub fn exit(&mut self) {
        self.push(EXIT, Reg::R0, 0, 0, 0);
    }

    /// The program.
    pub fn finish(mut self) -> Result<Vec<u64>, AsmError> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].ok_or(AsmError::Unplaced(label.0))?;
            // Distances count from the instruction behind the jump.
            let distance = i16::try_from(target as i64 - at as i64 - 1).map_err(|_| AsmError::TooFar(at))?;
            self.code[at] |= u64::from(distance as u16) << 16;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodings as clang-14 and llvm-objdump show them.
    #[test]
    fn instructions_are_encoded_as_the_standard_says() {
        let mut asm = Assembler::new();
        asm.set(Reg::R0, 2);
        asm.copy(Reg::R6, Reg::R1);
        asm.load(Size::Word, Reg::R2, Reg::R1, 4);
        asm.load(Size::Half, Reg::R3, Reg::R7, 12);
        asm.add(Reg::R2, 14);
        asm.call(51);
        asm.atomic_add(Size::Double, Reg::R1, 8, Reg::R2);
        asm.exit();
        let octets: Vec<u8> = asm.finish().unwrap().iter().flat_map(|code| code.to_le_bytes()).collect();
        #[rustfmt::skip]
        assert_eq!(octets, [
            0xb7, 0, 0, 0, 2, 0, 0, 0,
            0xbf, 0x16, 0, 0, 0, 0, 0, 0,
            0x61, 0x12, 4, 0, 0, 0, 0, 0,
            0x69, 0x73, 12, 0, 0, 0, 0, 0,
            0x07, 0x02, 0, 0, 14, 0, 0, 0,
            0x85, 0, 0, 0, 51, 0, 0, 0,
            0xdb, 0x21, 8, 0, 0, 0, 0, 0,
            0x95, 0, 0, 0, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn jumps_reach_their_labels() {
        let mut asm = Assembler::new();
        let (back, on) = (asm.label(), asm.label());
        asm.place(back);
        asm.jump_if_greater(Reg::R2, Reg::R3, on);
        asm.jump(back);
        asm.place(on);
        asm.exit();
        let code = asm.finish().unwrap();
        assert_eq!(code[0] >> 16 & 0xFFFF, 1);
        assert_eq!(code[1] >> 16 & 0xFFFF, 0xFFFE);

        let mut asm = Assembler::new();
        let nowhere = asm.label();
        asm.jump(nowhere);
        assert_eq!(asm.finish(), Err(AsmError::Unplaced(0)));
    }
}
