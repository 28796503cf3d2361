//! Prints instructions as the kernel's verifier does (kernel/bpf/disasm.c), but gives a jump the
//! number of its target instruction instead of a distance.

use crate::compile::Compiled;
use crate::emit::{Instruction, Memory};

/// BPF_PSEUDO_FUNC, include/uapi/linux/bpf.h
const PSEUDO_FUNCTION: u8 = 4;

/// An instruction and its position in the source text.
#[derive(Debug)]
pub struct DisassembledInstruction {
    /// The number of the instruction. An instruction of 16 bytes has two numbers.
    pub at: usize,
    /// The line in the source text.
    pub line: u32,
    /// The column in the source text.
    pub column: u32,
    /// The encoded instruction.
    pub bytes: Vec<u8>,
    /// The instruction as text.
    pub text: String,
}

impl Compiled {
    /// Returns all instructions as text, each with its position in the source text.
    pub fn disassemble(&self) -> Vec<DisassembledInstruction> {
        let mut position = (0, 0);
        let mut lines = self.lines.iter().peekable();
        let mut disassembly = Vec::new();
        let mut at = 0;
        while at < self.instructions.len() {
            while let Some([_, _, _, packed]) = lines.next_if(|[from, ..]| *from as usize <= at) {
                // BPF_LINE_INFO_LINE_NUM and BPF_LINE_INFO_LINE_COL, include/uapi/linux/bpf.h
                position = (packed >> 10, packed & 0x3ff);
            }
            let instruction = Instruction::from_bytes(self.instructions[at]);
            let length = if instruction.is_wide() { 2 } else { 1 };
            let (line, column) = position;
            let bytes = self.instructions[at..at + length].concat();
            let text = match instruction.is_wide() {
                true => self.wide_mnemonic(at, instruction),
                false => mnemonic(at, instruction),
            };
            disassembly.push(DisassembledInstruction { at, line, column, bytes, text });
            at += length;
        }
        disassembly
    }

    fn wide_mnemonic(
        &self,
        at: usize,
        Instruction { to, from, immediate, .. }: Instruction,
    ) -> String {
        let high = Instruction::from_bytes(self.instructions[at + 1]).immediate;
        if from == PSEUDO_FUNCTION {
            return format!("r{to} = function {}", at as i64 + 1 + i64::from(immediate));
        }
        let Some((_, memory)) = self.memory.iter().find(|(index, _)| *index == at) else {
            let number = (i64::from(high) << 32) | i64::from(immediate as u32);
            return format!("r{to} = {number:#x} ll");
        };
        match memory {
            Memory::Map(number) => format!("r{to} = map {number}"),
            Memory::Records => format!("r{to} = records"),
            Memory::Slots => format!("r{to} = plugins"),
            Memory::Data => format!("r{to} = data + {high}"),
            Memory::Control => format!("r{to} = control + {high}"),
            Memory::Verdicts => format!("r{to} = verdicts + {high}"),
            Memory::TailCall => format!("r{to} = next plugin"),
        }
    }
}

fn mnemonic(at: usize, instruction: Instruction) -> String {
    let Instruction { code, to, from, offset, immediate } = instruction;
    let (class, by_register) = (code & 0x07, code & 0x08 != 0);
    let is_64 = matches!(class, 0x05 | 0x07);
    let letter = if is_64 { 'r' } else { 'w' };
    let by = if by_register { format!("{letter}{from}") } else { format!("{immediate:#x}") };
    let target = at as i64 + 1 + i64::from(offset);
    let size = match code & 0x18 {
        0x00 => "u32",
        0x08 => "u16",
        0x10 => "u8",
        _ => "u64",
    };
    match (class, code & 0xf0) {
        // Loads and stores have their size in the bits in which other instructions have the
        // operation.
        (1, _) => format!("r{to} = *({size} *)(r{from} {offset:+})"),
        (2, _) => format!("*({size} *)(r{to} {offset:+}) = {immediate}"),
        (3, mode) if mode >= 0xc0 => format!("lock *({size} *)(r{to} {offset:+}) += r{from}"),
        (3, _) => format!("*({size} *)(r{to} {offset:+}) = r{from}"),
        (4, 0xd0) => format!("r{to} = be{immediate} r{to}"),
        (4 | 7, 0xb0) => format!("{letter}{to} = {by}"),
        (4 | 7, operation) => format!("{letter}{to} {}= {by}", arithmetic(operation)),
        (5, 0x00) => format!("goto {target}"),
        (5, 0x80) if from == 0 => format!("call helper {immediate}"),
        (5, 0x80) => format!("call {}", at as i64 + 1 + i64::from(immediate)),
        (5, 0x90) => "exit".into(),
        (5, 0xe0) => format!("may_goto {target}"),
        (_, comparison) => {
            format!("if {letter}{to} {} {by} goto {target}", comparison_of(comparison))
        }
    }
}

fn arithmetic(operation: u8) -> &'static str {
    match operation {
        0x00 => "+",
        0x10 => "-",
        0x20 => "*",
        0x30 => "/",
        0x40 => "|",
        0x50 => "&",
        0x60 => "<<",
        0x70 => ">>",
        0x90 => "%",
        0xa0 => "^",
        _ => "s>>",
    }
}

fn comparison_of(operation: u8) -> &'static str {
    match operation {
        0x10 => "==",
        0x20 => ">",
        0x30 => ">=",
        0x50 => "!=",
        0x60 => "s>",
        0x70 => "s>=",
        0xa0 => "<",
        0xb0 => "<=",
        0xc0 => "s<",
        _ => "s<=",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ast::Operator;
    use crate::emit::By;
    use crate::ir::Width;

    #[test]
    fn every_instruction_has_a_mnemonic() {
        let by = By::Register(2);
        for (instruction, expected) in [
            (Instruction::operate(Operator::Add, Width::W64, false, 1, by), "r1 += r2"),
            (
                Instruction::operate(Operator::ShiftRight, Width::W32, true, 1, By::Immediate(3)),
                "w1 s>>= 0x3",
            ),
            (Instruction::set(1, By::Immediate(-1)), "r1 = 0xffffffff"),
            (Instruction::load(1, 10, -8, 8), "r1 = *(u64 *)(r10 -8)"),
            (Instruction::store(1, 4, 1, by), "*(u8 *)(r1 +4) = r2"),
            (Instruction::store(1, 4, 2, By::Immediate(7)), "*(u16 *)(r1 +4) = 7"),
            (Instruction::add_to(1, 0, 4, 2), "lock *(u32 *)(r1 +0) += r2"),
            (Instruction::to_big_endian(3, 16), "r3 = be16 r3"),
            (
                Instruction::jump_if(Operator::LessEqual, Width::W64, true, 1, by),
                "if r1 s<= r2 goto 8",
            ),
            (Instruction::jump(), "goto 8"),
            (Instruction::may_goto(), "may_goto 8"),
            (Instruction::helper(14), "call helper 14"),
            (Instruction::call(), "call 8"),
            (Instruction::exit(), "exit"),
        ] {
            assert_eq!(mnemonic(7, instruction), expected);
            assert_eq!(Instruction::from_bytes(instruction.bytes()), instruction);
        }
    }
}
