//! Virtual services, after Reumann, Mehra, Shin and Kandlur, "Virtual Services: A New Abstraction for Server
//! Consolidation" (USENIX ATC 2000): a tree of services, rules that say for which of them a thread works from an event
//! on, and the tables by which the kernel side decides. Pure, no I/O: what a rule file needs to know of the machine it is
//! told by its [`Host`].

#![forbid(unsafe_code)]

mod book;
mod conditions;
mod facts;
mod keys;
mod limits;
mod parse;
mod rule;
mod tables;
mod tree;

pub use book::Book;
pub use conditions::{Conditions, Folder, Listen};
pub use facts::{Facts, Local};
pub use keys::{Key, Keys, Set, field};
pub use limits::{
    AtEnd, Beyond, Errno, Limits, MEMORY_UNIT, NETWORK_UNIT, SOCKETS, TASKS, parse_bytes, parse_percent,
    parse_weight,
};
pub use parse::{Host, MOST_RULES, MOST_SERVICES, Problem, RuleFile, listen, parse};
pub use rule::{Directive, Each, Event, Rule};
pub use tables::{MOST_SETS, Tables, TooManySets};
pub use tree::{Id, Service, Tree};
