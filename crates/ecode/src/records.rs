//! What a plugin tells user space, by `print` and `emit`: as the kernel hands it over, and what it means.

use std::rc::Rc;

use crate::interpret::value_of;
use crate::program::Program;
use crate::types::{Struct, Type};

/// Of a record: its first eight bytes say which string of the program it prints, or with this which struct it is.
pub const STRUCT: u64 = 1 << 32;
/// Behind it: when it was told, by `now()`.
pub const TIME_AT: u64 = 8;
pub const HEADER_BYTES: u64 = 16;
/// Of a struct: a function's memory has few of them.
pub const MOST_BYTES: u64 = 256;
/// Of each number that is printed.
pub const NUMBER_BYTES: u64 = 8;
/// So much of a text is printed: a few of them are to fit into a function's memory.
pub const TEXT_BYTES: u64 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Printed(Vec<u8>),
    Emitted { name: String, members: Vec<(String, Datum)> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    Number(i128),
    /// Of characters, up to a NUL.
    Text(Vec<u8>),
    Several(Vec<Datum>),
    Struct(Vec<(String, Datum)>),
}

/// What is to be put in for a `%`.
pub enum Printed {
    Number(u64),
    Text(Vec<u8>),
}

impl Record {
    /// And when it was told. None: no plugin of this program has written it.
    pub fn read(program: &Program, bytes: &[u8]) -> Option<(Self, u64)> {
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (time, rest) = rest.split_first_chunk::<8>()?;
        let record = Self::of(program, u64::from_le_bytes(*tag), rest)?;
        Some((record, u64::from_le_bytes(*time)))
    }

    fn of(program: &Program, tag: u64, rest: &[u8]) -> Option<Self> {
        if tag >= STRUCT {
            let of = program.emitted.get((tag - STRUCT) as usize)?;
            let members = members(of, rest)?;
            return Some(Self::Emitted { name: of.name.clone(), members });
        }
        let format = program.strings.get(tag as usize)?;
        let mut rest = rest;
        let mut next = |directive: u8| {
            let (bytes, others) = rest.split_at_checked(printed_bytes(directive) as usize)?;
            rest = others;
            Some(match directive == b's' {
                true => Printed::Text(up_to_nul(bytes)),
                false => Printed::Number(u64::from_le_bytes(bytes.try_into().ok()?)),
            })
        };
        let values: Option<Vec<_>> = directives(format).map(&mut next).collect();
        Some(Self::Printed(print(format, &values?)))
    }
}

/// Those that ask for a value: %d, %u, %x, %c and %s.
pub fn directives(format: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = format.iter();
    std::iter::from_fn(move || {
        while let Some(byte) = bytes.next() {
            if *byte == b'%' {
                match bytes.next() {
                    Some(b'%') => {}
                    directive => return directive.copied(),
                }
            }
        }
        None
    })
}

/// What a record has for one.
pub fn printed_bytes(directive: u8) -> u64 {
    if directive == b's' { TEXT_BYTES } else { NUMBER_BYTES }
}

pub fn print(format: &[u8], values: &[Printed]) -> Vec<u8> {
    let (mut text, mut values, mut bytes) = (Vec::new(), values.iter(), format.iter());
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            text.push(*byte);
            continue;
        }
        let directive = bytes.next();
        match (directive, if directive == Some(&b'%') { None } else { values.next() }) {
            (_, Some(Printed::Text(bytes))) => text.extend(bytes),
            (Some(b'd'), Some(Printed::Number(value))) => text.extend((*value as i64).to_string().bytes()),
            (Some(b'u'), Some(Printed::Number(value))) => text.extend(value.to_string().bytes()),
            (Some(b'x'), Some(Printed::Number(value))) => text.extend(format!("{value:x}").bytes()),
            (_, Some(Printed::Number(value))) => text.push(*value as u8),
            (_, None) => text.push(b'%'),
        }
    }
    text
}

/// So much as is printed of it.
pub fn up_to_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().take(TEXT_BYTES as usize).take_while(|byte| **byte != 0).copied().collect()
}

fn members(of: &Rc<Struct>, bytes: &[u8]) -> Option<Vec<(String, Datum)>> {
    let one = |member: &crate::types::Member| {
        Some((member.name.clone(), datum(&member.of, bytes.get(member.offset as usize..)?)?))
    };
    of.members.iter().map(one).collect()
}

/// What bytes of a type mean; none: there are too few.
pub fn datum(of: &Type, bytes: &[u8]) -> Option<Datum> {
    let bytes = bytes.get(..of.size() as usize)?;
    Some(match of {
        Type::Struct(of) => Datum::Struct(members(of, bytes)?),
        Type::Array(element, _) if of.is_bytes() && element.integer().is_some_and(|of| of.is_signed) => {
            Datum::Text(bytes.iter().take_while(|byte| **byte != 0).copied().collect())
        }
        Type::Array(element, _) => {
            let size = (element.size() as usize).max(1);
            Datum::Several(bytes.chunks(size).map(|bytes| datum(element, bytes)).collect::<Option<_>>()?)
        }
        of => {
            let value = value_of(bytes, of);
            let is_signed = of.integer().is_some_and(|of| of.is_signed);
            Datum::Number(if is_signed { i128::from(value as i64) } else { i128::from(value) })
        }
    })
}
