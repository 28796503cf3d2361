//! Tracepoints, with the fields that the kernel declares for them.

use std::io::ErrorKind;

use ecode::{FieldSource, HookError, HookField, HookSpec, Integer, Type};
use kernel::plugin::tracefs;

use super::parts::{observing_spec, unconditional_program};

/// The same limit as for arrays in a function's frame.
const MAX_ARRAY_LEN: u64 = 64;

pub fn spec(name: &str) -> Result<HookSpec, HookError> {
    let not_there = || {
        let help = match name.split_once(':') {
            Some(_) => {
                "/sys/kernel/tracing/available_events lists the tracepoints (mount -t tracefs \
                none /sys/kernel/tracing)"
            }
            None => "write it with its group: \"sched:sched_switch\"",
        };
        (Some(0), format!("there is no tracepoint `{name}`: {help}"))
    };
    let (group, event) = name.split_once(':').ok_or_else(not_there)?;
    // The group `ftrace` describes the records of tracers, to which no program can be attached.
    let is_record = group == "ftrace";
    if is_record || [group, event].iter().any(|part| part.is_empty() || part.contains(['/', '.'])) {
        return Err(not_there());
    }
    let format = tracefs::read(&format!("events/{group}/{event}/format")).map_err(|error| {
        match error.kind() {
            ErrorKind::PermissionDenied => {
                (Some(0), "only root can read the kernel's tracepoints: run this with sudo".into())
            }
            _ => not_there(),
        }
    })?;
    let (fields, sources) = format.lines().filter_map(parse_field).unzip();
    Ok(observing_spec(fields, vec![unconditional_program("tp", sources)]))
}

/// Parses a line such as `field:char prev_comm[16]; offset:8; size:16; signed:0;`. Returns `None`
/// for the common fields at the start, and for fields without a fixed length.
fn parse_field(line: &str) -> Option<(HookField, FieldSource)> {
    let line = line.trim().strip_prefix("field:")?;
    let mut parts = line.split(';').map(str::trim);
    let declared = parts.next()?;
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.parse::<u64>().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")?);
    let (_, name) = declared.rsplit_once(' ')?;
    if name.starts_with("common_") || declared.starts_with("__data_loc") {
        return None;
    }
    let (name, length) = match name.split_once('[') {
        Some((name, length)) => (name, Some(length.trim_end_matches(']').parse::<u64>().ok()?)),
        None => (name, None),
    };
    let bytes = size / length.unwrap_or(1);
    if ![1, 2, 4, 8].contains(&bytes)
        || length.is_some_and(|length| length == 0 || size > MAX_ARRAY_LEN)
    {
        return None;
    }
    let of = Type::Integer(Integer { bits: bytes as u8 * 8, is_signed: signed != 0 });
    let of = match length {
        Some(length) => Type::Array(of.into(), length),
        None => of,
    };
    Some((
        HookField { name: name.into(), ty: of },
        FieldSource::context(&[offset as u16], bytes as u8),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_the_kernel_describes_them() {
        let of = |line| {
            parse_field(line)
                .map(|(field, source)| (field.name, field.ty.to_string(), source.path[0]))
        };
        let name = "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;";
        assert_eq!(of(name), Some(("prev_comm".into(), "unsigned char[16]".into(), 8)));
        let state = "\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;";
        assert_eq!(of(state), Some(("prev_state".into(), "long".into(), 32)));
        assert_eq!(of("\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;"), None);
        assert_eq!(of("\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;"), None);
        assert_eq!(of("print fmt: \"x\""), None);
    }
}
