//! A program into what the kernel loads.

use std::collections::HashMap;

use crate::diagnostic::{Diagnostic, Span};
use crate::emit::btf::Btf;
use crate::emit::{Emitted, Memory, emit};
use crate::hooks::{Ending, Entry};
use crate::layout::{CONTROL_BYTES, Layout};
use crate::lower::lower;
use crate::program::{Handler, Program};

/// MAX_BPF_STACK, include/linux/filter.h, without what a loop's counter takes (bpf_patch_insns of may_goto, v6.18).
const MOST_FRAME_BYTES: u32 = 512 - 16;
/// The kernel rounds a function's frame up where functions call each other: round_up_stack_depth, kernel/bpf/verifier.c.
const FRAME_UNIT: u32 = 32;
/// MAX_CALL_FRAMES, include/linux/bpf_verifier.h
const MOST_CALLS: usize = 8;

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

pub fn compile(program: &Program, text: &str, name: &str) -> Result<Object, Box<Diagnostic>> {
    let (layout, places) = (Layout::new(program), Places::new(text));
    let mut compiled = HashMap::new();
    let entries = program.handlers.iter().enumerate();
    let entries =
        entries.flat_map(|(number, handler)| handler.offer.entries.iter().map(move |entry| (number, entry)));
    let programs = entries.map(|(number, entry)| {
        let handler = (&program.handlers[number], entry);
        let linked = link(program, &layout, handler, &mut compiled)?;
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
            .any(|emitted| emitted.memory.iter().any(|(_, of)| *of == Memory::Records)),
        control_bytes: CONTROL_BYTES,
    })
}

/// The functions of a handler, itself first, in the order in which they are found. Each but the handler, which is another one for
/// each of its entries, is compiled once.
fn link(
    program: &Program,
    layout: &Layout,
    (handler, entry): (&Handler, &Entry),
    compiled: &mut HashMap<usize, Emitted>,
) -> Result<Vec<usize>, Box<Diagnostic>> {
    let lowered = lower(program, layout, handler.function, Some((handler, entry)))?;
    compiled.insert(handler.function, emit(&lowered, true)?);
    let mut linked = vec![handler.function];
    let mut at = 0;
    while let Some(&function) = linked.get(at) {
        at += 1;
        if !compiled.contains_key(&function) {
            compiled.insert(function, emit(&lower(program, layout, function, None)?, false)?);
        }
        for (_, callee) in &compiled[&function].calls {
            if !linked.contains(callee) {
                linked.push(*callee);
            }
        }
    }
    frames_fit(program, handler.function, compiled)?;
    Ok(linked)
}

/// Along each chain of calls.
fn frames_fit(
    program: &Program,
    handler: usize,
    compiled: &HashMap<usize, Emitted>,
) -> Result<(), Box<Diagnostic>> {
    let mut deepest: HashMap<usize, (u32, usize)> = HashMap::new();
    let mut way = vec![(handler, false)];
    while let Some((function, is_done)) = way.pop() {
        let callees = compiled[&function].calls.iter().map(|(_, callee)| *callee);
        if deepest.contains_key(&function) {
            continue;
        }
        if !is_done {
            way.push((function, true));
            way.extend(callees.filter(|callee| !deepest.contains_key(callee)).map(|callee| (callee, false)));
            continue;
        }
        let below = callees
            .map(|callee| deepest[&callee])
            .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        let bytes = compiled[&function].frame_bytes.max(1).next_multiple_of(FRAME_UNIT) + below.0;
        deepest.insert(function, (bytes, below.1 + 1));
        let span = program.functions[function].span.clone();
        let name = &program.functions[function].name;
        if bytes > MOST_FRAME_BYTES {
            let message = format!(
                "`{name}` and what it calls need {bytes} bytes at a time, and the kernel gives {MOST_FRAME_BYTES}"
            );
            let problem = Diagnostic::error(span, message);
            return Err(Box::new(problem.help("make arrays and structs `static` or global")));
        }
        if below.1 + 1 > MOST_CALLS {
            let message = format!("`{name}` begins a chain of more than {MOST_CALLS} functions");
            let problem = Diagnostic::error(span, message);
            return Err(Box::new(
                problem.help("the kernel allows no longer ones: put some of them together"),
            ));
        }
    }
    Ok(())
}

fn object(
    program: &Program,
    number: usize,
    entry: &Entry,
    linked: &[usize],
    compiled: &HashMap<usize, Emitted>,
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
        let (start, emitted) = (made.instructions.len(), &compiled[function]);
        starts.insert(*function, start);
        let declared = &program.functions[*function];
        let parameters = if *function == handler.function { 1 } else { declared.parameters };
        let of = btf.function(&declared.name, parameters);
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
    for function in linked {
        let start = starts[function];
        for (at, callee) in &compiled[function].calls {
            let by = starts[callee] as i32 - (start + at) as i32 - 1;
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
