//! Emits BPF instructions for the blocks of a function.

pub mod btf;
mod emitter;
mod equalize;
mod instruction;
mod steps;
mod terminators;

use emitter::{ADDRESS, CONTEXT, Emitter, OUTER_FRAME, WORD};
pub use emitter::{EmittedFunction, Memory};
use instruction::FRAME;
pub use instruction::{By, Instruction};

use crate::cfg::join_points;
use crate::diagnostic::{Diagnostic, Span};
use crate::ir::IrFunction;
use crate::outline::SharedRegisters;
use crate::regalloc::{Allocation, LAST_CALLEE_SAVED, allocate};

/// The register in which a loop body receives its second parameter, the outer frame. The first
/// parameter is the number of the iteration.
const LOOP_BODY_FRAME: u8 = 2;
/// The offset of a jump has 16 bits, and must fit even after the kernel has replaced one
/// instruction by several.
const MAX_INSTRUCTIONS: usize = 32_000;

/// The stack that a chain of calls can have.
#[derive(Clone, Copy)]
pub struct StackLimit {
    pub most_bytes: u32,
    /// Whether the program has local arrays or structs, which could be elsewhere.
    pub has_arrays: bool,
}

/// Emits a function. `keeps_context` is whether the context is needed after the beginning of the
/// handler, or in one of its loop bodies that are functions of their own.
pub fn emit(
    function: &IrFunction,
    shared: &SharedRegisters,
    is_handler: bool,
    keeps_context: bool,
    limit: StackLimit,
) -> Result<EmittedFunction, Box<Diagnostic>> {
    let Allocation { locations, frame_bytes: frame, live_in } = allocate(function, shared);
    let context = keeps_context && !function.is_loop_body;
    let frame_bytes = if context { frame + u32::from(WORD) } else { frame };
    if frame_bytes > limit.most_bytes {
        return Err(needs_too_much(&function.name, &function.span, frame_bytes, limit));
    }
    let out = EmittedFunction {
        instructions: Vec::new(),
        memory: Vec::new(),
        calls: Vec::new(),
        loop_refs: Vec::new(),
        spans: Vec::new(),
        frame_bytes,
    };
    let mut emitter = Emitter {
        function,
        is_handler,
        shared,
        has_loops: function.has_loops(),
        second: if function.has_loops() { LAST_CALLEE_SAVED } else { ADDRESS },
        locations,
        live_in,
        are_copies: equalize::copies(function),
        joins: join_points(function),
        frame,
        context: context.then_some(-(frame as i16) - i16::from(WORD)),
        out,
        patched_len: 0,
        starts: Vec::new(),
        jumps: Vec::new(),
    };
    // The kernel requires line information for the start of each function.
    emitter.out.spans.push((0, function.span.clone()));
    if let Some(context) = emitter.context {
        emitter.push(Instruction::store(FRAME, context, WORD, By::Register(CONTEXT)));
    }
    if function.is_loop_body {
        emitter.push(Instruction::set(OUTER_FRAME, By::Register(LOOP_BODY_FRAME)));
    } else if emitter.has_loops || shared.is_outlined() {
        emitter.init_all();
    }
    for number in 0..function.blocks.len() {
        emitter.block(number);
        if emitter.patched_len > MAX_INSTRUCTIONS {
            return Err(too_large(&function.name, &function.span));
        }
    }
    for (at, block) in std::mem::take(&mut emitter.jumps) {
        emitter.out.instructions[at].offset = (emitter.starts[block] as i64 - at as i64 - 1) as i16;
    }
    Ok(emitter.out)
}

pub fn too_large(function: &str, span: &Span) -> Box<Diagnostic> {
    let message = format!("`{function}` would have more than {MAX_INSTRUCTIONS} instructions");
    Box::new(Diagnostic::error(span.clone(), message).help("split it into several functions"))
}

/// The error for chains of calls that need too much stack.
pub fn needs_too_much(
    function: &str,
    span: &Span,
    bytes: u32,
    limit: StackLimit,
) -> Box<Diagnostic> {
    let StackLimit { most_bytes, has_arrays } = limit;
    let message = format!(
        "`{function}` and the functions that it calls need {bytes} bytes of stack, but the kernel \
        allows {most_bytes}"
    );
    let help = match has_arrays {
        true => "make arrays and structs `static` or global; print fewer values at a time",
        false => {
            "split long expressions into several statements, and functions with many variables \
            into several; copy large structs by `memcpy`; print fewer values at a time"
        }
    };
    Box::new(Diagnostic::error(span.clone(), message).help(help))
}

impl Emitter<'_> {
    fn block(&mut self, number: usize) {
        self.starts.push(self.out.instructions.len());
        let block = &self.function.blocks[number];
        if self.has_loops {
            self.equalize_join(number);
        }
        for (step, span) in &block.steps {
            self.set_span(span);
            self.step(step);
        }
        self.set_span(&block.end_span);
        self.end(&block.end, number + 1);
    }
}
