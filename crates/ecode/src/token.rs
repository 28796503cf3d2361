//! The tokens of the language.

use crate::diagnostic::Span;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKind {
    /// A number with its suffixes `u` and `l`.
    Number {
        value: u64,
        is_unsigned: bool,
        is_long: bool,
        is_decimal: bool,
    },
    /// `'a'`
    Character(u8),
    /// `"text"`, without its NUL.
    Text(Vec<u8>),
    Name(String),
    Keyword(Keyword),
    /// An operator or another punctuator.
    Punctuator(&'static str),
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub kind: TokenKind,
    pub span: Span,
}

macro_rules! keywords {
    ($($variant:ident $text:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Keyword { $($variant,)* }

        impl Keyword {
            pub const ALL: &[(&str, Self)] = &[$(($text, Self::$variant),)*];

            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

keywords! {
    Bool "bool",
    Break "break",
    Case "case",
    Char "char",
    Const "const",
    Continue "continue",
    Default "default",
    Do "do",
    Else "else",
    Enum "enum",
    False "false",
    For "for",
    I8 "i8",
    I16 "i16",
    I32 "i32",
    I64 "i64",
    If "if",
    Int "int",
    Long "long",
    Map "map",
    On "on",
    Return "return",
    Short "short",
    Signed "signed",
    Sizeof "sizeof",
    Static "static",
    String "string",
    Struct "struct",
    Switch "switch",
    True "true",
    U8 "u8",
    U16 "u16",
    U32 "u32",
    U64 "u64",
    Unsigned "unsigned",
    Void "void",
    While "while",
}

/// Keywords of C that E-code does not have, and what to write instead.
pub const UNSUPPORTED_C_KEYWORDS: &[(&str, &str)] = &[
    ("_Static_assert", "remove it"),
    ("double", "a kernel has no floating point: use integers, such as thousandths"),
    ("extern", "a program is one file"),
    ("float", "a kernel has no floating point: use integers, such as thousandths"),
    ("goto", "use `break`, `continue` or a function with `return`"),
    ("inline", "remove it: the compiler decides"),
    ("offsetof", "use the member itself: there are no pointers to compute with"),
    ("register", "remove it: the compiler decides"),
    ("static_assert", "remove it"),
    ("typedef", "write the type itself, such as `int` or `struct point`"),
    ("union", "use a struct, and casts to convert numbers"),
    ("volatile", "remove it: every access to a global variable reads or writes memory"),
];

/// The floating-point types of [`UNSUPPORTED_C_KEYWORDS`].
pub const FLOATING: [&str; 2] = ["double", "float"];

/// Types from C's headers, and their names in E-code.
const C_HEADER_TYPES: &[(&str, &str)] = &[
    ("_Bool", "bool"),
    ("__s16", "i16"),
    ("__s32", "i32"),
    ("__s64", "i64"),
    ("__s8", "i8"),
    ("__u16", "u16"),
    ("__u32", "u32"),
    ("__u64", "u64"),
    ("__u8", "u8"),
    ("gid_t", "u32"),
    ("int16_t", "i16"),
    ("int32_t", "i32"),
    ("int64_t", "i64"),
    ("int8_t", "i8"),
    ("off_t", "i64"),
    ("pid_t", "i32"),
    ("s16", "i16"),
    ("s32", "i32"),
    ("s64", "i64"),
    ("s8", "i8"),
    ("size_t", "u64"),
    ("ssize_t", "i64"),
    ("time_t", "i64"),
    ("uid_t", "u32"),
    ("uint", "u32"),
    ("uint16_t", "u16"),
    ("uint32_t", "u32"),
    ("uint64_t", "u64"),
    ("uint8_t", "u8"),
    ("uintptr_t", "u64"),
    ("ulong", "u64"),
];

/// The E-code name of a type from C's headers.
pub fn type_of_c_header(name: &str) -> Option<&'static str> {
    C_HEADER_TYPES.iter().find(|(known, _)| *known == name).map(|(_, own)| *own)
}

/// The punctuators, longer ones before their prefixes.
pub const PUNCTUATORS: &[&str] = &[
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", "{", "}", "(", ")", "[", "]", ";", ",", ":", "?",
    "~", "!", "+", "-", "*", "/", "%", "<", ">", "=", "&", "|", "^", ".",
];

impl TokenKind {
    /// The name of the token in messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Number { .. } => "a number".into(),
            Self::Character(_) => "a character".into(),
            Self::Text(_) => "a string".into(),
            Self::Name(name) => format!("`{name}`"),
            Self::Keyword(keyword) => format!("`{}`", keyword.text()),
            Self::Punctuator(mark) => format!("`{mark}`"),
            Self::End => "the end of the file".into(),
        }
    }
}
