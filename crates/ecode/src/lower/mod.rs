//! Lowers the statements and expressions of a function to blocks of simple steps.

mod analysis;
mod builtins;
mod bytes;
mod expressions;
mod handler;
mod helpers;
mod lowerer;
mod lvalues;
mod records;
mod statements;

use analysis::FunctionAnalysis;
use lowerer::{Lowered, Lowerer};

use crate::data_layout::DataLayout;
use crate::hooks::HookProgram;
use crate::ir::{IrFunction, Value};
use crate::typed::{Handler, Program};

/// Lowers a function. `handler` is set if the function is the body of a handler. It has the handler
/// and one of the kernel programs for it.
pub fn lower(
    program: &Program,
    layout: &DataLayout,
    function: usize,
    handler: Option<(&Handler, &HookProgram)>,
) -> Lowered<IrFunction> {
    let lowered = &program.functions[function];
    let mut lowerer = Lowerer {
        program,
        layout,
        function: lowered,
        blocks: vec![None],
        steps: Vec::new(),
        block: 0,
        order: vec![0],
        registers: 0,
        frame_bytes: 0,
        storage: Vec::new(),
        jump_targets: Vec::new(),
        loops: Vec::new(),
        within: None,
        is_cut_short: None,
        uses: FunctionAnalysis::of(lowered),
        key_at: None,
        value_at: None,
        record_at: None,
        copies: Vec::new(),
        copies_held: 0,
        handler_exit: None,
        packet: handler.and_then(|(handler, _)| handler.spec.packet),
        is_handler: handler.is_some(),
        span: lowered.span.clone(),
    };
    lowerer.begin();
    if let Some((handler, hook_program)) = handler {
        lowerer.lower_entry(handler, hook_program);
    }
    lowerer.statements(&lowered.body)?;
    lowerer.return_with(Value::Constant(0));
    lowerer.lower_exit();
    Ok(lowerer.finish())
}
