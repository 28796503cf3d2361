//! Virtual services, after Reumann, Mehra, Shin and Kandlur, "Virtual Services: A New Abstraction
//! for Server Consolidation" (USENIX ATC 2000). The crate has the tree of services, the rules that
//! assign a thread to a service at an event, and the tables by which the kernel side matches rules.
//! Pure, no I/O: the parser of rule files looks up users and paths through [`Host`].

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod conditions;
mod event;
mod hashed_ruleset;
mod limits;
mod parse;
mod query;
mod rule;
mod ruleset;
mod tree;
mod tuple_space;

pub use conditions::{Conditions, Folder, Listen};
pub use event::RuleEvent;
pub use hashed_ruleset::{HashedRule, HashedRuleset, Tuple, field};
pub use limits::{
    AtEnd, Errno, Limits, MEMORY_UNIT, NETWORK_UNIT, OverLimit, SOCKETS, TASKS, parse_bytes,
    parse_percent, parse_weight,
};
pub use parse::{Host, MAX_RULES, MAX_SERVICES, RuleFile, listen, parse};
pub use query::{LocalEnd, RuleQuery};
pub use rule::{Rule, RuleAction, SplitBy};
pub use ruleset::Ruleset;
pub use tree::{Id, Service, Tree};
pub use tuple_space::{MAX_TUPLES, TooManyTuples, TupleSpace};
