//! The records that a plugin writes for user space by `print` and `emit`: their format in the
//! kernel's buffer, and their decoding.

use std::rc::Rc;

use crate::arithmetic::value_of;
use crate::typed::Program;
use crate::types::{Struct, Type};

/// The first eight bytes of a record are the number of the string that it prints, or this constant
/// plus the number of the struct that it emits.
pub const STRUCT_TAG: u64 = 1 << 32;
/// The offset of the time of the record, as `now()` returns it.
pub const TIME_OFFSET: u64 = 8;
/// The size of the header before the values of a record.
pub const HEADER_BYTES: u64 = 16;
/// The maximum size of a struct in a record. The stack of a function has room for only a few such
/// structs.
pub const MAX_STRUCT_BYTES: u64 = 256;
/// The bytes of a printed number.
pub const NUMBER_BYTES: u64 = 8;
/// The maximum number of bytes of a printed text; the rest is cut off. A few texts must fit onto
/// the stack of a function.
pub const TEXT_BYTES: u64 = 64;

/// A record that a plugin wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A printed text.
    Printed(Vec<u8>),
    /// A struct.
    Emitted {
        /// The name of the struct.
        name: String,
        /// The members, each with its name.
        members: Vec<(String, RecordValue)>,
    },
}

/// The value of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordValue {
    /// A number or a Boolean.
    Number(i128),
    /// The characters of an array up to its NUL.
    Text(Vec<u8>),
    /// The elements of an array.
    Several(Vec<RecordValue>),
    /// The members of a struct.
    Struct(Vec<(String, RecordValue)>),
}

/// The value for a directive of a format.
pub enum FormatArgument {
    /// A number.
    Number(u64),
    /// A text.
    Text(Vec<u8>),
}

impl Record {
    /// Decodes a record and its time. `None` if no plugin of this program wrote it.
    pub fn read(program: &Program, bytes: &[u8]) -> Option<(Self, u64)> {
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (time, rest) = rest.split_first_chunk::<8>()?;
        let record = Self::of(program, u64::from_le_bytes(*tag), rest)?;
        Some((record, u64::from_le_bytes(*time)))
    }

    fn of(program: &Program, tag: u64, rest: &[u8]) -> Option<Self> {
        if tag >= STRUCT_TAG {
            let of = program.emitted.get((tag - STRUCT_TAG) as usize)?;
            let members = members(of, rest)?;
            return Some(Self::Emitted { name: of.name.clone(), members });
        }
        let format = program.strings.get(tag as usize)?;
        let mut rest = rest;
        let mut next = |directive: u8| {
            let (bytes, others) = rest.split_at_checked(printed_bytes(directive) as usize)?;
            rest = others;
            Some(match directive == b's' {
                true => FormatArgument::Text(trim_nul(bytes)),
                false => FormatArgument::Number(u64::from_le_bytes(bytes.try_into().ok()?)),
            })
        };
        let values: Option<Vec<_>> = directives(format).map(&mut next).collect();
        Some(Self::Printed(print(format, &values?)))
    }
}

/// The directives of a format that take a value: %d, %u, %x, %c and %s.
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

/// The bytes of a directive's value in a record.
pub fn printed_bytes(directive: u8) -> u64 {
    if directive == b's' { TEXT_BYTES } else { NUMBER_BYTES }
}

/// Formats values as `print` does.
pub fn print(format: &[u8], values: &[FormatArgument]) -> Vec<u8> {
    let (mut text, mut values, mut bytes) = (Vec::new(), values.iter(), format.iter());
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            text.push(*byte);
            continue;
        }
        let directive = bytes.next();
        match (directive, if directive == Some(&b'%') { None } else { values.next() }) {
            (_, Some(FormatArgument::Text(bytes))) => text.extend(bytes),
            (Some(b'd'), Some(FormatArgument::Number(value))) => {
                text.extend((*value as i64).to_string().bytes())
            }
            (Some(b'u'), Some(FormatArgument::Number(value))) => {
                text.extend(value.to_string().bytes())
            }
            (Some(b'x'), Some(FormatArgument::Number(value))) => {
                text.extend(format!("{value:x}").bytes())
            }
            (_, Some(FormatArgument::Number(value))) => text.push(*value as u8),
            (_, None) => text.push(b'%'),
        }
    }
    text
}

/// The printed part of a text.
pub fn trim_nul(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().take(TEXT_BYTES as usize).take_while(|byte| **byte != 0).copied().collect()
}

fn members(of: &Rc<Struct>, bytes: &[u8]) -> Option<Vec<(String, RecordValue)>> {
    let one = |member: &crate::types::StructMember| {
        Some((member.name.clone(), decode_value(&member.ty, bytes.get(member.offset as usize..)?)?))
    };
    of.members.iter().map(one).collect()
}

/// Decodes bytes as a value of a type, or returns `None` if there are too few.
pub fn decode_value(of: &Type, bytes: &[u8]) -> Option<RecordValue> {
    let bytes = bytes.get(..of.size() as usize)?;
    Some(match of {
        Type::Struct(of) => RecordValue::Struct(members(of, bytes)?),
        Type::Array(element, _)
            if of.is_bytes() && element.integer().is_some_and(|of| of.is_signed) =>
        {
            RecordValue::Text(bytes.iter().take_while(|byte| **byte != 0).copied().collect())
        }
        Type::Array(element, _) => {
            let size = (element.size() as usize).max(1);
            RecordValue::Several(
                bytes
                    .chunks(size)
                    .map(|bytes| decode_value(element, bytes))
                    .collect::<Option<_>>()?,
            )
        }
        of => {
            let value = value_of(bytes, of);
            let is_signed = of.integer().is_some_and(|of| of.is_signed);
            RecordValue::Number(if is_signed {
                i128::from(value as i64)
            } else {
                i128::from(value)
            })
        }
    })
}
