//! Hooks of system calls, with the arguments by name in every ABI.

use std::mem::offset_of;

use calls::{Abi, CallParameter};
use ecode::{
    FieldBase, FieldCondition, FieldSource, HookError, HookField, HookProgram, HookSpec,
    HookVariant,
};
use kernel::wire;

use super::call_names;
use super::parts::{OffsetSource, field, observing_spec};
use crate::call_name::known_call;

/// The maximum number of arguments of a call.
const ARGUMENTS: usize = 6;
// struct pt_regs, arch/x86/include/uapi/asm/ptrace.h
const ORIG_AX: u16 = 120;
const BP: u16 = 32;
const BX: u16 = 40;
const R10: u16 = 56;
const R9: u16 = 64;
const R8: u16 = 72;
const CX: u16 = 88;
const DX: u16 = 96;
const SI: u16 = 104;
const DI: u16 = 112;
/// arch/x86/entry/entry_64.S
const OF_X86_64: [u16; ARGUMENTS] = [DI, SI, DX, R10, R8, R9];
/// arch/x86/entry/entry_64_compat.S
const OF_I386: [u16; ARGUMENTS] = [BX, CX, DX, SI, DI, BP];
/// arch/x86/include/asm/thread_info.h: set during a 32-bit call.
const TS_COMPAT: u64 = 2;
/// arch/x86/include/uapi/asm/unistd.h
const X32_BIT: u64 = 0x4000_0000;
/// Distinguishes an x32 number from -1, which is the number at the end of rt_sigreturn.
const X32_MASK: u64 = 0xf000_0000;
/// The bits of a call's number.
const NUMBER_MASK: u64 = 0xffff_ffff;

/// The context of sys_enter has the registers and the number, that of sys_exit the registers and
/// the result.
const REGISTERS: u16 = 0;
const SECOND: u16 = 8;

pub const EXIT: &str = "tp_btf/sys_exit";

/// The specification of a hook that has a call's registers.
pub fn spec(
    machine: OffsetSource,
    section: &'static str,
    selected: &[String],
) -> Result<HookSpec, HookError> {
    let is_exit = section == EXIT;
    for (at, name) in selected.iter().enumerate() {
        known_call(name).map_err(|problem| (Some(at), problem))?;
    }
    let named = common_parameters(selected);
    let mut fields = vec![field("call", 32, false), field("abi", 32, false)];
    fields.extend((0..ARGUMENTS).map(|argument| field(&format!("arg{argument}"), 64, false)));
    if is_exit {
        fields.push(field("result", 64, true));
    }
    fields.extend(
        named.iter().map(|parameter| field(parameter.name, parameter.bits, parameter.is_signed)),
    );
    let mut variants = Vec::new();
    for name in selected {
        for abi in Abi::ALL {
            if let Some(number) = calls::number(abi, name) {
                let conditions = vec![is_number(is_exit, abi, number), is_compat(machine, abi)?];
                variants.push(HookVariant {
                    conditions,
                    fields: sources(is_exit, abi, Some(name), &named),
                });
            }
        }
    }
    if selected.is_empty() {
        let x32 = FieldCondition { source: number(is_exit), mask: X32_MASK, equals: X32_BIT };
        for (abi, conditions) in [
            (Abi::I386, vec![is_compat(machine, Abi::I386)?]),
            (Abi::X32, vec![x32]),
            (Abi::X86_64, Vec::new()),
        ] {
            variants.push(HookVariant { conditions, fields: sources(is_exit, abi, None, &[]) });
        }
    }
    prefer_parameters(&mut fields, &mut variants);
    let warnings = call_names::warnings(selected);
    let unreadable = other_parameters(selected, &named);
    let spec = observing_spec(fields, vec![HookProgram { section, variants }]);
    Ok(HookSpec { warnings, unreadable, ..spec })
}

/// Removes the general fields that have the same name as a parameter: `arg2` of prctl is its second
/// argument, and the general `arg2` is the third.
fn prefer_parameters(fields: &mut Vec<HookField>, variants: &mut [HookVariant]) {
    for at in (0..fields.len()).rev() {
        if fields[at + 1..].iter().any(|parameter| parameter.name == fields[at].name) {
            fields.remove(at);
            variants.iter_mut().for_each(|variant| drop(variant.fields.remove(at)));
        }
    }
}

/// The specification of `verdict`: the guard's verdict, and the call that it is about.
pub fn verdict_spec(machine: OffsetSource, selected: &[String]) -> Result<HookSpec, HookError> {
    let mut spec = self::spec(machine, "verdict", selected)?;
    let offsets = [
        ("mismatches", offset_of!(wire::plugin_verdict, mismatches)),
        ("lfc", offset_of!(wire::plugin_verdict, lfc)),
        ("action", offset_of!(wire::plugin_verdict, action)),
        ("denounced", offset_of!(wire::plugin_verdict, is_denounced)),
    ];
    let base = FieldBase::Verdict {
        bytes: size_of::<wire::plugin_verdict>() as u32,
        processors: wire::CPUS,
    };
    for (name, at) in offsets {
        spec.fields.push(field(name, 32, false));
        let source = FieldSource { base, path: vec![at as u16], bytes: 4, is_big_endian: false };
        let variants = spec.programs.iter_mut().flat_map(|program| &mut program.variants);
        variants.for_each(|variant| variant.fields.push(source.clone()));
    }
    Ok(spec)
}

/// The parameters that all of these calls have, by name and type.
fn common_parameters(selected: &[String]) -> Vec<CallParameter> {
    let mut all = selected.iter().map(|name| calls::parameters(Abi::X86_64, name));
    let first = all.next().unwrap_or_default();
    all.fold(first, |common, other| common.into_iter().filter(|one| other.contains(one)).collect())
}

/// The parameters that only some of these calls have, each with the reason.
fn other_parameters(selected: &[String], common: &[CallParameter]) -> Vec<(String, String)> {
    let mut others: Vec<(String, String)> = Vec::new();
    let of_calls = selected.iter().map(|name| calls::parameters(Abi::X86_64, name));
    for parameter in of_calls.flatten().filter(|parameter| !common.contains(parameter)) {
        if others.iter().any(|(name, _)| name == parameter.name) {
            continue;
        }
        let lacks = |name: &&String| !calls::parameters(Abi::X86_64, name).contains(&parameter);
        let call = selected.iter().find(lacks).expect("the parameter is not common");
        let known = calls::parameters(Abi::X86_64, call);
        let why = match known.iter().any(|known| known.name == parameter.name) {
            true => "has another type for it",
            false => "has no argument of this name",
        };
        let why = format!("`{call}` {why}: write a handler of its own for `{call}`");
        others.push((parameter.name.into(), why));
    }
    others
}

fn number(is_exit: bool) -> FieldSource {
    if is_exit {
        FieldSource::context(&[REGISTERS, ORIG_AX], 8)
    } else {
        FieldSource::context(&[SECOND], 8)
    }
}

fn is_number(is_exit: bool, abi: Abi, value: u32) -> FieldCondition {
    let bit = if abi == Abi::X32 { X32_BIT } else { 0 };
    FieldCondition { source: number(is_exit), mask: NUMBER_MASK, equals: u64::from(value) | bit }
}

fn is_compat(machine: OffsetSource, abi: Abi) -> Result<FieldCondition, HookError> {
    let at = machine.offset_of("task_struct", "thread_info")?
        + machine.offset_of("thread_info", "status")?;
    let is = if abi == Abi::I386 { TS_COMPAT } else { 0 };
    Ok(FieldCondition { source: FieldSource::task(&[at], 4), mask: TS_COMPAT, equals: is })
}

/// The sources of the fields, in the order of the fields.
fn sources(
    is_exit: bool,
    abi: Abi,
    call: Option<&str>,
    named: &[CallParameter],
) -> Vec<FieldSource> {
    let (registers, bytes) = if abi == Abi::I386 { (OF_I386, 4) } else { (OF_X86_64, 8) };
    let argument = |index: usize| FieldSource::context(&[REGISTERS, registers[index]], bytes);
    let of_call = match call.and_then(|name| calls::number(abi, name)) {
        Some(number) => FieldSource::number(number.into()),
        // All call numbers fit into 16 bits.
        None => FieldSource { bytes: 2, ..number(is_exit) },
    };
    let mut sources = vec![of_call, FieldSource::number(abi as u64)];
    sources.extend((0..ARGUMENTS).map(argument));
    if is_exit {
        let result = FieldSource::context(&[SECOND], 8);
        sources.push(result);
    }
    let own = call.map(|name| calls::parameters(abi, name)).unwrap_or_default();
    sources.extend(named.iter().map(|parameter| {
        let index = own.iter().position(|own| own == parameter);
        index.map_or(FieldSource::number(0), argument)
    }));
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_in_common() {
        let names = |selected: &[&str]| -> Vec<_> {
            common_parameters(&selected.iter().map(|name| String::from(*name)).collect::<Vec<_>>())
                .into_iter()
                .map(|parameter: CallParameter| parameter.name)
                .collect()
        };
        assert_eq!(names(&["openat"]), ["dfd", "filename", "flags", "mode"]);
        assert_eq!(names(&["openat", "open"]), ["filename", "flags", "mode"]);
        assert_eq!(names(&["openat", "close"]), [""; 0]);
    }

    /// Checks whole programs with handlers for each call.
    #[test]
    fn every_call_has_handlers() {
        for (_, name) in calls::all(Abi::X86_64) {
            let handlers = ["enter", "exit", "guard", "verdict"]
                .map(|hook| format!("on {hook}({name}) {{}} "));
            let (program, problems) = ecode::check(&handlers.concat(), &OffsetSource::ToCheck);
            assert!(program.is_some() && problems.is_empty(), "{name}: {problems:?}");
        }
    }

    #[test]
    fn fields_that_one_call_lacks_name_it() {
        for (text, help) in [
            (
                "on enter(openat, creat, open) { return filename; }",
                "`creat` has no argument of this name: write a handler of its own for `creat`",
            ),
            (
                "on enter(read, pread64, kill) { return fd; }",
                "`kill` has no argument of this name: write a handler of its own for `kill`",
            ),
        ] {
            let (program, problems) = ecode::check(text, &OffsetSource::ToCheck);
            let helps: Vec<_> = problems.iter().map(|problem| problem.help.as_deref()).collect();
            assert!(program.is_none() && helps == [Some(help)], "{problems:?}");
        }
    }

    #[test]
    fn parameters_take_the_names_of_arguments() {
        let spec =
            super::spec(OffsetSource::ToCheck, EXIT, &["prctl".into()]).expect("it is a call");
        let names: Vec<_> = spec.fields.iter().map(|field| field.name.as_str()).collect();
        let wanted =
            ["call", "abi", "arg0", "arg1", "result", "option", "arg2", "arg3", "arg4", "arg5"];
        assert_eq!(names, wanted);
        for variant in &spec.programs[0].variants {
            assert_eq!(variant.fields.len(), names.len());
            let of = |name: &str| {
                &variant.fields[names.iter().position(|known| *known == name).expect("a field")]
            };
            assert_eq!(of("arg2"), of("arg1"));
        }
    }
}
