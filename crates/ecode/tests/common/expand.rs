//! Replaces instructions that rbpf 0.4 does not execute as the kernel does: atomic additions and
//! `may_goto`, which it lacks, and 64-bit comparisons with a negative constant, which it takes for
//! a positive one of 32 bits.

use rbpf::ebpf::{self, Insn};

/// The number of the helper that decides whether a loop continues.
pub const GO_ON: u32 = 1 << 20;
/// The size of the frame of each function, the kernel's maximum. The compiler leaves 16 bytes of it
/// unused, and a register is saved there.
pub const FRAME_BYTES: u16 = 512;
const MAX_INSTRUCTIONS: usize = 32_000;
const KEPT_AT: i16 = -512;
const FRAME: u8 = 10;
const MAY_GOTO: u8 = 0xe5;

fn instruction(opc: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { opc, dst, src, off, imm }
}

#[derive(Default)]
struct Expanded {
    /// The instructions, each with the original instruction that it jumps to, if any.
    instructions: Vec<(Insn, Option<usize>)>,
}

impl Expanded {
    fn push(&mut self, instruction: Insn) {
        self.instructions.push((instruction, None));
    }

    fn keep(&mut self, register: u8) {
        self.push(instruction(ebpf::ST_DW_REG, FRAME, register, KEPT_AT, 0));
    }

    fn give_back(&mut self, register: u8) {
        self.push(instruction(ebpf::LD_DW_REG, register, FRAME, KEPT_AT, 0));
    }

    /// Emits a condition that needs another register, which is restored on both paths.
    fn branch(&mut self, register: u8, set: Insn, condition: Insn, to: usize) {
        self.keep(register);
        self.push(set);
        self.push(Insn { off: 2, ..condition });
        self.give_back(register);
        self.push(instruction(ebpf::JA, 0, 0, 2, 0));
        self.give_back(register);
        self.instructions.push((instruction(ebpf::JA, 0, 0, 0, 0), Some(to)));
    }

    fn add(&mut self, at: usize, before: &Insn) {
        let is_jump = matches!(before.opc & 0x07, ebpf::BPF_JMP | ebpf::BPF_JMP32);
        let to = (at as i64 + 1 + i64::from(before.off)) as usize;
        let spare = |taken: [u8; 2]| {
            (0..).find(|register| !taken.contains(register)).expect("there are ten")
        };
        match before.opc {
            MAY_GOTO => {
                let ask = instruction(ebpf::CALL, 0, 0, 0, GO_ON as i32);
                self.branch(0, ask, instruction(ebpf::JEQ_IMM, 0, 0, 0, 0), to);
            }
            ebpf::ST_W_XADD | ebpf::ST_DW_XADD => {
                let of_4 = before.opc == ebpf::ST_W_XADD;
                let (load, store) = match of_4 {
                    true => (ebpf::LD_W_REG, ebpf::ST_W_REG),
                    false => (ebpf::LD_DW_REG, ebpf::ST_DW_REG),
                };
                let sum = spare([before.dst, before.src]);
                self.keep(sum);
                self.push(instruction(load, sum, before.dst, before.off, 0));
                self.push(instruction(ebpf::ADD64_REG, sum, before.src, 0, 0));
                self.push(instruction(store, before.dst, sum, before.off, 0));
                self.give_back(sum);
            }
            ebpf::JEQ_IMM
            | ebpf::JNE_IMM
            | ebpf::JGT_IMM
            | ebpf::JGE_IMM
            | ebpf::JLT_IMM
            | ebpf::JLE_IMM
                if before.imm < 0 =>
            {
                let by = spare([before.dst, before.dst]);
                let condition = instruction(before.opc | ebpf::BPF_X, before.dst, by, 0, 0);
                self.branch(by, instruction(ebpf::MOV64_IMM, by, 0, 0, before.imm), condition, to);
            }
            ebpf::CALL if before.src != 0 => {
                let to = (at as i64 + 1 + i64::from(before.imm)) as usize;
                self.instructions.push((before.clone(), Some(to)));
            }
            ebpf::CALL | ebpf::EXIT => self.push(before.clone()),
            _ => self.instructions.push((before.clone(), is_jump.then_some(to))),
        }
    }
}

/// The expanded program, or `None` if it would be too long: rbpf computes jump targets in 16 bits.
pub fn expanded(program: &[Insn]) -> Option<Vec<Insn>> {
    let mut expanded = Expanded::default();
    let mut starts = Vec::new();
    for (at, instruction) in program.iter().enumerate() {
        starts.push(expanded.instructions.len());
        expanded.add(at, instruction);
    }
    let led = |(at, (mut instruction, to)): (usize, (Insn, Option<usize>))| {
        if let Some(to) = to {
            let by = starts[to] as i32 - at as i32 - 1;
            match instruction.opc {
                ebpf::CALL => instruction.imm = by,
                _ => instruction.off = by as i16,
            }
        }
        instruction
    };
    let is_short = expanded.instructions.len() < MAX_INSTRUCTIONS;
    is_short.then(|| expanded.instructions.into_iter().enumerate().map(led).collect())
}
