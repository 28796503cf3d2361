//! Functions and handlers.

use super::scopes::Named;
use super::{Checked, Checker, Current, Faulty};
use crate::ast::{self, Expression as Written};
use crate::diagnostic::{Diagnostic, Span};
use crate::hooks::{CALL, Offer};
use crate::program::{Argument, Expression, ExpressionKind, Function, Handler};
use crate::types::{LONG, Type};

/// What a call of the kernel's own convention has (MAX_BPF_FUNC_REG_ARGS, include/linux/bpf.h).
const MOST_PARAMETERS: usize = 5;
/// At one hook, of all plugins together: PLUGINS_LINKED, bpf/wire.h.
const MOST_BESIDE: usize = 8;
/// Each is compiled, verified and loaded by itself, and loading is to stay a matter of milliseconds.
const MOST_HANDLERS: usize = 64;
/// Of what is declared in no text.
const NOWHERE: Span = 0..0;
/// Of `on call`, which come in memory.
const MOST_CALL_PARAMETERS: usize = 12;

impl Checker<'_> {
    pub(super) fn function(&mut self, written: &ast::Function) -> Checked<()> {
        let result = self.resolve(&written.result)?;
        if !result.is_number() && result != Type::Void {
            let problem =
                Diagnostic::error(written.result.span.clone(), format!("a function cannot return {result}"));
            return self
                .fault(problem.help("let it return a number, and leave the rest in a global variable"));
        }
        let parameters = self.parameters(&written.parameters, MOST_PARAMETERS, "a function")?;
        let number = self.function_number(written, &result, &parameters)?;
        let Some(body) = &written.body else { return Ok(()) };
        if self.declared.remove(&number).is_none() {
            let other = self.program.functions[number].span.clone();
            let problem = Diagnostic::error(
                written.name.span.clone(),
                format!("`{}` has a body already", written.name.text),
            );
            return self.fault(problem.other(other, "here"));
        }
        let before = self.faults();
        self.body(number, result.clone(), &written.parameters, parameters, None, body);
        if self.faults() == before {
            self.returns(&written.name, &result, body);
        }
        Ok(())
    }

    fn parameters(&mut self, written: &[ast::Parameter], most: usize, of: &str) -> Checked<Vec<Type>> {
        if let Some(beyond) = written.get(most) {
            let message = format!("{of} has {most} parameters at most, and this has {}", written.len());
            let problem = Diagnostic::error(beyond.name.span.clone(), message);
            return self.fault(problem.help("leave some in global variables"));
        }
        let mut types = Vec::new();
        for parameter in written {
            let of = self.resolve(&parameter.type_name)?;
            if !of.is_number() {
                let problem = Diagnostic::error(
                    parameter.type_name.span.clone(),
                    format!("a parameter cannot be {of}"),
                );
                return self
                    .fault(problem.help("parameters are numbers: leave the rest in a global variable"));
            }
            types.push(of);
        }
        Ok(types)
    }

    /// The one that it has by an earlier declaration, or a new one.
    fn function_number(
        &mut self,
        written: &ast::Function,
        result: &Type,
        parameters: &[Type],
    ) -> Checked<usize> {
        let name = &written.name;
        if let Some(Named::Function(number)) = self.scopes.find(&name.text).cloned() {
            let known = &self.program.functions[number];
            let types = known.locals[..known.parameters].iter().map(|local| &local.of);
            if known.result == *result && types.eq(parameters) {
                return Ok(number);
            }
            let other = known.span.clone();
            self.declared.remove(&number);
            let problem =
                Diagnostic::error(name.span.clone(), format!("`{}` is declared in another way", name.text));
            return self.fault(problem.other(other, "here"));
        }
        let number = self.program.functions.len();
        self.declare(name, Named::Function(number))?;
        self.declared.insert(number, name.span.clone());
        self.add(&name.text, name.span.clone(), result.clone());
        let local = |(parameter, of): (&ast::Parameter, &Type)| crate::program::Local {
            name: parameter.name.text.clone(),
            of: of.clone(),
            is_const: parameter.is_const,
            span: parameter.name.span.clone(),
        };
        let function = &mut self.program.functions[number];
        function.locals = written.parameters.iter().zip(parameters).map(local).collect();
        function.parameters = parameters.len();
        Ok(number)
    }

    fn add(&mut self, name: &str, span: Span, result: Type) -> usize {
        let name = name.to_owned();
        let function = Function { name, result, parameters: 0, locals: Vec::new(), body: Vec::new(), span };
        self.program.functions.push(function);
        self.calls.push(Vec::new());
        self.uses.push(Vec::new());
        self.program.functions.len() - 1
    }

    fn body(
        &mut self,
        function: usize,
        result: Type,
        parameters: &[ast::Parameter],
        types: Vec<Type>,
        offer: Option<Offer>,
        body: &[ast::Statement],
    ) -> Vec<bool> {
        let (locals, is_used) = (Vec::new(), Vec::new());
        let fields = offer.as_ref().map_or_else(Vec::new, |offer| offer.fields.clone());
        self.current = Some(Current { function, result, locals, is_used, loops: 0, switches: 0, offer });
        self.scopes.enter();
        for (parameter, of) in parameters.iter().zip(types) {
            let local = self.local(&parameter.name, of, parameter.is_const);
            let _ = self.declare(&parameter.name, Named::Local(local));
        }
        // A handler's parameters and its hook's fields are never both there.
        for field in &fields {
            let name = ast::Name { text: field.name.clone(), span: NOWHERE };
            let local = self.local(&name, field.of.clone(), true);
            let _ = self.declare(&name, Named::Local(local));
        }
        let before = self.faults();
        // Parameters are declared as variables are; what a hook offers takes no names away.
        let body = if fields.is_empty() { self.statements(body) } else { self.block(body) };
        let is_faulty = self.faults() > before;
        self.scopes.leave();
        let current = self.current.take().expect("it was set above");
        for (local, _) in current
            .locals
            .iter()
            .zip(&current.is_used)
            .skip(parameters.len() + fields.len())
            // Who uses them is perhaps what is faulty.
            .filter(|(_, is_used)| !**is_used && !is_faulty)
        {
            if !local.name.starts_with('_') {
                let problem =
                    Diagnostic::warning(local.span.clone(), format!("`{}` is never used", local.name));
                self.warn(problem.help(format!("leave it away, or call it `_{}`", local.name)));
            }
        }
        let function = &mut self.program.functions[function];
        function.parameters = parameters.len();
        function.locals = current.locals;
        function.body = body;
        current.is_used[parameters.len()..][..fields.len()].to_vec()
    }

    pub(super) fn handler(&mut self, written: &ast::Handler) -> Checked<()> {
        let hook = &written.hook;
        let selected: Vec<_> = written.selected.iter().map(|selected| selected.text.clone()).collect();
        let known = self.hooks.names();
        if !known.contains(&hook.text) {
            return self.unknown("hook", hook, &known);
        }
        let offer = match self.hooks.offer(&hook.text, &selected) {
            Ok(offer) => offer,
            Err((at, sentence)) => {
                let span =
                    at.and_then(|at| written.selected.get(at)).map_or(&hook.span, |selected| &selected.span);
                return self.fault(Diagnostic::error(span.clone(), sentence));
            }
        };
        let mut others = self.program.handlers.iter().filter(|other| other.hook == CALL);
        if hook.text == CALL
            && let Some(other) = others.next()
        {
            let other = self.program.functions[other.function].span.clone();
            let problem = Diagnostic::error(hook.span.clone(), "there is a handler `on call` already");
            return self.fault(problem.other(other, "here"));
        }
        let is_beside = |other: &&Handler| {
            other.hook == hook.text && (!self.hooks.splits(&hook.text) || other.selected == selected)
        };
        let beside = self.program.handlers.iter().filter(is_beside).count();
        if beside == MOST_BESIDE {
            let message = format!("there are {MOST_BESIDE} handlers of `{}` already", hook.text);
            return self
                .fault(Diagnostic::error(hook.span.clone(), message).help("put some of them together"));
        }
        if self.program.handlers.len() == MOST_HANDLERS {
            let message = format!("a plugin has {MOST_HANDLERS} handlers at most");
            return self
                .fault(Diagnostic::error(hook.span.clone(), message).help("make several plugins of it"));
        }
        let types = self.parameters(&written.parameters, MOST_CALL_PARAMETERS, "a handler of calls")?;
        let function = self.add(&hook.text, hook.span.clone(), LONG.into());
        let is_read =
            self.body(function, LONG.into(), &written.parameters, types, Some(offer.clone()), &written.body);
        self.program.handlers.push(Handler { hook: hook.text.clone(), selected, function, offer, is_read });
        Ok(())
    }

    pub(super) fn current_name(&mut self) -> String {
        let function = self.current().function;
        self.program.functions[function].name.clone()
    }

    pub(super) fn call(
        &mut self,
        name: &ast::Name,
        arguments: &[Written],
        span: &Span,
    ) -> Checked<Expression> {
        if self.current.is_none() {
            let problem =
                Diagnostic::error(span.clone(), "nothing is called outside of functions and handlers");
            return self.fault(
                problem.help(
                    "what is there from the beginning is constant; a handler can give it another value",
                ),
            );
        }
        let number = match self.scopes.find(&name.text).cloned() {
            Some(Named::Function(number)) => number,
            Some(Named::Faulty) => return Err(Faulty),
            // A hook's fields take no names away.
            Some(Named::Local(local)) if self.current().locals[local].span == NOWHERE => {
                return self.builtin(name, arguments, span);
            }
            Some(_) => {
                let message = format!("`{}` is no function", name.text);
                return self.fault(Diagnostic::error(name.span.clone(), message));
            }
            None => return self.builtin(name, arguments, span),
        };
        let function = &self.program.functions[number];
        let types: Vec<_> =
            function.locals[..function.parameters].iter().map(|local| local.of.clone()).collect();
        let (result, declared) = (function.result.clone(), function.span.clone());
        if types.len() != arguments.len() {
            let problem =
                Diagnostic::error(span.clone(), self.counted(&name.text, types.len(), arguments.len()));
            return self.fault(problem.other(declared, "declared here"));
        }
        let mut values = Vec::new();
        for (argument, of) in arguments.iter().zip(&types) {
            let value = self.expression(argument)?;
            values.push(self.converted(value, of, "an argument")?);
        }
        let current = self.current().function;
        self.calls[current].push((number, span.clone()));
        Ok(Expression { kind: ExpressionKind::Call(number, values), of: result, span: span.clone() })
    }

    pub(super) fn counted(&self, name: &str, wanted: usize, given: usize) -> String {
        let plural = if wanted == 1 { "" } else { "s" };
        format!("`{name}` takes {wanted} argument{plural}, and not {given}")
    }

    pub(super) fn value_argument(&mut self, written: &Written, to: &Type) -> Checked<Argument> {
        let value = self.expression(written)?;
        self.converted(value, to, "this argument").map(Argument::Value)
    }
}
