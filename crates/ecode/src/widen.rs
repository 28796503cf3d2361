//! Widens value ranges at join points, such that the verifier knows the same about a number on all
//! paths to the join. Otherwise it verifies the code that follows once for each range of the
//! number, and after several such joins once for each combination of ranges
//! (docs/decisions/0006-plugin.md).

use crate::ast::Operator;
use crate::cfg::join_points;
use crate::ir::{
    Address, AddressBase, BasicBlock, BlockId, HelperArgument, Inst, IrFunction, Terminator, Value,
    Width,
};
use crate::liveness::live_in;

/// The size of a stack word that the verifier tracks: BPF_REG_SIZE, include/linux/bpf_verifier.h.
const WORD: u32 = 8;

/// What the verifier knows about a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueRange {
    /// This number of lowest bits is unknown; the others are 0.
    Bits(u8),
    /// A signed number with this number of bits.
    Signed(u8, Width),
    /// The range may be narrower than that of an arbitrary number of this width.
    Bounded(Width),
    /// An address, or the result of a call. Its range is not considered.
    Other,
}

/// Hides from the verifier the ranges that differ between the paths to a join point.
pub fn widen_at_joins(mut function: IrFunction) -> IrFunction {
    let joins = join_points(&function);
    if joins.iter().all(Option::is_none) {
        return function;
    }
    let (live_in, writes) = (live_in(&function), definitions(&function));
    let (decides, has_limit) = (branch_inputs(&function), bounded_values(&function));
    let mut of = vec![Vec::new(); decides.len()];
    writes.iter().enumerate().for_each(|(number, write)| of[write.to].push(number));
    let mut hidden = vec![None; writes.len()];
    for (join, dominator) in
        joins.iter().enumerate().filter_map(|(join, dominator)| Some((join, (*dominator)?)))
    {
        let before = |block| writes.partition_point(|write| write.block < block);
        for number in before(dominator + 1)..before(join) {
            let Definition { to, range, .. } = writes[number];
            if hidden[number].is_some() {
                continue;
            }
            hidden[number] = match to.checked_sub(function.registers) {
                _ if !decides[to] => None,
                None if live_in[join].contains(to) && !has_limit[to] => {
                    widened_width(range, of[to].iter().map(|other| writes[*other].range))
                }
                Some(_) if matches!(range, ValueRange::Bounded(_)) => Some(range.width()),
                _ => None,
            };
        }
    }
    let hidden = writes.into_iter().zip(hidden).filter_map(|(write, width)| Some((write, width?)));
    let mut hidden: Vec<_> = hidden.collect();
    hidden.sort_unstable_by_key(|(write, _)| (write.block, write.step));
    // Insert from the last one backwards, so that the positions of the others stay valid.
    for (write, width) in hidden.into_iter().rev() {
        insert_opaque(&mut function, &write, width);
    }
    function
}

fn insert_opaque(function: &mut IrFunction, write: &Definition, width: Width) {
    let steps = &mut function.blocks[write.block].steps;
    let (step, span) = &mut steps[write.step];
    let span = span.clone();
    let Inst::Store { value, .. } = step else {
        steps.insert(write.step + 1, (Inst::Opaque { register: write.to, width }, span));
        return;
    };
    let to = function.registers;
    function.registers += 1;
    let from = std::mem::replace(value, Value::Register(to));
    let copied = match from {
        Value::Constant(value) => vec![Inst::OpaqueConst { to, value, width }],
        from => vec![Inst::Move { to, from }, Inst::Opaque { register: to, width }],
    };
    steps.splice(write.step..write.step, copied.into_iter().map(|step| (step, span.clone())));
}

/// The last write of a block to a register or word, and what the verifier knows after it.
struct Definition {
    /// The number of a register or of a word of the frame, which the verifier tracks like a
    /// register. The numbers of the words follow those of the registers.
    to: usize,
    block: BlockId,
    step: usize,
    range: ValueRange,
}

/// The word of the frame that begins at this address, if one does. The verifier tracks no other
/// numbers in the frame.
fn frame_word(address: Address) -> Option<usize> {
    match address {
        Address { base: AddressBase::Frame(at), index: None } if at.is_multiple_of(WORD) => {
            Some((at / WORD) as usize)
        }
        _ => None,
    }
}

/// The registers and words that decide a branch or select an element, directly or through others.
/// The verifier ignores what it knows about the rest (`mark_chain_precision`,
/// kernel/bpf/verifier.c).
fn branch_inputs(function: &IrFunction) -> Vec<bool> {
    // With loops, all registers and words count, because the verifier compares all of them between
    // iterations (RANGE_WITHIN, in the same file).
    let mut decides = vec![function.has_loops(); tracked_count(function)];
    let mut count = 0;
    loop {
        for BasicBlock { steps, end, .. } in function.blocks.iter().rev() {
            end.reads(|register| decides[register] |= !matches!(end, Terminator::Return(_)));
            for (step, _) in steps.iter().rev() {
                let decides_what = match step {
                    Inst::Helper { .. } => true,
                    _ => written_index(step, function.registers).is_some_and(|to| decides[to]),
                };
                if decides_what {
                    step.reads(|register| decides[register] = true);
                    if let Inst::Load { from, .. } = step
                        && let Some(word) = frame_word(*from)
                    {
                        decides[function.registers + word] = true;
                    }
                }
            }
        }
        // A value that a loop reads before writing it is found only in the next pass.
        let found = decides.iter().filter(|decides| **decides).count();
        if found == count {
            return decides;
        }
        count = found;
    }
}

/// The number of registers and words of the frame.
fn tracked_count(function: &IrFunction) -> usize {
    function.registers + function.frame_bytes.div_ceil(WORD) as usize
}

fn written_index(step: &Inst, registers: usize) -> Option<usize> {
    match step {
        Inst::Store { to, .. } => frame_word(*to).map(|word| registers + word),
        _ => step.writes(),
    }
}

/// The registers that are arguments of kernel helpers. The verifier must know their bounds, for
/// example that a length is not too large.
fn bounded_values(function: &IrFunction) -> Vec<bool> {
    let mut has_limit = vec![false; function.registers];
    for (step, _) in function.blocks.iter().flat_map(|block| &block.steps) {
        if let Inst::Helper { arguments, .. } = step {
            for argument in arguments {
                if let HelperArgument::Value(Value::Register(register)) = argument {
                    has_limit[*register] = true;
                }
            }
        }
    }
    has_limit
}

/// The definitions, in the order of their blocks.
fn definitions(function: &IrFunction) -> Vec<Definition> {
    // A value that a loop reads before writing it is known only in the second pass.
    let first = definitions_with(function, &vec![None; tracked_count(function)]);
    let mut ranges: Vec<Option<ValueRange>> = vec![None; tracked_count(function)];
    for write in first {
        let before = &mut ranges[write.to];
        *before = Some(before.map_or(write.range, |before| before.join(write.range)));
    }
    definitions_with(function, &ranges)
}

fn definitions_with(function: &IrFunction, elsewhere: &[Option<ValueRange>]) -> Vec<Definition> {
    let mut writes: Vec<Definition> = Vec::new();
    // The number of the last write to each register or word.
    let mut last = vec![usize::MAX; elsewhere.len()];
    for (block, BasicBlock { steps, .. }) in function.blocks.iter().enumerate() {
        for (step, (what, _)) in steps.iter().enumerate() {
            let Some(to) = written_index(what, function.registers) else { continue };
            let range = range_of(what, function.registers, |from| match writes.get(last[from]) {
                Some(write) if write.block == block => write.range,
                _ => elsewhere[from].unwrap_or(ValueRange::Other),
            });
            let write = Definition { to, block, step, range };
            match writes.get_mut(last[to]) {
                Some(before) if before.block == block => *before = write,
                _ => {
                    last[to] = writes.len();
                    writes.push(write);
                }
            }
        }
    }
    writes
}

/// The width of a value whose range must be hidden, or `None`. A range must be hidden if it is
/// narrower than that of an arbitrary number and may differ from the ranges on other paths.
fn widened_width(own: ValueRange, all: impl Iterator<Item = ValueRange> + Clone) -> Option<Width> {
    let width = all.clone().map(ValueRange::width).max()?;
    let is_same =
        !matches!(own, ValueRange::Bounded(_)) && all.into_iter().all(|other| other == own);
    (!is_same && !own.is_unknown(width)).then_some(width)
}

/// What the verifier knows about the value that a step writes. `of` gives what the verifier knows
/// about a register or a word of the frame.
fn range_of(step: &Inst, registers: usize, of: impl Fn(usize) -> ValueRange) -> ValueRange {
    let value = |value| match value {
        Value::Register(register) => of(register),
        Value::Constant(value) => ValueRange::Bounded(match u32::try_from(value) {
            Ok(_) => Width::W32,
            Err(_) => Width::W64,
        }),
    };
    match *step {
        Inst::Move { from, .. } => value(from),
        Inst::OpaqueConst { width, .. } | Inst::Opaque { width, .. } => ValueRange::unknown(width),
        Inst::BinaryOp { operator, width, left, right, .. } => {
            // The sum or difference of an unknown number and another one is unknown.
            let is_any = matches!(operator, Operator::Add | Operator::Subtract | Operator::Xor)
                && (value(left).is_unknown(width) || value(right).is_unknown(width));
            if is_any { ValueRange::unknown(width) } else { ValueRange::Bounded(width) }
        }
        Inst::Extend { from, bits, is_signed, width, .. } => match of(from) {
            ValueRange::Bits(unknown) if unknown < bits => ValueRange::Bits(unknown),
            ValueRange::Bounded(_) | ValueRange::Signed(..) => ValueRange::Bounded(width),
            ValueRange::Bits(_) | ValueRange::Other if is_signed => ValueRange::Signed(bits, width),
            ValueRange::Bits(_) | ValueRange::Other => ValueRange::Bits(bits),
        },
        Inst::Load { from, bytes, .. } => match frame_word(from).map(|word| of(registers + word)) {
            Some(range) if !range.allows(bytes * 8) => ValueRange::Bounded(width_of_bytes(bytes)),
            _ => ValueRange::Bits(bytes * 8),
        },
        Inst::Store { value: from, bytes, .. } => match value(from) {
            range if range.allows(bytes * 8) => ValueRange::unknown(width_of_bytes(bytes)),
            _ => ValueRange::Bounded(width_of_bytes(bytes)),
        },
        Inst::Argument { .. } => ValueRange::Bits(64),
        Inst::ByteSwap { .. } => ValueRange::Bounded(Width::W64),
        _ => ValueRange::Other,
    }
}

fn bits(width: Width) -> u8 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// The narrowest width with at least this number of bytes.
fn width_of_bytes(bytes: u8) -> Width {
    if bytes > 4 { Width::W64 } else { Width::W32 }
}

impl ValueRange {
    fn unknown(width: Width) -> Self {
        Self::Bits(bits(width))
    }

    /// What is known after either of two paths.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Other, _) | (_, Self::Other) => Self::Other,
            (one, other) => Self::Bounded(one.width().max(other.width())),
        }
    }

    fn is_unknown(self, width: Width) -> bool {
        self.allows(bits(width))
    }

    /// Whether this number of lowest bits is unknown.
    fn allows(self, bits: u8) -> bool {
        match self {
            Self::Bits(unknown) => unknown >= bits,
            Self::Other => true,
            Self::Signed(..) | Self::Bounded(_) => false,
        }
    }

    fn width(self) -> Width {
        match self {
            Self::Bits(..=32) => Width::W32,
            Self::Bits(_) | Self::Other => Width::W64,
            Self::Signed(_, width) | Self::Bounded(width) => width,
        }
    }
}
