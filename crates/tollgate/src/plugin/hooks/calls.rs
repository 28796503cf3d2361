//! System calls: their arguments by name, in every ABI.

use std::mem::offset_of;

use calls::{Abi, Parameter};
use ecode::{Base, Condition, Entry, Field, Offer, Refusal, Source, Way};
use kernel::wire;

use super::{Machine, field, observes};

/// Arguments that a call may have.
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
/// arch/x86/include/asm/thread_info.h: set for the time of a 32-bit call.
const TS_COMPAT: u64 = 2;
/// arch/x86/include/uapi/asm/unistd.h
const X32_BIT: u64 = 0x4000_0000;
/// Of a number, to tell it from -1, which stands there when rt_sigreturn ends.
const X32_MASK: u64 = 0xf000_0000;
/// Of a call's number.
const NUMBER_MASK: u64 = 0xffff_ffff;

/// The context of sys_enter is the registers and the number, that of sys_exit the registers and the result.
const REGISTERS: u16 = 0;
const SECOND: u16 = 8;

pub const EXIT: &str = "tp_btf/sys_exit";

/// At one of the hooks that have a call's registers.
pub fn offer(machine: Machine, section: &'static str, selected: &[String]) -> Result<Offer, Refusal> {
    let is_exit = section == EXIT;
    let unknown =
        selected.iter().position(|name| Abi::ALL.iter().all(|abi| calls::number(*abi, name).is_none()));
    if let Some(at) = unknown {
        let known = calls::all(Abi::X86_64).map(|(_, name)| name);
        let near = ecode::nearest(&selected[at], known);
        let help = near.map_or(String::new(), |near| format!("; there is `{near}`"));
        return Err((Some(at), format!("there is no system call `{}`{help}", selected[at])));
    }
    let named = in_common(selected);
    let mut fields = vec![field("call", 32, false), field("abi", 32, false)];
    fields.extend((0..ARGUMENTS).map(|argument| field(&format!("arg{argument}"), 64, false)));
    if is_exit {
        fields.push(field("result", 64, true));
    }
    fields.extend(named.iter().map(|parameter| field(parameter.name, parameter.bits, parameter.is_signed)));
    let mut ways = Vec::new();
    for name in selected {
        for abi in Abi::ALL {
            if let Some(number) = calls::number(abi, name) {
                let conditions = vec![is_number(is_exit, abi, number), is_compat(machine, abi)?];
                ways.push(Way { conditions, fields: sources(is_exit, abi, Some(name), &named) });
            }
        }
    }
    if selected.is_empty() {
        let x32 = Condition { what: number(is_exit), mask: X32_MASK, is: X32_BIT };
        for (abi, conditions) in [
            (Abi::I386, vec![is_compat(machine, Abi::I386)?]),
            (Abi::X32, vec![x32]),
            (Abi::X86_64, Vec::new()),
        ] {
            ways.push(Way { conditions, fields: sources(is_exit, abi, None, &[]) });
        }
    }
    parameters_first(&mut fields, &mut ways);
    Ok(observes(fields, vec![Entry { section, ways }]))
}

/// Some calls' parameters are called as what all calls have: `arg2` of prctl is its second argument, and not its third.
fn parameters_first(fields: &mut Vec<Field>, ways: &mut [Way]) {
    for at in (0..fields.len()).rev() {
        if fields[at + 1..].iter().any(|parameter| parameter.name == fields[at].name) {
            fields.remove(at);
            ways.iter_mut().for_each(|way| drop(way.fields.remove(at)));
        }
    }
}

/// What the guard says, and of which call.
pub fn verdicts(machine: Machine, selected: &[String]) -> Result<Offer, Refusal> {
    let mut offer = offer(machine, "verdict", selected)?;
    let places = [
        ("mismatches", offset_of!(wire::plugin_verdict, mismatches)),
        ("lfc", offset_of!(wire::plugin_verdict, lfc)),
        ("action", offset_of!(wire::plugin_verdict, action)),
        ("denounced", offset_of!(wire::plugin_verdict, is_denounced)),
    ];
    let base = Base::Verdict { bytes: size_of::<wire::plugin_verdict>() as u32, processors: wire::CPUS };
    for (name, at) in places {
        offer.fields.push(field(name, 32, false));
        let source = Source { base, path: vec![at as u16], bytes: 4, is_big_endian: false };
        let ways = offer.entries.iter_mut().flat_map(|entry| &mut entry.ways);
        ways.for_each(|way| way.fields.push(source.clone()));
    }
    Ok(offer)
}

/// Parameters that all of these calls have, by name and type.
fn in_common(selected: &[String]) -> Vec<Parameter> {
    let mut all = selected.iter().map(|name| calls::parameters(Abi::X86_64, name));
    let first = all.next().unwrap_or_default();
    all.fold(first, |common, other| common.into_iter().filter(|one| other.contains(one)).collect())
}

fn number(is_exit: bool) -> Source {
    if is_exit { Source::context(&[REGISTERS, ORIG_AX], 8) } else { Source::context(&[SECOND], 8) }
}

fn is_number(is_exit: bool, abi: Abi, value: u32) -> Condition {
    let bit = if abi == Abi::X32 { X32_BIT } else { 0 };
    Condition { what: number(is_exit), mask: NUMBER_MASK, is: u64::from(value) | bit }
}

fn is_compat(machine: Machine, abi: Abi) -> Result<Condition, Refusal> {
    let at = machine.offset_of("task_struct", "thread_info")? + machine.offset_of("thread_info", "status")?;
    let is = if abi == Abi::I386 { TS_COMPAT } else { 0 };
    Ok(Condition { what: Source::task(&[at], 4), mask: TS_COMPAT, is })
}

/// In the order of the fields.
fn sources(is_exit: bool, abi: Abi, call: Option<&str>, named: &[Parameter]) -> Vec<Source> {
    let (registers, bytes) = if abi == Abi::I386 { (OF_I386, 4) } else { (OF_X86_64, 8) };
    let argument = |place: usize| Source::context(&[REGISTERS, registers[place]], bytes);
    let of_call = match call.and_then(|name| calls::number(abi, name)) {
        Some(number) => Source::number(number.into()),
        // All numbers have 16 bits.
        None => Source { bytes: 2, ..number(is_exit) },
    };
    let mut sources = vec![of_call, Source::number(abi as u64)];
    sources.extend((0..ARGUMENTS).map(argument));
    if is_exit {
        let result = Source::context(&[SECOND], 8);
        sources.push(result);
    }
    let own = call.map(|name| calls::parameters(abi, name)).unwrap_or_default();
    sources.extend(named.iter().map(|parameter| {
        let place = own.iter().position(|own| own == parameter);
        place.map_or(Source::number(0), argument)
    }));
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_in_common() {
        let names = |selected: &[&str]| -> Vec<_> {
            in_common(&selected.iter().map(|name| String::from(*name)).collect::<Vec<_>>())
                .into_iter()
                .map(|parameter: Parameter| parameter.name)
                .collect()
        };
        assert_eq!(names(&["openat"]), ["dfd", "filename", "flags", "mode"]);
        assert_eq!(names(&["openat", "open"]), ["filename", "flags", "mode"]);
        assert_eq!(names(&["openat", "close"]), [""; 0]);
    }

    /// In the whole program: whether a handler of it is one.
    #[test]
    fn every_call_has_handlers() {
        for (_, name) in calls::all(Abi::X86_64) {
            let handlers =
                ["enter", "exit", "guard", "verdict"].map(|hook| format!("on {hook}({name}) {{}} "));
            let (program, problems) = ecode::check(&handlers.concat(), &Machine::ToCheck);
            assert!(program.is_some() && problems.is_empty(), "{name}: {problems:?}");
        }
    }

    #[test]
    fn parameters_take_the_names_of_arguments() {
        let offered = offer(Machine::ToCheck, EXIT, &["prctl".into()]).expect("it is a call");
        let names: Vec<_> = offered.fields.iter().map(|field| field.name.as_str()).collect();
        let wanted = ["call", "abi", "arg0", "arg1", "result", "option", "arg2", "arg3", "arg4", "arg5"];
        assert_eq!(names, wanted);
        for way in &offered.entries[0].ways {
            assert_eq!(way.fields.len(), names.len());
            let of =
                |name: &str| &way.fields[names.iter().position(|known| *known == name).expect("a field")];
            assert_eq!(of("arg2"), of("arg1"));
        }
    }
}
