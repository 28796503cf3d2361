//! Compiles a program into an object that the kernel can load.

use std::collections::hash_map::{self, HashMap};

use crate::data_layout::{CONTROL_BYTES, DataLayout};
use crate::diagnostic::{Diagnostic, Span};
use crate::emit::btf::Btf;
use crate::emit::{EmittedFunction, Memory, StackLimit, emit, needs_too_much};
use crate::hooks::{HookProgram, ReturnPolicy};
use crate::ir::{IrFunction, Loops};
use crate::lower::lower;
use crate::outline::{SharedRegisters, outline};
use crate::typed::{Handler, Program};
use crate::types::Type;
use crate::widen::widen_at_joins;

/// The kernel rounds frames up to this unit along a chain of calls (round_up_stack_depth,
/// kernel/bpf/verifier.c).
const FRAME_UNIT: u32 = 32;
/// MAX_CALL_FRAMES, include/linux/bpf_verifier.h
const MAX_CALL_DEPTH: usize = 8;
/// BPF_MAX_SUBPROGS, include/linux/bpf_verifier.h
const MAX_FUNCTIONS: usize = 256;

/// The number of a function, and the number of its part: 0 is the function itself, and the loop
/// bodies follow from 1 on.
type PartId = (usize, usize);
/// The parts of each function.
type Functions = HashMap<usize, Vec<EmittedFunction>>;

/// A compiled program.
#[derive(Debug)]
pub struct Object {
    /// The kernel programs, one or more for each handler.
    pub programs: Vec<Compiled>,
    /// The maps.
    pub maps: Vec<MapShape>,
    /// The initial content of the memory for global variables.
    pub data: Vec<u8>,
    /// The number of bytes of variables in `data`, before the strings.
    pub variable_bytes: u32,
    /// The offset of each global variable in `data`.
    pub offsets: Vec<u32>,
    /// The size of the control memory.
    pub control_bytes: u32,
    /// Whether the program writes records for user space.
    pub has_records: bool,
}

/// The shape of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapShape {
    /// The name in the source text.
    pub name: String,
    /// The size of a key.
    pub key_bytes: u32,
    /// The size of a value.
    pub value_bytes: u32,
    /// The maximum number of entries.
    pub entries: u32,
}

/// One handler with the functions that it calls.
#[derive(Debug)]
pub struct Compiled {
    /// The name of the hook.
    pub hook: String,
    /// The events that the handler selects.
    pub selected: Vec<String>,
    /// The type of the program as a libbpf section name.
    pub section: &'static str,
    /// The number of the handler in the program.
    pub handler: usize,
    /// Whether the next plugin of the hook runs after the handler.
    pub is_chained: bool,
    /// The instructions, eight bytes each.
    pub instructions: Vec<[u8; 8]>,
    /// Instructions that need the descriptor of some memory.
    pub memory: Vec<(usize, Memory)>,
    /// Type information (BTF) of the functions.
    pub btf: Vec<u8>,
    /// `struct bpf_func_info`: the first instruction of a function and its type.
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`: the instruction, the file name, the text of the line, and the line
    /// and column.
    pub lines: Vec<[u32; 4]>,
}

/// MAX_BPF_STACK (include/linux/filter.h) minus the bytes that the kernel adds for loops: for
/// may_goto in bpf_patch_insns (v6.18), and for bpf_loop in inline_bpf_loop.
fn stack_limit(program: &Program, loops: Loops) -> StackLimit {
    let most_bytes = match loops {
        Loops::MayGoto => 512 - 16,
        Loops::Helper => 512 - 24,
    };
    // The fields of hooks have no span in the text.
    let locals = program.functions.iter().flat_map(|function| &function.locals);
    let has_arrays = locals
        .filter(|local| !local.span.is_empty())
        .any(|local| matches!(local.ty, Type::Array(..) | Type::Struct(_)));
    StackLimit { most_bytes, has_arrays }
}

/// Compiles a checked program for the kernel.
pub fn compile(
    program: &Program,
    text: &str,
    name: &str,
    loops: Loops,
) -> Result<Object, Box<Diagnostic>> {
    let (layout, line_index) = (DataLayout::new(program), LineIndex::new(text));
    let mut compiled = Functions::new();
    let hook_programs = program.handlers.iter().enumerate();
    let hook_programs = hook_programs.flat_map(|(number, handler)| {
        handler.spec.programs.iter().map(move |hook_program| (number, hook_program))
    });
    let programs = hook_programs.map(|(number, hook_program)| {
        let handler = (&program.handlers[number], hook_program);
        let linked = link(program, &layout, handler, loops, &mut compiled)?;
        Ok(object(program, number, hook_program, &linked, &compiled, &line_index, name))
    });
    let map = |map: &crate::typed::Map| MapShape {
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

/// Compiles a function, and its loop bodies if these are functions of their own.
fn compile_function(
    lowered: IrFunction,
    loops: Loops,
    limit: StackLimit,
    is_handler: bool,
) -> Result<Vec<EmittedFunction>, Box<Diagnostic>> {
    let lowered = widen_at_joins(lowered);
    let (parts, shared) = match loops {
        Loops::MayGoto => (vec![lowered], SharedRegisters::default()),
        Loops::Helper if lowered.loops.len() >= MAX_FUNCTIONS => {
            return Err(too_many_functions(&lowered.name, &lowered.span));
        }
        Loops::Helper => outline(lowered),
    };
    let keeps_context = parts.iter().any(IrFunction::keeps_context);
    let is_handler = |part: &IrFunction| is_handler && !part.is_loop_body;
    parts.iter().map(|part| emit(part, &shared, is_handler(part), keeps_context, limit)).collect()
}

fn too_many_functions(name: &str, span: &Span) -> Box<Diagnostic> {
    let problem = Diagnostic::error(
        span.clone(),
        format!("`{name}` needs more than {MAX_FUNCTIONS} functions"),
    );
    Box::new(problem.help("each called function counts; on this kernel, each loop counts as well"))
}

/// Links a handler with its functions, the handler first and the others in the order in which they
/// are found. Each function is compiled once, except for the handler, which is compiled for each of
/// the hook's programs.
fn link(
    program: &Program,
    layout: &DataLayout,
    (handler, hook_program): (&Handler, &HookProgram),
    loops: Loops,
    compiled: &mut Functions,
) -> Result<Vec<usize>, Box<Diagnostic>> {
    let limit = stack_limit(program, loops);
    let lowered = lower(program, layout, handler.function, Some((handler, hook_program)))?;
    compiled.insert(handler.function, compile_function(lowered, loops, limit, true)?);
    let mut linked = vec![handler.function];
    let mut at = 0;
    while let Some(&function) = linked.get(at) {
        at += 1;
        if let hash_map::Entry::Vacant(vacant) = compiled.entry(function) {
            vacant.insert(compile_function(
                lower(program, layout, function, None)?,
                loops,
                limit,
                false,
            )?);
        }
        for (_, callee) in compiled[&function].iter().flat_map(|part| &part.calls) {
            if !linked.contains(callee) {
                linked.push(*callee);
            }
        }
    }
    let functions: usize = linked.iter().map(|function| compiled[function].len()).sum();
    if functions > MAX_FUNCTIONS {
        let handler = &program.functions[handler.function];
        return Err(too_many_functions(&handler.name, &handler.span));
    }
    check_stack_depth(program, handler.function, compiled, limit)?;
    Ok(linked)
}

/// The calls of a part: the instruction and the called part.
fn calls(compiled: &Functions, (function, part): PartId) -> impl Iterator<Item = (usize, PartId)> {
    let emitted = &compiled[&function][part];
    let calls = emitted.calls.iter().map(|(at, callee)| (*at, (*callee, 0)));
    calls.chain(emitted.loop_refs.iter().map(move |(at, loop_id)| (*at, (function, loop_id + 1))))
}

/// Checks the stack and the depth along each chain of calls.
fn check_stack_depth(
    program: &Program,
    handler: usize,
    compiled: &Functions,
    limit: StackLimit,
) -> Result<(), Box<Diagnostic>> {
    let mut deepest: HashMap<PartId, (u32, usize)> = HashMap::new();
    let mut stack = vec![((handler, 0), false)];
    while let Some((part, is_done)) = stack.pop() {
        if deepest.contains_key(&part) {
            continue;
        }
        let callees = calls(compiled, part).map(|(_, callee)| callee);
        if !is_done {
            stack.push((part, true));
            stack.extend(
                callees
                    .filter(|callee| !deepest.contains_key(callee))
                    .map(|callee| (callee, false)),
            );
            continue;
        }
        let below = callees
            .map(|callee| deepest[&callee])
            .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)));
        let function = part.0;
        let bytes =
            compiled[&function][part.1].frame_bytes.max(1).next_multiple_of(FRAME_UNIT) + below.0;
        deepest.insert(part, (bytes, below.1 + 1));
        let span = program.functions[function].span.clone();
        let name = &program.functions[function].name;
        if bytes > limit.most_bytes {
            return Err(needs_too_much(name, &span, bytes, limit));
        }
        if below.1 + 1 > MAX_CALL_DEPTH {
            let message =
                format!("`{name}` starts a chain of calls of more than {MAX_CALL_DEPTH} functions");
            let problem = Diagnostic::error(span, message);
            let help = match compiled.values().any(|parts| parts.len() > 1) {
                true => {
                    "the kernel limits the length of such chains, and on this kernel each loop \
                    counts as a function: merge some functions"
                }
                false => "the kernel limits the length of such chains: merge some functions",
            };
            return Err(Box::new(problem.help(help)));
        }
    }
    Ok(())
}

fn object(
    program: &Program,
    number: usize,
    hook_program: &HookProgram,
    linked: &[usize],
    compiled: &Functions,
    line_index: &LineIndex,
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
        section: hook_program.section,
        handler: number,
        is_chained: handler.spec.return_policy != ReturnPolicy::Returned,
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
                _ => btf.loop_body(&declared.name),
            };
            made.functions.push([start as u32, of]);
            for (at, span) in &emitted.spans {
                let (line, column) = line_index.of(span);
                let string =
                    *strings.entry(line).or_insert_with(|| btf.string(line_index.text(line)));
                // include/uapi/linux/bpf.h, BPF_LINE_INFO_LINE_NUM
                made.lines.push([
                    (start + at) as u32,
                    file,
                    string,
                    (line as u32) << 10 | column.min(1023) as u32,
                ]);
            }
            made.memory.extend(emitted.memory.iter().map(|(at, memory)| (start + at, *memory)));
            made.instructions
                .extend(emitted.instructions.iter().map(|instruction| instruction.bytes()));
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

/// Converts byte offsets to lines and columns, which count from 1.
struct LineIndex<'a> {
    lines: Vec<&'a str>,
    starts: Vec<usize>,
}

impl<'a> LineIndex<'a> {
    fn new(text: &'a str) -> Self {
        let starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
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
