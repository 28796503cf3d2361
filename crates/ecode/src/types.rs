//! Types and their layout in memory, as in C on x86-64.

use std::fmt::{self, Display};
use std::rc::Rc;

/// A type of E-code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// No value.
    Void,
    /// 0 or 1.
    Bool,
    /// A number.
    Integer(Integer),
    /// A string constant.
    String,
    /// A struct.
    Struct(Rc<Struct>),
    /// Elements of a type, and their number.
    Array(Rc<Type>, u64),
}

/// A type of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integer {
    /// The width.
    pub bits: u8,
    /// Whether there are negative values.
    pub is_signed: bool,
    /// Which of its names messages use.
    pub spelling: Spelling,
}

/// The names of integer types in messages. All spellings are equal, because they do not make
/// different types.
#[derive(Debug, Clone, Copy)]
pub enum Spelling {
    /// As in `unsigned int`.
    C,
    /// As in `u32`.
    Short,
}

impl PartialEq for Spelling {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Spelling {}

#[derive(Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: String,
    pub members: Vec<StructMember>,
    pub size: u64,
    pub alignment: u64,
    /// The nesting depth of structs and arrays.
    pub depth: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructMember {
    pub name: String,
    pub ty: Type,
    pub offset: u64,
}

pub const INT: Integer = Integer::c(32, true);
pub const LONG: Integer = Integer::c(64, true);
pub const U32: Integer = Integer::short(32, false);
pub const U64: Integer = Integer::short(64, false);
pub const U8: Integer = Integer::short(8, false);
pub const U16: Integer = Integer::short(16, false);
pub const CHAR: Integer = Integer::c(8, true);
const BOOL: Integer = Integer::c(1, false);

impl Integer {
    /// A type with a name of C.
    pub const fn c(bits: u8, is_signed: bool) -> Self {
        Self { bits, is_signed, spelling: Spelling::C }
    }

    /// A type with a short name.
    pub const fn short(bits: u8, is_signed: bool) -> Self {
        Self { bits, is_signed, spelling: Spelling::Short }
    }

    /// The size of a value.
    pub fn bytes(self) -> u64 {
        u64::from(self.bits.div_ceil(8))
    }

    /// Extends the lowest bits of a value, as many as the type has, to 64 bits: with the sign bit
    /// if the type is signed, and with zeros otherwise. All values have this form.
    pub fn extend(self, value: u64) -> u64 {
        let unused = 64 - u32::from(self.bits);
        if self.is_signed {
            ((value << unused) as i64 >> unused) as u64
        } else {
            value << unused >> unused
        }
    }

    /// Whether the type has this value. `is_signed` is whether `value` is to be read as a signed
    /// number.
    pub fn holds(self, value: u64, is_signed: bool) -> bool {
        self.extend(value) == value && (self.is_signed == is_signed || value as i64 >= 0)
    }

    /// The number that a value of this type, extended to 64 bits, stands for.
    pub fn exact(self, value: u64) -> i128 {
        if self.is_signed { (value as i64).into() } else { value.into() }
    }

    /// C's integer promotion (ISO C17, 6.3.1.1).
    pub fn promoted(self) -> Self {
        if self.bits < INT.bits { INT } else { self }
    }

    /// C's usual arithmetic conversions (ISO C17, 6.3.1.8).
    pub fn common(self, other: Self) -> Self {
        let (one, other) = (self.promoted(), other.promoted());
        match one.bits.cmp(&other.bits) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => one,
            std::cmp::Ordering::Equal => {
                if one.is_signed {
                    other
                } else {
                    one
                }
            }
        }
    }
}

impl Struct {
    pub fn new(name: String, members: impl IntoIterator<Item = (String, Type)>) -> Self {
        let mut of = Self { name, members: Vec::new(), size: 0, alignment: 1, depth: 1 };
        for (name, member) in members {
            let alignment = member.alignment();
            let offset = of.size.next_multiple_of(alignment);
            of.size = offset.saturating_add(member.size());
            of.alignment = of.alignment.max(alignment);
            of.depth = of.depth.max(member.depth() + 1);
            of.members.push(StructMember { name, ty: member, offset });
        }
        of.size = of.size.checked_next_multiple_of(of.alignment).unwrap_or(u64::MAX);
        of
    }

    pub fn member(&self, name: &str) -> Option<&StructMember> {
        self.members.iter().find(|member| member.name == name)
    }
}

impl Type {
    /// The size in bytes. The checker limits it where a variable is declared.
    pub fn size(&self) -> u64 {
        match self {
            Self::Void => 0,
            Self::Bool => 1,
            Self::Integer(integer) => integer.bytes(),
            Self::String => 8,
            Self::Struct(of) => of.size,
            Self::Array(of, length) => of.size().saturating_mul(*length),
        }
    }

    /// The alignment, as in C.
    pub fn alignment(&self) -> u64 {
        match self {
            Self::Void | Self::Bool => 1,
            Self::Integer(integer) => integer.bytes(),
            Self::String => 8,
            Self::Struct(of) => of.alignment,
            Self::Array(of, _) => of.alignment(),
        }
    }

    /// How deep arrays and structs are nested.
    pub fn depth(&self) -> usize {
        match self {
            Self::Struct(of) => of.depth,
            Self::Array(of, _) => of.depth() + 1,
            _ => 0,
        }
    }

    /// The type as an integer, if it is a number.
    pub fn integer(&self) -> Option<Integer> {
        match self {
            Self::Bool => Some(BOOL),
            Self::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// Whether the type is a struct, whose values do not fit into a register.
    pub fn is_struct(&self) -> bool {
        matches!(self, Self::Struct(_))
    }

    /// Whether a value is a number or a Boolean.
    pub fn is_number(&self) -> bool {
        self.integer().is_some()
    }

    /// Whether the type is an array of bytes.
    pub fn is_bytes(&self) -> bool {
        matches!(self, Self::Array(of, _) if matches!(**of, Self::Integer(Integer { bits: 8, .. })))
    }
}

impl From<Integer> for Type {
    fn from(integer: Integer) -> Self {
        Self::Integer(integer)
    }
}

impl Display for Integer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Spelling::Short = self.spelling {
            return write!(to, "{}{}", if self.is_signed { "i" } else { "u" }, self.bits);
        }
        let name = match self.bits {
            8 => "char",
            16 => "short",
            32 => "int",
            _ => "long",
        };
        write!(to, "{}{name}", if self.is_signed { "" } else { "unsigned " })
    }
}

impl Display for Type {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Void => to.write_str("void"),
            Self::Bool => to.write_str("bool"),
            Self::Integer(integer) => integer.fmt(to),
            Self::String => to.write_str("string"),
            Self::Struct(of) => write!(to, "struct {}", of.name),
            Self::Array(..) => {
                let (mut of, mut lengths) = (self, String::new());
                while let Self::Array(inner, length) = of {
                    lengths += &format!("[{length}]");
                    of = inner;
                }
                write!(to, "{of}{lengths}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(bits: u8, is_signed: bool) -> Integer {
        Integer::c(bits, is_signed)
    }

    #[test]
    fn types_keep_their_spelling() {
        let (short, c) = (Integer::short(32, false), Integer::c(32, false));
        assert_eq!(short, c);
        assert_eq!([short, c].map(|of| of.to_string()), ["u32", "unsigned int"]);
        assert_eq!(short.common(INT).to_string(), "u32");
        assert_eq!(Type::Array(Rc::new(Integer::short(8, true).into()), 4).to_string(), "i8[4]");
    }

    #[test]
    fn values_are_extended_as_they_are_signed() {
        assert_eq!(integer(8, true).extend(0x80), (-128_i64) as u64);
        assert_eq!(integer(8, false).extend(0x1ff), 0xff);
        assert_eq!(integer(64, true).extend(u64::MAX), u64::MAX);
        assert!(integer(32, false).holds(0xffff_ffff, false) && !INT.holds(0xffff_ffff, false));
        assert!(
            !integer(64, true).holds(u64::MAX, false) && integer(64, true).holds(u64::MAX, true)
        );
    }

    #[test]
    fn usual_arithmetic_conversions() {
        for (one, other, common) in [
            (CHAR, CHAR, INT),
            (integer(16, false), CHAR, INT),
            (INT, U32, U32),
            (LONG, U32, LONG),
            (LONG, U64, U64),
            (BOOL, BOOL, INT),
        ] {
            assert_eq!(
                (one.common(other), other.common(one)),
                (common, common),
                "{one} and {other}"
            );
        }
    }

    #[test]
    fn struct_layout_as_in_c() {
        let inner = Struct::new(
            "inner".into(),
            [("a".into(), CHAR.into()), ("b".into(), integer(16, true).into())],
        );
        assert_eq!((inner.size, inner.alignment), (4, 2));
        let inner = Type::Array(Rc::new(Type::Struct(Rc::new(inner))), 3);
        let outer = Struct::new(
            "outer".into(),
            [("c".into(), CHAR.into()), ("d".into(), inner), ("e".into(), LONG.into())],
        );
        let offsets: Vec<_> = outer.members.iter().map(|member| member.offset).collect();
        assert_eq!((offsets, outer.size, outer.alignment), (vec![0, 2, 16], 24, 8));
    }
}
