//! A program into what the kernel loads.

use std::collections::hash_map::{self, HashMap};

use crate::diagnostic::{Diagnostic, Span};
use crate::emit::btf::Btf;
use crate::emit::{Emitted, Memory, emit, needs_too_much};
use crate::hooks::{Ending, Entry};
use crate::ir::{Function, Loops};
use crate::layout::{CONTROL_BYTES, Layout};
use crate::lower::lower;
use crate::outline::{Kept, outline};
use crate::program::{Handler, Program};
use crate::ways::levelled;

/// The kernel rounds a function's frame up where functions call each other: round_up_stack_depth, kernel/bpf/verifier.c.
const FRAME_UNIT: u32 = 32;
/// MAX_CALL_FRAMES, include/linux/bpf_verifier.h
const MOST_CALLS: usize = 8;
/// BPF_MAX_SUBPROGS, include/linux/bpf_verifier.h
const MOST_FUNCTIONS: usize = 256;

/// A function's number, and 0; or 1 and more for the rounds of its loops.
type Part = (usize, usize);
/// The parts of each function.
type Functions = HashMap<usize, Vec<Emitted>>;

#[derive(Debug)]
pub struct Object {
    pub programs: Vec<Compiled>,
    pub maps: Vec<MapShape>,
    /// What the memory of global variables has at the beginning.
    pub data: Vec<u8>,
    /// So many of its first bytes are variables; strings are behind them.
    pub variable_bytes: u32,
    /// Where in it each global variable is.
    pub offsets: Vec<u32>,
    pub control_bytes: u32,
    /// Whether it tells user space something.
    pub has_records: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapShape {
    pub name: String,
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub entries: u32,
}

/// One handler, with the functions that it calls.
#[derive(Debug)]
pub struct Compiled {
    pub hook: String,
    pub selected: Vec<String>,
    /// As libbpf names what kind of program it is.
    pub section: &'static str,
    /// Its number among the program's handlers.
    pub handler: usize,
    /// Whether the hook's next plugin runs after it.
    pub is_chained: bool,
    /// Eight bytes each.
    pub instructions: Vec<[u8; 8]>,
    /// Which instruction needs the descriptor of what memory.
    pub memory: Vec<(usize, Memory)>,
    pub btf: Vec<u8>,
    /// `struct bpf_func_info`: where a function begins, and its type.
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`: where, the file's name, the line's text, line and column.
    pub lines: Vec<[u32; 4]>,
}

/// MAX_BPF_STACK, include/linux/filter.h, without what the kernel takes for loops: bpf_patch_insns of may_goto (v6.18), and
/// inline_bpf_loop.
fn most_frame_bytes(loops: Loops) -> u32 {
    match loops {
        Loops::MayGoto => 512 - 16,
        Loops::Helper => 512 - 24,
    }
}

pub fn compile(program: &Program, text: &str, name: &str, loops: Loops) -> Result<Object, Box<Diagnostic>> {
    let (layout, places) = (Layout::new(program), Places::new(text));
    let mut compiled = Functions::new();
    let entries = program.handlers.iter().enumerate();
    let entries =
        entries.flat_map(|(number, handler)| handler.offer.entries.iter().map(move |entry| (number, entry)));
    let programs = entries.map(|(number, entry)| {
        let handler = (&program.handlers[number], entry);
        let linked = link(program, &layout, handler, loops, &mut compiled)?;
        Ok(object(program, number, entry, &linked, &compiled, &places, name))
    });
    let map = |map: &crate::program::Map| MapShape {
        name: map.name.clone(),
        key_bytes: map.key.size() as u32,
        value_bytes: map.value.size() as u32,
        entries: map.length,
    };
    Ok(Object {
        programs: programs.collect::<Result<_, Box<Diagnostic>>>()?,
        maps: program.maps.iter().map(map).collect(),
        data: layout.initial(program),
        variable_bytes: layout.strings,
        offsets: layout.offsets,
        has_records: compiled
            .values()
            .flatten()
            .any(|emitted| emitted.memory.iter().any(|(_, of)| *of == Memory::Records)),
        control_bytes: CONTROL_BYTES,
    })
}

/// A function, and its loops where these are functions of their own.
fn parts(lowered: Function, loops: Loops, is_handler: bool) -> Result<Vec<Emitted>, Box<Diagnostic>> {
    let lowered = levelled(lowered);
    let (parts, kept) = match loops {
        Loops::MayGoto => (vec![lowered], Kept::default()),
        Loops::Helper if lowered.loops.len() >= MOST_FUNCTIONS => {
            return Err(too_many_functions(&lowered.name, &lowered.span));
        }
        Loops::Helper => outline(lowered),
    };
    let most_bytes = most_frame_bytes(loops);
    let keeps_context = parts.iter().any(Function::keeps_context);
    let is_handler = |part: &Function| is_handler && !part.is_round;
    parts.iter().map(|part| emit(part, &kept, is_handler(part), keeps_context, most_bytes)).collect()
}

fn too_many_functions(name: &str, span: &Span) -> Box<Diagnostic> {
    let problem =
        Diagnostic::error(span.clone(), format!("`{name}` needs more than {MOST_FUNCTIONS} functions"));
    Box::new(problem.help("those that it calls are counted, and on this kernel all loops"))
}

/// The functions of a handler, itself first, in the order in which they are found. Each but the handler, which is another one for
/// each of its entries, is compiled once.
fn link(
    program: &Program,
    layout: &Layout,
    (handler, entry): (&Handler, &Entry),
    loops: Loops,
    compiled: &mut Functions,
) -> Result<Vec<usize>, Box<Diagnostic>> {
    let lowered = lower(program, layout, handler.function, Some((handler, entry)))?;
    compiled.insert(handler.function, parts(lowered, loops, true)?);
    let mut linked = vec![handler.function];
    let mut at = 0;
    while let Some(&function) = linked.get(at) {
        at += 1;
        if let hash_map::Entry::Vacant(place) = compiled.entry(function) {
            place.insert(parts(lower(program, layout, function, None)?, loops, false)?);
        }
        for (_, callee) in compiled[&function].iter().flat_map(|part| &part.calls) {
            if !linked.contains(callee) {
                linked.push(*callee);
            }
        }
    }
    let functions: usize = linked.iter().map(|function| compiled[function].len()).sum();
    if functions > MOST_FUNCTIONS {
        let handler = &program.functions[handler.function];
        return Err(too_many_functions(&handler.name, &handler.span));
    }
    frames_fit(program, handler.function, compiled, most_frame_bytes(loops))?;
    Ok(linked)
}

/// What a part calls, each with the instruction.
fn calls(compiled: &Functions, (function, part): Part) -> impl Iterator<Item = (usize, Part)> {
    let emitted = &compiled[&function][part];
    let calls = emitted.calls.iter().map(|(at, callee)| (*at, (*callee, 0)));
    calls.chain(emitted.rounds.iter().map(move |(at, looped)| (*at, (function, looped + 1))))
}

/// Along each chain of calls.
fn frames_fit(
    program: &Program,
    handler: usize,
    compiled: &Functions,
    most_bytes: u32,
) -> Result<(), Box<Diagnostic>> {
    let mut deepest: HashMap<Part, (u32, usize)> = HashMap::new();
    let mut way = vec![((handler, 0), false)];
    while let Some((part, is_done)) = way.pop() {
        if deepest.contains_key(&part) {
            continue;
        }
        let callees = calls(compiled, part).map(|(_, callee)| callee);
        if !is_done {
            way.push((part, true));
            way.extend(callees.filter(|callee| !deepest.contains_key(callee)).map(|callee| (callee, false)));
            continue;
        }
        let below = callees
            .map(|callee| deepest[&callee])
            .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        let function = part.0;
        let bytes = compiled[&function][part.1].frame_bytes.max(1).next_multiple_of(FRAME_UNIT) + below.0;
        deepest.insert(part, (bytes, below.1 + 1));
        let span = program.functions[function].span.clone();
        let name = &program.functions[function].name;
        if bytes > most_bytes {
            return Err(needs_too_much(name, &span, bytes, most_bytes));
        }
        if below.1 + 1 > MOST_CALLS {
            let message = format!("`{name}` begins a chain of more than {MOST_CALLS} functions");
            let problem = Diagnostic::error(span, message);
            let help = match compiled.values().any(|parts| parts.len() > 1) {
                true => {
                    "the kernel allows no longer ones, and this one counts loops too: put some of them together"
                }
                false => "the kernel allows no longer ones: put some of them together",
            };
            return Err(Box::new(problem.help(help)));
        }
    }
    Ok(())
}

fn object(
    program: &Program,
    number: usize,
    entry: &Entry,
    linked: &[usize],
    compiled: &Functions,
    places: &Places,
    name: &str,
) -> Compiled {
    let handler = &program.handlers[number];
    let mut btf = Btf::new();
    let file = btf.string(name);
    let mut strings: HashMap<usize, u32> = HashMap::new();
    let mut starts = HashMap::new();
    let mut made = Compiled {
        hook: handler.hook.clone(),
        selected: handler.selected.clone(),
        section: entry.section,
        handler: number,
        is_chained: handler.offer.ending != Ending::Returned,
        instructions: Vec::new(),
        memory: Vec::new(),
        btf: Vec::new(),
        functions: Vec::new(),
        lines: Vec::new(),
    };
    for function in linked {
        let declared = &program.functions[*function];
        for (part, emitted) in compiled[function].iter().enumerate() {
            let start = made.instructions.len();
            starts.insert((*function, part), start);
            let of = match part {
                0 if *function == handler.function => btf.function(&declared.name, 1),
                0 => btf.function(&declared.name, declared.parameters),
                _ => btf.round(&declared.name),
            };
            made.functions.push([start as u32, of]);
            for (at, span) in &emitted.spans {
                let (line, column) = places.of(span);
                let string = *strings.entry(line).or_insert_with(|| btf.string(places.text(line)));
                // include/uapi/linux/bpf.h, BPF_LINE_INFO_LINE_NUM
                made.lines.push([
                    (start + at) as u32,
                    file,
                    string,
                    (line as u32) << 10 | column.min(1023) as u32,
                ]);
            }
            made.memory.extend(emitted.memory.iter().map(|(at, memory)| (start + at, *memory)));
            made.instructions.extend(emitted.instructions.iter().map(|instruction| instruction.bytes()));
        }
    }
    for (caller, start) in &starts {
        for (at, callee) in calls(compiled, *caller) {
            let by = starts[&callee] as i32 - (start + at) as i32 - 1;
            made.instructions[start + at][4..].copy_from_slice(&by.to_le_bytes());
        }
    }
    made.btf = btf.bytes();
    made
}

/// Lines and columns, from 1 on.
struct Places<'a> {
    lines: Vec<&'a str>,
    starts: Vec<usize>,
}

impl<'a> Places<'a> {
    fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { lines: text.split('\n').collect(), starts }
    }

    fn of(&self, span: &Span) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= span.start);
        (line, span.start - self.starts[line - 1] + 1)
    }

    fn text(&self, line: usize) -> &'a str {
        self.lines[line - 1].trim()
    }
}
