//! Where ways through a function come together, the verifier is to know the same of a number whichever way it came: it looks at what
//! follows once for each range that the number may have, and of numbers that come together so one after the other, once for each of
//! their combinations (docs/decisions/0006-plugin.md).

use crate::allocate::needed;
use crate::ast::Operator;
use crate::ir::{Address, Argument, Base, Block, BlockId, End, Function, Step, Value, Width};

/// Bytes of what the verifier follows in the frame: BPF_REG_SIZE, include/linux/bpf_verifier.h.
const WORD: u32 = 8;

/// What the verifier knows of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing of so many lowest bits, and that the others are 0.
    Bits(u8),
    /// That it is one of so many bits with a sign.
    Signed(u8, Width),
    /// Perhaps more than of any number so wide.
    More(Width),
    /// An address, or what calls leave, is not looked at.
    Other,
}

/// Where several blocks lead to one, and the block at which these ways have parted (the immediate dominator).
pub fn joins(function: &Function) -> Vec<Option<BlockId>> {
    let mut from = vec![Vec::new(); function.blocks.len()];
    for (number, block) in function.blocks.iter().enumerate() {
        // Only a loop's next round is before.
        block.end.leads_to().filter(|to| *to > number).for_each(|to| from[to].push(number));
    }
    let mut partings: Vec<usize> = Vec::new();
    for from in &from {
        let parting = from.iter().copied().reduce(|mut one, mut other| {
            while one != other {
                (one, other) = (one.min(other), partings[one.max(other)]);
            }
            one
        });
        partings.push(parting.unwrap_or(0));
    }
    let is_join = |number: usize| from[number].len() > 1;
    partings.iter().enumerate().map(|(number, parting)| is_join(number).then_some(*parting)).collect()
}

/// Hides from the verifier what it knows of a number that differs by the ways.
pub fn levelled(mut function: Function) -> Function {
    let joins = joins(&function);
    if joins.iter().all(Option::is_none) {
        return function;
    }
    let (needed, writes) = (needed(&function), writes(&function));
    let (decides, has_limit) = (deciding(&function), with_limits(&function));
    let mut of = vec![Vec::new(); decides.len()];
    writes.iter().enumerate().for_each(|(number, write)| of[write.to].push(number));
    let mut hidden = vec![None; writes.len()];
    for (join, parting) in joins.iter().enumerate().filter_map(|(join, parting)| Some((join, (*parting)?))) {
        let before = |block| writes.partition_point(|write| write.block < block);
        for number in before(parting + 1)..before(join) {
            let Write { to, known, .. } = writes[number];
            if hidden[number].is_some() {
                continue;
            }
            hidden[number] = match to.checked_sub(function.registers) {
                _ if !decides[to] => None,
                None if needed[join].has(to) && !has_limit[to] => {
                    told_apart(known, of[to].iter().map(|other| writes[*other].known))
                }
                Some(_) if matches!(known, Known::More(_)) => Some(known.width()),
                _ => None,
            };
        }
    }
    let hidden = writes.into_iter().zip(hidden).filter_map(|(write, width)| Some((write, width?)));
    let mut hidden: Vec<_> = hidden.collect();
    hidden.sort_unstable_by_key(|(write, _)| (write.block, write.step));
    // From the last one on, so that the others stay where they are.
    for (write, width) in hidden.into_iter().rev() {
        hide(&mut function, &write, width);
    }
    function
}

fn hide(function: &mut Function, write: &Write, width: Width) {
    let steps = &mut function.blocks[write.block].steps;
    let (step, span) = &mut steps[write.step];
    let span = span.clone();
    let Step::Store { value, .. } = step else {
        steps.insert(write.step + 1, (Step::Widen { register: write.to, width }, span));
        return;
    };
    let to = function.registers;
    function.registers += 1;
    let from = std::mem::replace(value, Value::Register(to));
    let copied = match from {
        Value::Constant(value) => vec![Step::Hide { to, value, width }],
        from => vec![Step::Move { to, from }, Step::Widen { register: to, width }],
    };
    steps.splice(write.step..write.step, copied.into_iter().map(|step| (step, span.clone())));
}

/// The last step of a block that writes somewhere, and what is known of that then.
struct Write {
    /// A register; or, counted on behind all registers, a word of the frame, which the verifier follows as if it were one.
    to: usize,
    block: BlockId,
    step: usize,
    known: Known,
}

/// The word of the frame whose beginning that is: the verifier follows no other numbers there.
fn word(address: Address) -> Option<usize> {
    match address {
        Address { base: Base::Frame(at), index: None } if at.is_multiple_of(WORD) => {
            Some((at / WORD) as usize)
        }
        _ => None,
    }
}

/// Which registers and words are looked at where ways part or an element is chosen, or become one that is: of others it is all the same
/// to the verifier what it knows (`mark_chain_precision`, kernel/bpf/verifier.c).
fn deciding(function: &Function) -> Vec<bool> {
    // Rounds are compared by all that there is: RANGE_WITHIN, the same file.
    let mut decides = vec![function.has_loops(); places(function)];
    let mut count = 0;
    loop {
        for Block { steps, end, .. } in function.blocks.iter().rev() {
            end.reads(|register| decides[register] |= !matches!(end, End::Return(_)));
            for (step, _) in steps.iter().rev() {
                let decides_what = match step {
                    Step::Helper { .. } => true,
                    _ => written(step, function.registers).is_some_and(|to| decides[to]),
                };
                if decides_what {
                    step.reads(|register| decides[register] = true);
                    if let Step::Load { from, .. } = step
                        && let Some(word) = word(*from)
                    {
                        decides[function.registers + word] = true;
                    }
                }
            }
        }
        // What is read before it is written, in a loop, is found only the next time.
        let found = decides.iter().filter(|decides| **decides).count();
        if found == count {
            return decides;
        }
        count = found;
    }
}

/// Registers, and behind them words of the frame.
fn places(function: &Function) -> usize {
    function.registers + function.frame_bytes.div_ceil(WORD) as usize
}

fn written(step: &Step, registers: usize) -> Option<usize> {
    match step {
        Step::Store { to, .. } => word(*to).map(|word| registers + word),
        _ => step.writes(),
    }
}

/// Which registers are lengths, say, of which the kernel's helpers want to know that they are not too long.
fn with_limits(function: &Function) -> Vec<bool> {
    let mut has_limit = vec![false; function.registers];
    for (step, _) in function.blocks.iter().flat_map(|block| &block.steps) {
        if let Step::Helper { arguments, .. } = step {
            for argument in arguments {
                if let Argument::Value(Value::Register(register)) = argument {
                    has_limit[*register] = true;
                }
            }
        }
    }
    has_limit
}

/// In the order of their blocks.
fn writes(function: &Function) -> Vec<Write> {
    // What is read before it is written, in a loop, is known only the second time.
    let first = writes_by(function, &vec![None; places(function)]);
    let mut known: Vec<Option<Known>> = vec![None; places(function)];
    for write in first {
        let before = &mut known[write.to];
        *before = Some(before.map_or(write.known, |before| before.or(write.known)));
    }
    writes_by(function, &known)
}

fn writes_by(function: &Function, elsewhere: &[Option<Known>]) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    // The number of each place's last write.
    let mut last = vec![usize::MAX; elsewhere.len()];
    for (block, Block { steps, .. }) in function.blocks.iter().enumerate() {
        for (step, (what, _)) in steps.iter().enumerate() {
            let Some(to) = written(what, function.registers) else { continue };
            let known = known(what, function.registers, |from| match writes.get(last[from]) {
                Some(write) if write.block == block => write.known,
                _ => elsewhere[from].unwrap_or(Known::Other),
            });
            let write = Write { to, block, step, known };
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

/// How wide a register is, if the verifier knows more of it after this way than it would after all.
fn told_apart(own: Known, all: impl Iterator<Item = Known> + Clone) -> Option<Width> {
    let width = all.clone().map(Known::width).max()?;
    let is_same = !matches!(own, Known::More(_)) && all.into_iter().all(|other| other == own);
    (!is_same && !own.is_any(width)).then_some(width)
}

/// What the verifier knows of what a step writes, by what it knows of registers and, behind them, words of the frame.
fn known(step: &Step, registers: usize, of: impl Fn(usize) -> Known) -> Known {
    let value = |value| match value {
        Value::Register(register) => of(register),
        Value::Constant(value) => Known::More(match u32::try_from(value) {
            Ok(_) => Width::W32,
            Err(_) => Width::W64,
        }),
    };
    match *step {
        Step::Move { from, .. } => value(from),
        Step::Hide { width, .. } | Step::Widen { width, .. } => Known::any(width),
        Step::Operate { operator, width, left, right, .. } => {
            // What is added to any number, or taken from it, is any number.
            let is_any = matches!(operator, Operator::Add | Operator::Subtract | Operator::Xor)
                && (value(left).is_any(width) || value(right).is_any(width));
            if is_any { Known::any(width) } else { Known::More(width) }
        }
        Step::Extend { from, bits, is_signed, width, .. } => match of(from) {
            Known::Bits(known) if known < bits => Known::Bits(known),
            Known::More(_) | Known::Signed(..) => Known::More(width),
            Known::Bits(_) | Known::Other if is_signed => Known::Signed(bits, width),
            Known::Bits(_) | Known::Other => Known::Bits(bits),
        },
        Step::Load { from, bytes, .. } => match word(from).map(|word| of(registers + word)) {
            Some(known) if !known.has(bytes * 8) => Known::More(wide(bytes)),
            _ => Known::Bits(bytes * 8),
        },
        Step::Store { value: from, bytes, .. } => match value(from) {
            known if known.has(bytes * 8) => Known::any(wide(bytes)),
            _ => Known::More(wide(bytes)),
        },
        Step::Argument { .. } => Known::Bits(64),
        Step::Swap { .. } => Known::More(Width::W64),
        _ => Known::Other,
    }
}

fn bits(width: Width) -> u8 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// The narrowest width that has so many bytes.
fn wide(bytes: u8) -> Width {
    if bytes > 4 { Width::W64 } else { Width::W32 }
}

impl Known {
    fn any(width: Width) -> Self {
        Self::Bits(bits(width))
    }

    /// After one way or another.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Other, _) | (_, Self::Other) => Self::Other,
            (one, other) => Self::More(one.width().max(other.width())),
        }
    }

    fn is_any(self, width: Width) -> bool {
        self.has(bits(width))
    }

    /// Whether so many bits may be any.
    fn has(self, bits: u8) -> bool {
        match self {
            Self::Bits(unknown) => unknown >= bits,
            Self::Other => true,
            Self::Signed(..) | Self::More(_) => false,
        }
    }

    fn width(self) -> Width {
        match self {
            Self::Bits(..=32) => Width::W32,
            Self::Bits(_) | Self::Other => Width::W64,
            Self::Signed(_, width) | Self::More(width) => width,
        }
    }
}
