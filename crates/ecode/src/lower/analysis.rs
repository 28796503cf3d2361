//! Analyses a function before lowering.

use crate::builtin::Builtin;
use crate::records::{HEADER_BYTES, directives, printed_bytes};
use crate::typed::{
    Argument, Expression, ExpressionKind, Function, Lvalue, LvalueKind, Statement, StatementKind,
};
use crate::types::Type;

pub struct FunctionAnalysis {
    /// Whether the function reads `cut_short`.
    pub reads_cut_short: bool,
    pub has_loops: bool,
    /// The size of the longest record that the function writes for user space.
    pub record_bytes: u64,
    /// The size of the largest struct that is used as a value.
    pub struct_bytes: u64,
    /// For each local variable, whether it is changed in a loop.
    pub is_changed_in_loops: Vec<bool>,
    /// For each local variable, whether a function on memory uses its bytes.
    pub is_memory: Vec<bool>,
}

impl FunctionAnalysis {
    pub fn of(function: &Function) -> Self {
        let none = vec![false; function.locals.len()];
        let mut uses = Self {
            reads_cut_short: false,
            has_loops: false,
            record_bytes: 0,
            struct_bytes: 0,
            is_changed_in_loops: none.clone(),
            is_memory: none,
        };
        uses.statements(&function.body, false);
        uses
    }

    fn statements(&mut self, statements: &[Statement], is_in_loop: bool) {
        for statement in statements {
            match &statement.kind {
                StatementKind::Expression(expression) => self.expression(expression, is_in_loop),
                StatementKind::Block(inner) => self.statements(inner, is_in_loop),
                StatementKind::If(condition, yes, no) => {
                    self.expression(condition, is_in_loop);
                    self.statements(yes, is_in_loop);
                    self.statements(no, is_in_loop);
                }
                StatementKind::Loop(looped) => {
                    self.has_loops = true;
                    let conditions = looped.condition.iter().chain(&looped.after);
                    conditions.for_each(|expression| self.expression(expression, true));
                    self.statements(&looped.body, true);
                }
                StatementKind::Switch { value, body, .. } => {
                    self.expression(value, is_in_loop);
                    self.statements(body, is_in_loop);
                }
                StatementKind::Return(value) => {
                    value.iter().for_each(|value| self.expression(value, is_in_loop));
                }
                StatementKind::Clear(_) | StatementKind::Break | StatementKind::Continue => {}
            }
        }
    }

    fn record(&mut self, arguments: &[Argument]) {
        let bytes = match arguments {
            [Argument::Lvalue(record)] => record.of.size(),
            [Argument::Value(Expression { kind: ExpressionKind::Text(format), .. }), ..] => {
                self.has_loops |= directives(format).any(|directive| directive == b's');
                directives(format).map(printed_bytes).sum()
            }
            _ => unreachable!("checked: a struct, or a string and what it prints"),
        };
        self.record_bytes = self.record_bytes.max(HEADER_BYTES + bytes);
    }

    fn lvalue(&mut self, lvalue: &Lvalue, is_in_loop: bool) {
        match &lvalue.kind {
            LvalueKind::Local(_) | LvalueKind::Global(_) => {}
            LvalueKind::Member(outer, _) => self.lvalue(outer, is_in_loop),
            LvalueKind::Element(array, index, _) => {
                self.lvalue(array, is_in_loop);
                self.expression(index, is_in_loop);
            }
            LvalueKind::Entry(_, key) => self.expression(key, is_in_loop),
        }
    }

    fn changed(&mut self, lvalue: &Lvalue, by: &Expression, is_in_loop: bool) {
        if let LvalueKind::Local(local) = lvalue.kind {
            self.is_changed_in_loops[local] |= is_in_loop;
        }
        self.lvalue(lvalue, is_in_loop);
        self.expression(by, is_in_loop);
    }

    fn expression(&mut self, expression: &Expression, is_in_loop: bool) {
        if expression.ty.is_struct() {
            self.struct_bytes = self.struct_bytes.max(expression.ty.size());
        }
        match &expression.kind {
            ExpressionKind::Constant(_) | ExpressionKind::Text(_) => {}
            ExpressionKind::Load(lvalue) => self.lvalue(lvalue, is_in_loop),
            ExpressionKind::Convert(inner)
            | ExpressionKind::Negate(inner)
            | ExpressionKind::Complement(inner)
            | ExpressionKind::Not(inner) => self.expression(inner, is_in_loop),
            ExpressionKind::Binary(_, left, right)
            | ExpressionKind::Logical { left, right, .. }
            | ExpressionKind::Comma(left, right) => {
                let is_binary = matches!(expression.kind, ExpressionKind::Binary(..));
                self.has_loops |= is_binary && left.ty == Type::String;
                self.expression(left, is_in_loop);
                self.expression(right, is_in_loop);
            }
            ExpressionKind::Conditional(parts) => {
                parts.iter().for_each(|part| self.expression(part, is_in_loop));
            }
            ExpressionKind::Assign(lvalue, by) | ExpressionKind::Update { lvalue, by, .. } => {
                self.changed(lvalue, by, is_in_loop);
            }
            ExpressionKind::Call(_, arguments) => {
                arguments.iter().for_each(|argument| self.expression(argument, is_in_loop));
            }
            ExpressionKind::Builtin(builtin, arguments) => {
                self.reads_cut_short |= *builtin == Builtin::CutShort;
                self.has_loops |= builtin.is_byte_loop();
                if builtin.has_record() {
                    self.record(arguments);
                }
                for argument in arguments {
                    match argument {
                        Argument::Value(value) => self.expression(value, is_in_loop),
                        Argument::Lvalue(lvalue) => {
                            if let LvalueKind::Local(local) = lvalue.kind {
                                self.is_memory[local] = true;
                            }
                            self.lvalue(lvalue, is_in_loop);
                        }
                        Argument::Map(_) => {}
                    }
                }
            }
        }
    }
}
