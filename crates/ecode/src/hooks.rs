//! The specification of hooks. The user of this crate provides the hooks, with the fields that each
//! offers on the running kernel.

use crate::builtin::Builtin;
use crate::types::Type;

/// The hook that runs on demand. A plugin has one handler for it and declares its parameters.
pub const CALL: &str = "call";

/// MAX_ERRNO, include/linux/err.h
pub const MAX_ERRNO: i64 = 4095;

/// A value that a handler can read by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookField {
    /// The name in the source text.
    pub name: String,
    /// The type of the value.
    pub ty: Type,
}

/// The specification of a hook for all events that one handler selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookSpec {
    /// The fields that all selected events have in common.
    pub fields: Vec<HookField>,
    /// The kernel programs that a handler is compiled into.
    pub programs: Vec<HookProgram>,
    /// How the return value of a handler is used.
    pub return_policy: ReturnPolicy,
    /// Fields that some or all of the events have and this handler cannot read, and why.
    pub unreadable: Vec<(String, String)>,
    /// Builtin functions that the hook does not support, and why.
    pub unavailable: Option<(&'static [Builtin], &'static str)>,
    /// The kernel helper that reads bytes of the packet, if the hook has one.
    pub packet: Option<i32>,
    /// What is probably a mistake in the selection of events.
    pub warnings: Vec<HookWarning>,
}

impl HookSpec {
    /// Whether a handler can deny something by its return value.
    pub fn can_deny(&self) -> bool {
        self.deny_return().is_some()
    }

    /// What the kernel gets if a handler denies something, if it can.
    pub fn deny_return(&self) -> Option<DenyReturn> {
        match self.return_policy {
            ReturnPolicy::Chained { stops, .. } => stops,
            ReturnPolicy::Returned => None,
        }
    }
}

/// A warning about one of the selected events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookWarning {
    /// The index of the selected event.
    pub selected: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

/// One of the kernel programs that a handler is compiled into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookProgram {
    /// The libbpf section name, with the program type and attach point: `tp_btf/sys_enter`.
    pub section: &'static str,
    /// The handler uses the first variant whose conditions hold. If there is none, the handler does
    /// not run.
    pub variants: Vec<HookVariant>,
}

/// The sources of the fields in one case, such as one ABI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookVariant {
    /// The conditions, all of which must hold.
    pub conditions: Vec<FieldCondition>,
    /// The source of each field, in order.
    pub fields: Vec<FieldSource>,
}

/// A condition on the masked bits of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldCondition {
    /// The field.
    pub source: FieldSource,
    /// The bits that the condition compares.
    pub mask: u64,
    /// The value of these bits.
    pub equals: u64,
}

/// Where a field is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldSource {
    /// Where the path of the field begins.
    pub base: FieldBase,
    /// Offsets from the base: each leads to the next pointer, and the last one to the number.
    pub path: Vec<u16>,
    /// The size of the number.
    pub bytes: u8,
    /// Whether the most significant byte comes first, as in network data.
    pub is_big_endian: bool,
}

/// From where the location of a text is counted. It is in the lower half of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextLocation {
    /// From the context on (`__data_loc`).
    Context,
    /// From the end of the word on (`__rel_loc`).
    Word,
}

/// Where the path of a field begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldBase {
    /// The context of the program.
    Context,
    /// The context of the program; the path leads to a word that says where the text of the field
    /// is, as in the formats of tracepoints. The text is cut to the length of the field, and always
    /// ends in a NUL.
    Text(TextLocation),
    /// The `task_struct` of the current task.
    Task,
    /// The guard's latest verdict on this processor.
    Verdict {
        /// The size of a verdict.
        bytes: u32,
        /// The number of verdicts, a power of two.
        processors: u32,
    },
    /// The result of this kernel helper, whose argument is the context.
    Helper(i32),
    /// This number.
    Number(u64),
}

impl FieldSource {
    /// A constant number.
    pub fn number(number: u64) -> Self {
        Self { base: FieldBase::Number(number), path: Vec::new(), bytes: 8, is_big_endian: false }
    }

    /// The result of this kernel helper.
    pub fn by_helper(function: i32) -> Self {
        Self { base: FieldBase::Helper(function), path: Vec::new(), bytes: 8, is_big_endian: false }
    }

    /// A field of the context, by its path.
    pub fn context(path: &[u16], bytes: u8) -> Self {
        Self { base: FieldBase::Context, path: path.into(), bytes, is_big_endian: false }
    }

    /// A field of the current task, by its path.
    pub fn task(path: &[u16], bytes: u8) -> Self {
        Self { base: FieldBase::Task, path: path.into(), bytes, is_big_endian: false }
    }

    /// The same field, with its most significant byte first.
    pub fn big_endian(self) -> Self {
        Self { is_big_endian: true, ..self }
    }
}

/// How the return value of a handler is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnPolicy {
    /// The caller gets the return value.
    Returned,
    /// The next plugin of the hook runs afterwards, if there is one.
    Chained {
        /// What the chain returns to the kernel after its last plugin.
        goes_on: i32,
        /// What the chain returns to the kernel if the handler returns a value other than 0. The
        /// chain then stops.
        stops: Option<DenyReturn>,
    },
}

/// What the kernel gets if a handler denies an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenyReturn {
    /// The return value.
    pub value: i32,
    /// Whether the denied operation fails with the handler's return value, if that is an errno.
    pub sets_errno: bool,
}

/// An error message, with the index of the selected event that has the error. The index is `None`
/// if no single event has it.
pub type HookError = (Option<usize>, String);

/// Describes the hooks that exist.
pub trait HookProvider {
    /// The names of all hooks.
    fn names(&self) -> Vec<String>;

    /// Whether handlers of different events of this hook have different attach points.
    fn has_separate_attach_points(&self, hook: &str) -> bool;

    /// The specification for the selected events of a hook.
    fn spec(&self, hook: &str, selected: &[String]) -> Result<HookSpec, HookError>;
}
