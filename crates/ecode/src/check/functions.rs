//! Checks functions and handlers.

use super::scopes::Symbol;
use super::{Checked, Checker, FunctionContext};
use crate::ast::{self, Expression as Written};
use crate::diagnostic::{Diagnostic, ErrorReported, Span, closest_name, number_of};
use crate::foreign;
use crate::hooks::{CALL, HookSpec};
use crate::typed::{Argument, Expression, ExpressionKind, Function, Handler};
use crate::types::{LONG, Type};

/// The kernel passes at most this number of arguments in registers (MAX_BPF_FUNC_REG_ARGS,
/// include/linux/bpf.h).
const MAX_PARAMETERS: usize = 5;
/// The maximum number of handlers that all plugins together can have at one hook (PLUGINS_LINKED,
/// bpf/wire/plugin.h).
const MAX_HANDLERS_PER_HOOK: usize = 8;
/// Each handler is compiled, verified and loaded separately. The limit keeps the time to load a
/// plugin within milliseconds.
const MAX_HANDLERS: usize = 64;
/// The span of names that the text does not declare.
const NOWHERE: Span = 0..0;
/// The maximum number of parameters of `on call`, which are passed in memory.
const MAX_CALL_PARAMETERS: usize = 12;

impl Checker<'_> {
    pub(super) fn function(&mut self, written: &ast::Function) -> Checked<()> {
        let result = self.resolve(&written.result)?;
        if !result.is_number() && result != Type::Void {
            let problem = Diagnostic::error(
                written.result.span.clone(),
                format!("a function cannot return {result}"),
            );
            return self
                .error(problem.help("return a number, and pass the rest in a global variable"));
        }
        let parameters = self.parameters(&written.parameters, MAX_PARAMETERS, "a function")?;
        let number = self.function_number(written, &result, &parameters)?;
        let Some(body) = &written.body else { return Ok(()) };
        if self.declared.remove(&number).is_none() {
            let other = self.program.functions[number].span.clone();
            let problem = Diagnostic::error(
                written.name.span.clone(),
                format!("`{}` already has a body", written.name.text),
            );
            return self.error(problem.other(other, "here"));
        }
        let before = self.error_count();
        self.body(number, result.clone(), &written.parameters, parameters, None, body);
        if self.error_count() == before {
            self.lint_missing_return(&written.name, &result, body);
        }
        Ok(())
    }

    fn parameters(
        &mut self,
        written: &[ast::Parameter],
        most: usize,
        of: &str,
    ) -> Checked<Vec<Type>> {
        if let Some(excess) = written.get(most) {
            let message =
                format!("{of} has at most {most} parameters, but this one has {}", written.len());
            let problem = Diagnostic::error(excess.name.span.clone(), message);
            return self.error(problem.help("pass some of them in global variables"));
        }
        let mut types = Vec::new();
        for parameter in written {
            let of = self.resolve(&parameter.type_name)?;
            if !of.is_number() {
                let problem = Diagnostic::error(
                    parameter.type_name.span.clone(),
                    format!("a parameter cannot be {of}"),
                );
                return self.error(
                    problem.help("parameters are numbers: pass anything else in a global variable"),
                );
            }
            types.push(of);
        }
        Ok(types)
    }

    /// The number of a function: that of an earlier declaration, or a new one.
    fn function_number(
        &mut self,
        written: &ast::Function,
        result: &Type,
        parameters: &[Type],
    ) -> Checked<usize> {
        let name = &written.name;
        if let Some(Symbol::Function(number)) = self.scopes.find(&name.text).cloned() {
            let known = &self.program.functions[number];
            let types = known.locals[..known.parameters].iter().map(|local| &local.ty);
            if known.result == *result && types.eq(parameters) {
                return Ok(number);
            }
            let other = known.span.clone();
            self.declared.remove(&number);
            let problem = Diagnostic::error(
                name.span.clone(),
                format!("`{}` was declared differently before", name.text),
            );
            return self.error(problem.other(other, "here"));
        }
        let number = self.program.functions.len();
        self.declare(name, Symbol::Function(number))?;
        self.declared.insert(number, name.span.clone());
        self.add(&name.text, name.span.clone(), result.clone());
        let local = |(parameter, of): (&ast::Parameter, &Type)| crate::typed::Local {
            name: parameter.name.text.clone(),
            ty: of.clone(),
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
        let function =
            Function { name, result, parameters: 0, locals: Vec::new(), body: Vec::new(), span };
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
        spec: Option<HookSpec>,
        body: &[ast::Statement],
    ) -> Vec<bool> {
        let (locals, is_used) = (Vec::new(), Vec::new());
        let fields = spec.as_ref().map_or_else(Vec::new, |spec| spec.fields.clone());
        self.current = Some(FunctionContext {
            function,
            result,
            locals,
            is_used,
            loops: 0,
            switches: 0,
            hook_spec: spec,
        });
        self.scopes.enter();
        for (parameter, of) in parameters.iter().zip(types) {
            let local = self.local(&parameter.name, of, parameter.is_const);
            let _ = self.declare(&parameter.name, Symbol::Local(local));
        }
        // A handler has either parameters or fields of its hook.
        for field in &fields {
            let name = ast::Ident { text: field.name.clone(), span: NOWHERE };
            let local = self.local(&name, field.ty.clone(), true);
            let _ = self.declare(&name, Symbol::Local(local));
        }
        let before = self.error_count();
        // The body cannot declare the name of a parameter again, but it may use the name of a
        // hook's field for a variable.
        let body = if fields.is_empty() { self.statements(body) } else { self.block(body) };
        let is_faulty = self.error_count() > before;
        self.scopes.leave();
        let current = self.current.take().expect("it was set above");
        for (local, _) in current
            .locals
            .iter()
            .zip(&current.is_used)
            .skip(parameters.len() + fields.len())
            // A faulty statement may be the one that uses the variable.
            .filter(|(_, is_used)| !**is_used && !is_faulty)
        {
            if !local.name.starts_with('_') {
                let problem = Diagnostic::warning(
                    local.span.clone(),
                    format!("`{}` is never used", local.name),
                );
                self.warn(problem.help(format!("remove it, or call it `_{}`", local.name)));
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
        let selected: Vec<_> =
            written.selected.iter().map(|selected| selected.text.clone()).collect();
        let known = self.hooks.names();
        if !known.contains(&hook.text) {
            return self.unknown_hook(hook, &known);
        }
        if let Some(wild) = written.selected.iter().find(|one| one.text.contains('*')) {
            let problem = Diagnostic::error(wild.span.clone(), "names cannot have wildcards");
            return self.error(problem.help(match self.hooks.spec(&hook.text, &[]) {
                Ok(_) => format!(
                    "`on {0}` is for all events, and `on {0}(ONE, OTHER)` for several",
                    hook.text
                ),
                Err(_) => "write a handler for each of them".into(),
            }));
        }
        let spec = match self.hooks.spec(&hook.text, &selected) {
            Ok(spec) => spec,
            Err((at, sentence)) => {
                let span = at
                    .and_then(|at| written.selected.get(at))
                    .map_or(&hook.span, |selected| &selected.span);
                return self.error(Diagnostic::error(span.clone(), sentence));
            }
        };
        for warning in &spec.warnings {
            let span = written.selected[warning.selected].span.clone();
            let problem = Diagnostic::warning(span, warning.message.clone());
            self.warn(problem.help_if(warning.help.clone()));
        }
        let mut others = self.program.handlers.iter().filter(|other| other.hook == CALL);
        if hook.text == CALL
            && let Some(other) = others.next()
        {
            let other = self.program.functions[other.function].span.clone();
            let problem =
                Diagnostic::error(hook.span.clone(), "there already is a handler `on call`");
            return self.error(problem.other(other, "here"));
        }
        let is_beside = |other: &&Handler| {
            other.hook == hook.text
                && (!self.hooks.has_separate_attach_points(&hook.text)
                    || other.selected == selected)
        };
        let beside = self.program.handlers.iter().filter(is_beside).count();
        if beside == MAX_HANDLERS_PER_HOOK {
            let at = match &selected[..] {
                [one] if self.hooks.has_separate_attach_points(&hook.text) => {
                    format!("{}({one})", hook.text)
                }
                _ => hook.text.clone(),
            };
            let message = format!("there already are {MAX_HANDLERS_PER_HOOK} handlers of `{at}`");
            return self
                .error(Diagnostic::error(hook.span.clone(), message).help("merge some of them"));
        }
        if self.program.handlers.len() == MAX_HANDLERS {
            let message = format!("a plugin has at most {MAX_HANDLERS} handlers");
            return self.error(
                Diagnostic::error(hook.span.clone(), message).help("split it into several plugins"),
            );
        }
        let types =
            self.parameters(&written.parameters, MAX_CALL_PARAMETERS, "a handler `on call`")?;
        let function = self.add(&hook.text, hook.span.clone(), LONG.into());
        let is_read = self.body(
            function,
            LONG.into(),
            &written.parameters,
            types,
            Some(spec.clone()),
            &written.body,
        );
        self.program.handlers.push(Handler {
            hook: hook.text.clone(),
            selected,
            function,
            spec,
            is_read,
        });
        Ok(())
    }

    /// Whether a local variable is a field of the hook.
    pub(super) fn is_field(&mut self, local: usize) -> bool {
        self.current().locals[local].span == NOWHERE
    }

    pub(super) fn current_name(&mut self) -> String {
        let function = self.current().function;
        self.program.functions[function].name.clone()
    }

    pub(super) fn call(
        &mut self,
        name: &ast::Ident,
        arguments: &[Written],
        span: &Span,
    ) -> Checked<Expression> {
        if self.current.is_none() {
            let problem = Diagnostic::error(
                span.clone(),
                "a call is possible only in the body of a function or a handler",
            );
            return self.error(
                problem.help("initial values are constants; assign another value in a handler"),
            );
        }
        let number = match self.scopes.find(&name.text).cloned() {
            Some(Symbol::Function(number)) => number,
            Some(Symbol::Faulty) => return Err(ErrorReported),
            // A hook's field hides no function.
            Some(Symbol::Local(local)) if self.is_field(local) => {
                match self.scopes.function(&name.text) {
                    Some(number) => number,
                    None => return self.builtin(name, arguments, span),
                }
            }
            Some(_) => {
                let message = format!("`{}` is not a function", name.text);
                return self.error(Diagnostic::error(name.span.clone(), message));
            }
            None => return self.builtin(name, arguments, span),
        };
        let function = &self.program.functions[number];
        let types: Vec<_> =
            function.locals[..function.parameters].iter().map(|local| local.ty.clone()).collect();
        let (result, declared) = (function.result.clone(), function.span.clone());
        if types.len() != arguments.len() {
            let problem = Diagnostic::error(
                span.clone(),
                self.wrong_count(&name.text, types.len(), arguments.len()),
            );
            return self.error(problem.other(declared, "declared here"));
        }
        let mut values = Vec::new();
        for (argument, of) in arguments.iter().zip(&types) {
            let value = self.expression(argument)?;
            values.push(self.converted(value, of, "an argument")?);
        }
        let current = self.current().function;
        self.calls[current].push((number, span.clone()));
        Ok(Expression {
            kind: ExpressionKind::Call(number, values),
            ty: result,
            span: span.clone(),
        })
    }

    fn unknown_hook<T>(&mut self, hook: &ast::Ident, known: &[String]) -> Checked<T> {
        let foreign = foreign::hook(&hook.text);
        let near = closest_name(&hook.text, known.iter().map(String::as_str));
        let hint = match (foreign, near) {
            (Some(hint), _) => format!("{hint}; the hooks are "),
            (None, Some(near)) => format!("did you mean `{near}`? The hooks are "),
            (None, None) => "the hooks are ".into(),
        };
        let message = format!("there is no hook `{}`", hook.text);
        let help = format!("{hint}{}", known.join(", "));
        self.error(Diagnostic::error(hook.span.clone(), message).help(help))
    }

    pub(super) fn wrong_count(&self, name: &str, wanted: usize, given: usize) -> String {
        let are = if given == 1 { "is" } else { "are" };
        format!("`{name}` takes {}, but {given} {are} given", number_of(wanted as u64, "argument"))
    }

    pub(super) fn value_argument(&mut self, written: &Written, to: &Type) -> Checked<Argument> {
        let value = self.expression(written)?;
        self.converted(value, to, "this argument").map(Argument::Value)
    }
}
