//! What the places offer where plugins run. Which these are, and what they have on a machine, is said from outside.

use crate::program::Builtin;
use crate::types::Type;

/// Runs on demand: the plugin names its parameters itself, and has one handler for it.
pub const CALL: &str = "call";

/// A value that a handler can read by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub of: Type,
}

/// All that was selected of a hook, for one handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Those that all of it has in common.
    pub fields: Vec<Field>,
    pub entries: Vec<Entry>,
    pub ending: Ending,
    /// Functions that there are not, and why.
    pub lacks: Option<(&'static [Builtin], &'static str)>,
    /// Where there is a packet, the kernel's function that reads its bytes.
    pub packet: Option<i32>,
}

impl Offer {
    /// Whether what a handler returns refuses something.
    pub fn denies(&self) -> bool {
        matches!(self.ending, Ending::Chained { stops: Some(_), .. })
    }
}

/// One of the kernel's programs that a handler becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As libbpf names what kind of program it is, and where it is attached: `tp_btf/sys_enter`.
    pub section: &'static str,
    /// Of these, the first one whose conditions hold; where none does, the handler does not run.
    pub ways: Vec<Way>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    pub conditions: Vec<Condition>,
    /// Where each field is, in their order.
    pub fields: Vec<Source>,
}

/// So many of its bits are this number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub what: Source,
    pub mask: u64,
    pub is: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub base: Base,
    /// From there on: where the next pointer is in what the one before points to, and at last the number.
    pub path: Vec<u16>,
    pub bytes: u8,
    /// The most significant byte comes first in it, as in what the network brings.
    pub is_big_endian: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// What the kernel gives the program.
    Context,
    /// The `task_struct` of who runs it.
    Task,
    /// The guard's latest verdict on the processor: so many bytes for each of so many processors, a power of two.
    Verdict { bytes: u32, processors: u32 },
    /// No memory: what one of the kernel's functions says of the context.
    Asked(i32),
    /// No memory: the number itself.
    Number(u64),
}

impl Source {
    pub fn number(number: u64) -> Self {
        Self { base: Base::Number(number), path: Vec::new(), bytes: 8, is_big_endian: false }
    }

    pub fn asked(function: i32) -> Self {
        Self { base: Base::Asked(function), path: Vec::new(), bytes: 8, is_big_endian: false }
    }

    pub fn context(path: &[u16], bytes: u8) -> Self {
        Self { base: Base::Context, path: path.into(), bytes, is_big_endian: false }
    }

    pub fn task(path: &[u16], bytes: u8) -> Self {
        Self { base: Base::Task, path: path.into(), bytes, is_big_endian: false }
    }

    pub fn big_endian(self) -> Self {
        Self { is_big_endian: true, ..self }
    }
}

/// What becomes of the number that a handler returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It is the caller's.
    Returned,
    /// The next plugin of the hook runs then, where there is one.
    Chained {
        /// What the kernel gets from the last one.
        goes_on: i32,
        /// What it gets at once where the handler returns anything but 0.
        stops: Option<Stop>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    pub value: i32,
    /// What was refused fails with the error that the handler returns, where that is one.
    pub sets_errno: bool,
}

/// Which of the selected words it is about, if it is about one, and a sentence.
pub type Refusal = (Option<usize>, String);

pub trait Hooks {
    /// The names of all hooks.
    fn names(&self) -> Vec<String>;

    /// Whether handlers of different events of this hook stand at different places.
    fn splits(&self, hook: &str) -> bool;

    /// What there is of all that was selected of a hook.
    fn offer(&self, hook: &str, selected: &[String]) -> Result<Offer, Refusal>;
}
