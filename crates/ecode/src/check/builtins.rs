//! Checks calls of builtin functions.

use std::rc::Rc;

use super::scopes::Symbol;
use super::{Checked, Checker};
use crate::ast::{self, Expression as Written, ExpressionKind as WrittenKind};
use crate::builtin::Builtin;
use crate::diagnostic::{Diagnostic, ErrorReported, Span};
use crate::foreign;
use crate::records::MAX_STRUCT_BYTES;
use crate::typed::{Argument, Expression, ExpressionKind};
use crate::types::{INT, LONG, Type, U8, U16, U32, U64};

/// The kind of argument that a parameter expects.
#[derive(Clone, Copy)]
enum ExpectedArgument {
    Number,
    /// An array of characters that the function changes.
    ChangedBytes,
    /// An array of characters or a string.
    Text,
    /// An lvalue of any type whose bytes the function reads.
    Memory,
    ChangedMemory,
    Map,
    /// A key of the map that is the previous argument.
    Key,
    /// A struct.
    Record,
    /// A number or a text, for `print`.
    Any,
}

struct Signature {
    name: &'static str,
    builtin: Builtin,
    /// The names of its parameters, as the help shows them.
    parameters: &'static str,
    arguments: &'static [ExpectedArgument],
    /// Whether further arguments are allowed.
    has_more: bool,
    result: Type,
}

const fn signature(
    name: &'static str,
    builtin: Builtin,
    parameters: &'static str,
    arguments: &'static [ExpectedArgument],
    result: Type,
) -> Signature {
    let has_more = matches!(builtin, Builtin::Print);
    Signature { name, builtin, parameters, arguments, has_more, result }
}

const BUILTINS: &[Signature] = {
    use ExpectedArgument::{
        Any, ChangedBytes, ChangedMemory, Key, Map, Memory, Number, Record, Text,
    };
    const U64_RESULT: Type = Type::Integer(U64);
    const U8_RESULT: Type = Type::Integer(U8);
    const U16_RESULT: Type = Type::Integer(U16);
    const U32_RESULT: Type = Type::Integer(U32);
    const INT_RESULT: Type = Type::Integer(INT);
    const LONG_RESULT: Type = Type::Integer(LONG);
    &[
        signature("now", Builtin::Now, "", &[], U64_RESULT),
        signature("pid", Builtin::Pid, "", &[], U32_RESULT),
        signature("tid", Builtin::Tid, "", &[], U32_RESULT),
        signature("uid", Builtin::Uid, "", &[], U32_RESULT),
        signature("gid", Builtin::Gid, "", &[], U32_RESULT),
        signature("cpu", Builtin::Cpu, "", &[], U32_RESULT),
        signature("random", Builtin::Random, "", &[], U32_RESULT),
        signature("comm", Builtin::Comm, "NAME", &[ChangedBytes], Type::Void),
        signature(
            "read_user",
            Builtin::ReadUser,
            "TO, ADDRESS, BYTES",
            &[ChangedMemory, Number, Number],
            INT_RESULT,
        ),
        signature(
            "read_user_text",
            Builtin::ReadUserText,
            "TO, ADDRESS",
            &[ChangedBytes, Number],
            LONG_RESULT,
        ),
        signature("strlen", Builtin::Strlen, "TEXT", &[Text], U64_RESULT),
        signature("strcmp", Builtin::Strcmp, "ONE, OTHER", &[Text, Text], INT_RESULT),
        signature(
            "strncmp",
            Builtin::Strncmp,
            "ONE, OTHER, BYTES",
            &[Text, Text, Number],
            INT_RESULT,
        ),
        signature(
            "memset",
            Builtin::Memset,
            "TO, BYTE, BYTES",
            &[ChangedMemory, Number, Number],
            Type::Void,
        ),
        signature(
            "memcpy",
            Builtin::Memcpy,
            "TO, FROM, BYTES",
            &[ChangedMemory, Memory, Number],
            Type::Void,
        ),
        signature(
            "memcmp",
            Builtin::Memcmp,
            "ONE, OTHER, BYTES",
            &[Memory, Memory, Number],
            INT_RESULT,
        ),
        signature("has", Builtin::Has, "MAP, KEY", &[Map, Key], Type::Bool),
        signature("erase", Builtin::Erase, "MAP, KEY", &[Map, Key], Type::Bool),
        signature("emit", Builtin::Emit, "STRUCT", &[Record], Type::Bool),
        signature("print", Builtin::Print, "\"…\", …", &[Text, Any], Type::Void),
        signature("packet8", Builtin::Packet8, "AT", &[Number], U8_RESULT),
        signature("packet16", Builtin::Packet16, "AT", &[Number], U16_RESULT),
        signature("packet32", Builtin::Packet32, "AT", &[Number], U32_RESULT),
        signature("cut_short", Builtin::CutShort, "", &[], Type::Bool),
    ]
};

/// How `comm` is used.
const COMM_FORM: &str =
    "it fills an array: `char name[16]; comm(name);`, and then `name` is the text";

/// How an array gets the text that this expression seems to be, if it names a function that fills
/// an array.
pub fn filling_form(written: &Written) -> Option<&'static str> {
    let (WrittenKind::Name(name) | WrittenKind::Call(ast::Ident { text: name, .. }, _)) =
        &written.kind
    else {
        return None;
    };
    match name.as_str() {
        "comm" => Some(COMM_FORM),
        "read_user_text" | "str" => Some(
            "it fills an array: `char text[64]; read_user_text(text, ADDRESS);`, and then `text` \
            is the text",
        ),
        _ => None,
    }
}

pub fn name_of(builtin: Builtin) -> &'static str {
    let signature = BUILTINS.iter().find(|signature| signature.builtin == builtin);
    signature.map_or("", |signature| signature.name)
}

pub fn is_builtin(name: &str) -> bool {
    BUILTINS.iter().any(|signature| signature.name == name)
}

impl Checker<'_> {
    pub(super) fn builtin(
        &mut self,
        name: &ast::Ident,
        arguments: &[Written],
        span: &Span,
    ) -> Checked<Expression> {
        let Some(signature) = BUILTINS.iter().find(|signature| signature.name == name.text) else {
            let mut known = self.scopes.names(|named| matches!(named, Symbol::Function(_)));
            known.extend(BUILTINS.iter().map(|signature| signature.name.into()));
            if let Some(own) = foreign::function(&name.text)
                .filter(|_| self.later_declaration("function", &name.text, &name.span).is_none())
            {
                let message = format!("there is no function `{}`", name.text);
                return self.error(Diagnostic::error(name.span.clone(), message).help(own));
            }
            return self.unknown("function", name, &known);
        };
        let wanted = signature.arguments;
        let least = wanted.len() - usize::from(signature.has_more);
        if arguments.len() < least || arguments.len() > least && !signature.has_more {
            let message = self.wrong_count(&name.text, least, arguments.len());
            let problem = Diagnostic::error(span.clone(), message);
            return self.error(match signature.builtin {
                Builtin::Has | Builtin::Erase
                    if let [Written { kind: WrittenKind::Index(map, key), .. }] = arguments =>
                {
                    let [map, key] = [map, key].map(|part| &self.text[part.span.clone()]);
                    problem.help(format!("write `{}({map}, {key})`", name.text))
                }
                Builtin::Comm if arguments.is_empty() => problem.help(COMM_FORM),
                Builtin::Has | Builtin::Erase if arguments.len() > least => {
                    problem.help("make a key of several parts a struct")
                }
                _ => problem.help(format!("write `{}({})`", name.text, signature.parameters)),
            });
        }
        let format = match (signature.builtin, arguments.first().map(|first| &first.kind)) {
            (Builtin::Print, Some(WrittenKind::Text(format))) => format,
            (Builtin::Print, Some(_)) => {
                let span = arguments[0].span.clone();
                let problem =
                    Diagnostic::error(span, "the first argument of `print` must be a string");
                return self.error(
                    problem
                        .help("write print(\"%d\", …) for a number, print(\"%s\", …) for a text"),
                );
            }
            _ => &Vec::new(),
        };
        let mut made = Vec::new();
        let mut map = None;
        for (index, written) in arguments.iter().enumerate() {
            let wanted = wanted[index.min(wanted.len() - 1)];
            let argument = self.argument(wanted, written, map)?;
            if let Argument::Map(number) = argument {
                map = Some(number);
            }
            made.push(argument);
        }
        self.lint_read_address(signature.builtin, &made);
        let current = self.current();
        let has_packet = current.hook_spec.as_ref().is_some_and(|spec| spec.packet.is_some());
        let function = current.function;
        if signature.builtin.packet_bytes().is_some() && !has_packet {
            let problem = Diagnostic::error(span.clone(), "no packet is available here");
            return self.error(problem.help(
                "only the body of a handler of a packet hook can read packets; other functions \
                cannot",
            ));
        }
        self.uses[function].push((signature.builtin, span.clone()));
        if signature.builtin == Builtin::Print {
            let format = self.format(format, arguments, &made)?;
            let span = arguments[0].span.clone();
            made[0] = Argument::Value(self.string(format, &span));
        }
        let kind = ExpressionKind::Builtin(signature.builtin, made);
        Ok(Expression { kind, ty: signature.result.clone(), span: span.clone() })
    }

    /// How the function of this name is called.
    pub(super) fn call_form(&self, name: &str) -> String {
        let takes_arguments = match self.scopes.find(name) {
            Some(Symbol::Function(number)) => self.program.functions[*number].parameters > 0,
            _ => match BUILTINS.iter().find(|signature| signature.name == name) {
                Some(Signature { builtin: Builtin::Comm, .. }) => return COMM_FORM.into(),
                signature => signature.is_some_and(|signature| !signature.arguments.is_empty()),
            },
        };
        format!("call it: {name}({})", if takes_arguments { "…" } else { "" })
    }

    fn argument(
        &mut self,
        wanted: ExpectedArgument,
        written: &Written,
        map: Option<usize>,
    ) -> Checked<Argument> {
        match wanted {
            ExpectedArgument::Number => self.value_argument(written, &U64.into()),
            ExpectedArgument::Map => match &written.kind {
                WrittenKind::Name(name) => match self.scopes.find(name) {
                    Some(Symbol::Map(map)) => Ok(Argument::Map(*map)),
                    Some(Symbol::Faulty) => Err(ErrorReported),
                    None => {
                        let known = self.scopes.names(|named| matches!(named, Symbol::Map(_)));
                        let name = ast::Ident { text: name.clone(), span: written.span.clone() };
                        self.unknown("map", &name, &known)
                    }
                    Some(_) => self.error(Diagnostic::error(
                        written.span.clone(),
                        format!("`{name}` is not a map"),
                    )),
                },
                _ => self
                    .error(Diagnostic::error(written.span.clone(), "expected the name of a map")),
            },
            ExpectedArgument::Key => {
                let map = map.expect("each that takes a key takes the map before");
                self.key(map, written).map(Argument::Value)
            }
            ExpectedArgument::Text | ExpectedArgument::Any
                if matches!(written.kind, WrittenKind::Text(_)) =>
            {
                self.expression(written).map(Argument::Value)
            }
            ExpectedArgument::Text => {
                let value = self.expression(written)?;
                match value {
                    Expression { ty: Type::String, .. } => Ok(Argument::Value(value)),
                    Expression { kind: ExpressionKind::Load(lvalue), .. }
                        if lvalue.of.is_bytes() =>
                    {
                        Ok(Argument::Lvalue(*lvalue))
                    }
                    other => {
                        let message =
                            format!("expected a text, found a value of type {}", other.ty);
                        let help = match self.loads_address(&other) {
                            true => foreign::AT_ADDRESS,
                            false => "a text is a string or an array of char",
                        };
                        self.error(Diagnostic::error(other.span, message).help(help))
                    }
                }
            }
            ExpectedArgument::Any => {
                let value = self.expression(written)?;
                match value {
                    Expression { kind: ExpressionKind::Load(lvalue), .. }
                        if lvalue.of.is_bytes() =>
                    {
                        Ok(Argument::Lvalue(*lvalue))
                    }
                    value if value.ty.is_number() || value.ty == Type::String => {
                        Ok(Argument::Value(value))
                    }
                    other => {
                        let message = format!("a value of type {} cannot be printed", other.ty);
                        self.error(
                            Diagnostic::error(other.span, message)
                                .help("print its members one by one"),
                        )
                    }
                }
            }
            ExpectedArgument::Memory | ExpectedArgument::ChangedMemory
                if matches!(written.kind, WrittenKind::Text(_)) =>
            {
                let problem = Diagnostic::error(
                    written.span.clone(),
                    "a string is not a variable, so its bytes cannot be used here",
                );
                self.error(problem.help(
                    "declare a variable, `char text[] = \"…\";`, or compare texts: \
                        strncmp(one, other, n)",
                ))
            }
            ExpectedArgument::ChangedBytes | ExpectedArgument::ChangedMemory => {
                let lvalue = self.changed_lvalue(written)?;
                if matches!(wanted, ExpectedArgument::ChangedBytes) && !lvalue.of.is_bytes() {
                    let problem = Diagnostic::error(
                        lvalue.span,
                        format!("expected an array of char, found type {}", lvalue.of),
                    );
                    return self.error(problem.help("write the name of an array of char here"));
                }
                Ok(Argument::Lvalue(lvalue))
            }
            ExpectedArgument::Memory => self.lvalue(written).map(Argument::Lvalue),
            ExpectedArgument::Record => {
                let lvalue = self.lvalue(written)?;
                match &lvalue.of {
                    Type::Struct(of) => {
                        if of.size > MAX_STRUCT_BYTES {
                            let message = format!(
                                "`struct {}` has {} bytes, but a record has at most \
                                {MAX_STRUCT_BYTES}",
                                of.name, of.size
                            );
                            return self.error(Diagnostic::error(lvalue.span, message));
                        }
                        if !self.program.emitted.contains(of) {
                            self.program.emitted.push(Rc::clone(of));
                        }
                        Ok(Argument::Lvalue(lvalue))
                    }
                    of => self.error(Diagnostic::error(
                        lvalue.span,
                        format!("expected a struct, found {of}"),
                    )),
                }
            }
        }
    }
}
