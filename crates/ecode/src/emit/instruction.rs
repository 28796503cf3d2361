//! BPF instructions (RFC 9669).

use crate::ast::Operator;
use crate::ir::Width;
use crate::outline::LOOP;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    pub code: u8,
    pub to: u8,
    pub from: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// The frame pointer, which points to the end of the frame.
pub const FRAME: u8 = 10;

const LDX: u8 = 0x61;
const ST: u8 = 0x62;
const STX: u8 = 0x63;
const ALU: u8 = 0x04;
const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
/// The second operand is a register.
const BY_REGISTER: u8 = 0x08;
const MOVE: u8 = 0xb0;
const LOAD_64: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// BPF_JMP | BPF_JCOND with BPF_MAY_GOTO (include/uapi/linux/bpf.h of v6.9).
const MAY_GOTO: u8 = 0xe5;
/// BPF_STX | BPF_ATOMIC for 4 bytes.
const ATOMIC: u8 = 0xc3;
/// BPF_ALU | BPF_END | BPF_TO_BE
const TO_BIG_ENDIAN: u8 = 0xdc;
const PSEUDO_CALL: u8 = 1;

/// A second operand.
#[derive(Debug, Clone, Copy)]
pub enum By {
    Register(u8),
    Immediate(i32),
}

impl Instruction {
    fn new(code: u8, to: u8, by: By, offset: i16) -> Self {
        match by {
            By::Register(from) => Self { code: code | BY_REGISTER, to, from, offset, immediate: 0 },
            By::Immediate(immediate) => Self { code, to, from: 0, offset, immediate },
        }
    }

    pub fn operate(operator: Operator, width: Width, is_signed: bool, to: u8, by: By) -> Self {
        let code = match operator {
            Operator::Add => 0x00,
            Operator::Subtract => 0x10,
            Operator::Multiply => 0x20,
            Operator::Divide => 0x30,
            Operator::Or => 0x40,
            Operator::And => 0x50,
            Operator::ShiftLeft => 0x60,
            Operator::ShiftRight if is_signed => 0xc0,
            Operator::ShiftRight => 0x70,
            Operator::Remainder => 0x90,
            Operator::Xor => 0xa0,
            _ => unreachable!("comparisons are jumps"),
        };
        let class = if width == Width::W32 { ALU } else { ALU64 };
        Self::new(class | code, to, by, 0)
    }

    pub fn set(to: u8, by: By) -> Self {
        Self::new(ALU64 | MOVE, to, by, 0)
    }

    /// Sets a register and clears its upper half.
    pub fn set_32(to: u8, by: By) -> Self {
        Self::new(ALU | MOVE, to, by, 0)
    }

    pub fn jump() -> Self {
        Self::new(JMP, 0, By::Immediate(0), 0)
    }

    pub fn jump_if(
        comparison: Operator,
        width: Width,
        is_signed: bool,
        left: u8,
        right: By,
    ) -> Self {
        let code = match (comparison, is_signed) {
            (Operator::Equal, _) => 0x10,
            (Operator::NotEqual, _) => 0x50,
            (Operator::Greater, false) => 0x20,
            (Operator::GreaterEqual, false) => 0x30,
            (Operator::Less, false) => 0xa0,
            (Operator::LessEqual, false) => 0xb0,
            (Operator::Greater, true) => 0x60,
            (Operator::GreaterEqual, true) => 0x70,
            (Operator::Less, true) => 0xc0,
            (Operator::LessEqual, true) => 0xd0,
            _ => unreachable!("it is a comparison"),
        };
        let class = if width == Width::W32 { JMP32 } else { JMP };
        Self::new(class | code, left, right, 0)
    }

    pub fn may_goto() -> Self {
        Self { code: MAY_GOTO, to: 0, from: 0, offset: 0, immediate: 0 }
    }

    pub fn load(to: u8, from: u8, offset: i16, bytes: u8) -> Self {
        Self { code: LDX | size(bytes), to, from, offset, immediate: 0 }
    }

    pub fn store(to: u8, offset: i16, bytes: u8, by: By) -> Self {
        match by {
            By::Register(from) => Self { code: STX | size(bytes), to, from, offset, immediate: 0 },
            By::Immediate(immediate) => {
                Self { code: ST | size(bytes), to, from: 0, offset, immediate }
            }
        }
    }

    /// An atomic addition to 4 or 8 bytes.
    pub fn add_to(to: u8, offset: i16, bytes: u8, from: u8) -> Self {
        Self { code: ATOMIC | size(bytes), to, from, offset, immediate: 0 }
    }

    /// A load of 64 bits, which takes two instructions. `kind` is 0 for a number; other kinds stand
    /// for an address that the kernel inserts.
    pub fn load_64(to: u8, kind: u8, low: i32, high: i32) -> [Self; 2] {
        let first = Self { code: LOAD_64, to, from: kind, offset: 0, immediate: low };
        [first, Self { code: 0, to: 0, from: 0, offset: 0, immediate: high }]
    }

    pub fn to_big_endian(to: u8, bits: u8) -> Self {
        Self { code: TO_BIG_ENDIAN, to, from: 0, offset: 0, immediate: bits.into() }
    }

    pub fn helper(number: i32) -> Self {
        Self { code: CALL, to: 0, from: 0, offset: 0, immediate: number }
    }

    pub fn call() -> Self {
        Self { code: CALL, to: 0, from: PSEUDO_CALL, offset: 0, immediate: 0 }
    }

    pub fn exit() -> Self {
        Self { code: EXIT, to: 0, from: 0, offset: 0, immediate: 0 }
    }

    /// The number of instructions by which the kernel replaces this one (do_misc_fixups,
    /// kernel/bpf/verifier.c, and htab_map_gen_lookup of v6.18).
    pub fn patched_len(self) -> usize {
        let (operation, class) = (self.code & 0xf0, self.code & 0x07);
        match self.code {
            MAY_GOTO => 7,
            // inline_bpf_loop
            CALL if self.from == 0 && self.immediate == LOOP => 18,
            CALL if self.from == 0 => 3,
            // Division and remainder.
            code if matches!((operation, class), (0x30 | 0x90, ALU | ALU64))
                && code & BY_REGISTER != 0 =>
            {
                4
            }
            _ => 1,
        }
    }

    /// Whether the instruction has 16 bytes.
    pub fn is_wide(self) -> bool {
        self.code == LOAD_64
    }

    pub fn from_bytes([code, registers, rest @ ..]: [u8; 8]) -> Self {
        let [first, second, immediate @ ..] = rest;
        let offset = i16::from_le_bytes([first, second]);
        Self {
            code,
            to: registers & 0xf,
            from: registers >> 4,
            offset,
            immediate: i32::from_le_bytes(immediate),
        }
    }

    pub fn bytes(self) -> [u8; 8] {
        let mut bytes = [self.code, self.from << 4 | self.to, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&self.offset.to_le_bytes());
        bytes[4..].copy_from_slice(&self.immediate.to_le_bytes());
        bytes
    }
}

/// BPF_B, BPF_H, BPF_W or BPF_DW, to combine with BPF_MEM (0x60) or BPF_ATOMIC (0xc0).
fn size(bytes: u8) -> u8 {
    match bytes {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}
