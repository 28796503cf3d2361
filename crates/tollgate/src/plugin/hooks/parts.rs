//! Parts of hook specifications.

use ecode::{
    DenyReturn, FieldSource, HookError, HookField, HookProgram, HookSpec, HookVariant, Integer,
    ReturnPolicy, Type,
};
use kernel::plugin::offset_of;

/// Where offsets in kernel types come from. `ToLoad` reads the types, which takes milliseconds and
/// megabytes. `ToCheck` sets all offsets to 0, for a caller that does not load the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSource {
    ToLoad,
    ToCheck,
}

/// The return policy of hooks that cannot deny anything.
const OBSERVES: ReturnPolicy = ReturnPolicy::Chained { goes_on: 0, stops: None };

impl OffsetSource {
    /// The offset of a member in its struct.
    pub fn offset_of(
        self,
        structure: &'static str,
        member: &'static str,
    ) -> Result<u16, HookError> {
        match self {
            Self::ToLoad => offset_of(structure, member).map_err(|error| (None, error.to_string())),
            Self::ToCheck => Ok(0),
        }
    }
}

/// The specification of a hook that cannot deny anything.
pub fn observing_spec(fields: Vec<HookField>, programs: Vec<HookProgram>) -> HookSpec {
    HookSpec {
        fields,
        programs,
        return_policy: OBSERVES,
        unreadable: Vec::new(),
        unavailable: None,
        packet: None,
        warnings: Vec::new(),
    }
}

/// A program with one variant and no conditions.
pub fn unconditional_program(section: &'static str, fields: Vec<FieldSource>) -> HookProgram {
    HookProgram { section, variants: vec![HookVariant { conditions: Vec::new(), fields }] }
}

/// A field with a number.
pub fn field(name: &str, bits: u8, is_signed: bool) -> HookField {
    HookField { name: name.into(), ty: Type::Integer(Integer::short(bits, is_signed)) }
}

/// A return policy by which a handler's return value can deny the operation.
pub fn denying_policy(goes_on: i32, value: i32, sets_errno: bool) -> ReturnPolicy {
    ReturnPolicy::Chained { goes_on, stops: Some(DenyReturn { value, sets_errno }) }
}
