//! Tracepoints, with the fields that the kernel declares for them.

use std::io::ErrorKind;

use ecode::{FieldBase, FieldSource, HookError, HookField, HookSpec, Integer, TextLocation, Type};
use kernel::plugin::tracefs;

use super::parts::{observing_spec, unconditional_program};

/// The same limit as for arrays in a function's frame. A longer text is cut.
const MAX_ARRAY_LEN: u64 = 64;

/// What the kernel's description says of a field.
enum Described {
    Readable(HookField, FieldSource),
    /// Its name, and why it cannot be read.
    Unreadable(String, &'static str),
}

pub fn spec(name: &str) -> Result<HookSpec, HookError> {
    let (group, event) = name.split_once(':').ok_or_else(|| unknown(name))?;
    // The group `ftrace` describes the records of tracers, to which no program can be attached.
    let is_record = group == "ftrace";
    if is_record || [group, event].iter().any(|part| part.is_empty() || part.contains(['/', '.'])) {
        return Err(unknown(name));
    }
    let format = tracefs::read(&format!("events/{group}/{event}/format")).map_err(|error| {
        match error.kind() {
            ErrorKind::PermissionDenied => {
                (Some(0), "only root can read the kernel's tracepoints: run this with sudo".into())
            }
            _ => unknown(name),
        }
    })?;
    let (mut fields, mut sources, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for described in format.lines().filter_map(parse_field) {
        match described {
            Described::Readable(field, source) => {
                fields.push(field);
                sources.push(source);
            }
            Described::Unreadable(name, why) => unreadable.push((name, why.into())),
        }
    }
    let spec = observing_spec(fields, vec![unconditional_program("tp", sources)]);
    Ok(HookSpec { unreadable, ..spec })
}

fn unknown(name: &str) -> HookError {
    // The kernel lists the records of tracers as well (`ftrace:function`).
    let has_no_match = name.starts_with("ftrace:") || name.contains(['/', '.']);
    let events = tracefs::read("available_events").unwrap_or_default();
    let known = || events.lines().filter(|event| !event.starts_with("ftrace:") && !has_no_match);
    let near = match name.split_once(':') {
        Some(_) => ecode::closest_name(name, known()),
        None => known().find(|event| event.rsplit(':').next() == Some(name)),
    };
    let help = match near {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if !name.contains(':') => "write it with its group: \"sched:sched_switch\"".into(),
        None => "/sys/kernel/tracing/available_events lists the tracepoints (mount -t tracefs \
            none /sys/kernel/tracing)"
            .into(),
    };
    (Some(0), format!("there is no tracepoint `{name}`: {help}"))
}

/// Parses a line such as `field:char prev_comm[16]; offset:8; size:16; signed:0;`. Returns `None`
/// for the common fields at the start, and for other lines.
fn parse_field(line: &str) -> Option<Described> {
    let line = line.trim().strip_prefix("field:")?;
    let mut parts = line.split(';').map(str::trim);
    let declared = parts.next()?;
    let mut number = |name: &str| parts.next()?.strip_prefix(name)?.parse::<u64>().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")?);
    let (of, name) = declared.rsplit_once(' ')?;
    if name.starts_with("common_") {
        return None;
    }
    let (name, length) = match name.split_once('[') {
        Some((name, length)) => (name, length.trim_end_matches(']').parse::<u64>().ok()),
        None => (name, None),
    };
    let is_array = declared.contains('[');
    let unreadable = |why| Some(Described::Unreadable(name.into(), why));
    let of_bytes = |bytes: u64| Integer::short(bytes as u8 * 8, signed != 0);
    let readable =
        |ty, source| Some(Described::Readable(HookField { name: name.into(), ty }, source));
    let text = Type::Array(Type::from(Integer::c(8, true)).into(), MAX_ARRAY_LEN);
    let location = match of.split(' ').next() {
        Some("__data_loc") => Some(TextLocation::Context),
        Some("__rel_loc") => Some(TextLocation::Word),
        _ => None,
    };
    if let Some(location) = location {
        if !of.ends_with(" char[]") {
            return unreadable(
                "it is an array of no fixed length, and only texts of no fixed length can be read",
            );
        }
        let base = FieldBase::Text(location);
        let source = FieldSource { base, ..FieldSource::context(&[offset as u16], 4) };
        return readable(text, source);
    }
    let bytes = match length {
        _ if !is_array => size,
        Some(length) if length > 0 => size / length,
        _ => 0,
    };
    if ![1, 2, 4, 8].contains(&bytes) {
        return unreadable("its type is neither a number nor an array of numbers");
    }
    if is_array && size > MAX_ARRAY_LEN {
        return unreadable("it is an array of more than 64 bytes");
    }
    let element = of_bytes(bytes).into();
    let ty = match length {
        Some(length) if is_array => Type::Array(Type::into(element), length),
        _ => element,
    };
    readable(ty, FieldSource::context(&[offset as u16], bytes as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(line: &str) -> Option<(String, String)> {
        parse_field(line).map(|described| match described {
            Described::Readable(field, _) => (field.name, field.ty.to_string()),
            Described::Unreadable(name, why) => (name, why.into()),
        })
    }

    #[test]
    fn fields_are_read_as_the_kernel_describes_them() {
        for (line, name, of) in [
            ("char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;", "prev_comm", "u8[16]"),
            ("long prev_state;\toffset:32;\tsize:8;\tsigned:1;", "prev_state", "i64"),
            ("__data_loc char[] comm;\toffset:8;\tsize:4;\tsigned:0;", "comm", "char[64]"),
            ("__rel_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;", "name", "char[64]"),
            ("__data_loc u8[] data;\toffset:8;\tsize:4;\tsigned:0;", "data", "no fixed length"),
            ("u8 uuid[128];\toffset:8;\tsize:128;\tsigned:0;", "uuid", "more than 64 bytes"),
            ("struct sockaddr at;\toffset:8;\tsize:28;\tsigned:0;", "at", "neither a number"),
        ] {
            let (field, found) = described(&format!("\tfield:{line}")).expect(line);
            assert_eq!(field, name);
            assert!(found.contains(of), "{line}: {found}");
        }
        assert_eq!(described("\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;"), None);
        assert_eq!(described("print fmt: \"x\""), None);
    }

    #[test]
    fn places_of_texts_are_read_from_their_fields() {
        let line = "\tfield:__data_loc char[] comm;\toffset:12;\tsize:4;\tsigned:0;";
        let Some(Described::Readable(_, source)) = parse_field(line) else { panic!("{line}") };
        assert_eq!((source.base, source.path), (FieldBase::Text(TextLocation::Context), vec![12]));
    }
}
