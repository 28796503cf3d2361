//! The rules in the form of the kernel side's tables, with hashes of the conditions' values.
//! bpf/service/rules.bpf.h computes the same hashes.

use std::collections::HashSet;
use std::net::IpAddr;

use identity::hash;

use crate::conditions::{AddressFamily, Conditions, Listen, Shape};
use crate::event::RuleEvent;
use crate::rule::Rule;
use crate::ruleset::Ruleset;
use crate::tree::Id;
use crate::tuple_space::{MAX_TUPLES, TooManyTuples};

/// The conditions of a tuple: one bit each, in the order in which their values are hashed.
pub mod field {
    /// The path of the executable.
    pub const EXE: u16 = 1 << 0;
    /// The effective user.
    pub const USER: u16 = 1 << 1;
    /// The systemd unit.
    pub const UNIT: u16 = 1 << 2;
    /// The thread's service.
    pub const SERVICE: u16 = 1 << 3;
    /// The path of the Unix socket on which the server listens.
    pub const LISTEN_PATH: u16 = 1 << 4;
    /// The address on which the server listens.
    pub const LISTEN_ADDRESS: u16 = 1 << 5;
    /// The port on which the server listens.
    pub const LISTEN_PORT: u16 = 1 << 6;
    /// The network of the client.
    pub const CLIENT: u16 = 1 << 7;
    /// The service of the connection's other end.
    pub const PEER: u16 = 1 << 8;
    /// The control group.
    pub const CGROUP: u16 = 1 << 9;
    /// The opened file.
    pub const FILE: u16 = 1 << 10;
}

/// Rules of the same shape, no two of which have equal conditions. One look-up matches them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Bits of [`field`].
    pub fields: u16,
    /// The depth of the control group in the condition; 0 without [`field::CGROUP`].
    pub cgroup_depth: u8,
    /// The IP version (4 or 6) and the length of the prefix; zeroes without [`field::CLIENT`].
    pub client: (u8, u8),
    /// The depth of the file or folder in the condition; 0 without [`field::FILE`].
    pub file_depth: u8,
}

/// The key under which the kernel side finds a rule, and the rule's precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashedRule {
    /// Index into [`HashedRuleset::tuples`].
    pub tuple: usize,
    /// The hash of the tuple's conditions with the rule's values.
    pub hash: u64,
    /// The precedence of the rule in the ruleset.
    pub precedence: usize,
}

/// A ruleset in the form of the kernel side's tables.
#[derive(Debug, Clone, Default)]
pub struct HashedRuleset {
    /// All tuples.
    pub tuples: Vec<Tuple>,
    /// For each event of [`RuleEvent::ALL`], indices into `tuples`.
    pub tuples_by_event: [Vec<usize>; RuleEvent::ALL.len()],
    /// All rules, in the form of hash table entries.
    pub rules: Vec<HashedRule>,
}

impl HashedRuleset {
    /// Hashes the rules of a ruleset with the salt of a gate. `number` returns the number that a
    /// service has in the gate.
    pub fn new(
        ruleset: &Ruleset,
        salt: u64,
        number: impl Fn(Id) -> u16,
    ) -> Result<Self, TooManyTuples> {
        let mut hashed = Self::default();
        let mut shapes: Vec<(Shape, HashSet<&Conditions>)> = Vec::new();
        for (precedence, rule) in ruleset.rules().iter().enumerate() {
            let shape = rule.conditions.shape();
            // Rules on different events may have equal conditions. Such rules need different
            // tuples.
            let has_room = |(other, conditions): &(Shape, HashSet<_>)| {
                *other == shape && !conditions.contains(&rule.conditions)
            };
            let tuple = shapes.iter().position(has_room).unwrap_or(shapes.len());
            if tuple == shapes.len() {
                shapes.push((shape, HashSet::new()));
                hashed.tuples.push(Tuple::of(&shape));
            }
            shapes[tuple].1.insert(&rule.conditions);
            hashed.add_to_event(tuple, rule)?;
            hashed.rules.push(HashedRule {
                tuple,
                hash: hash(salt, &rule.conditions, &number),
                precedence,
            });
        }
        Ok(hashed)
    }

    fn add_to_event(&mut self, tuple: usize, rule: &Rule) -> Result<(), TooManyTuples> {
        for (event, tuples) in RuleEvent::ALL.into_iter().zip(&mut self.tuples_by_event) {
            if rule.events.contains(&event) && !tuples.contains(&tuple) {
                tuples.push(tuple);
                if tuples.len() > MAX_TUPLES {
                    return Err(TooManyTuples { event, tuples: tuples.len() });
                }
            }
        }
        Ok(())
    }
}

impl Tuple {
    fn of(shape: &Shape) -> Self {
        let bits = [
            (shape.exe, field::EXE),
            (shape.user, field::USER),
            (shape.unit, field::UNIT),
            (shape.service, field::SERVICE),
            (shape.listen_path, field::LISTEN_PATH),
            (shape.listen_address, field::LISTEN_ADDRESS),
            (shape.listen_port, field::LISTEN_PORT),
            (shape.client.is_some(), field::CLIENT),
            (shape.peer, field::PEER),
            (shape.cgroup_depth > 0, field::CGROUP),
            (shape.file_depth > 0, field::FILE),
        ];
        Self {
            fields: bits
                .into_iter()
                .filter(|(is_there, _)| *is_there)
                .fold(0, |all, (_, bit)| all | bit),
            cgroup_depth: shape.cgroup_depth,
            client: shape.client.map_or((0, 0), |(family, bits)| {
                (if family == AddressFamily::V4 { 4 } else { 6 }, bits)
            }),
            file_depth: shape.file_depth,
        }
    }
}

/// Hashes the text in words of eight bytes, and then its length. The last word is padded with
/// zeroes.
fn text(salt: u64, text: &str) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    hash::word(text.as_bytes().chunks(8).map(word).fold(salt, hash::word), text.len() as u64)
}

fn path(salt: u64, path: &str) -> u64 {
    path.split('/')
        .filter(|part| !part.is_empty())
        .map(|part| text(salt, part))
        .fold(salt, hash::word)
}

/// The address as IPv6; an IPv4 address is mapped.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address_words(octets: [u8; 16], word: fn([u8; 8]) -> u64) -> [u64; 2] {
    let half = |at| word(octets[at..at + 8].try_into().expect("8 bytes"));
    [half(0), half(8)]
}

fn hash(salt: u64, conditions: &Conditions, number: impl Fn(Id) -> u16) -> u64 {
    let Listen { address, port, path: listen_path } = &conditions.listen;
    let address = address.map(|address| {
        address_words(octets(address), u64::from_le_bytes).into_iter().fold(salt, hash::word)
    });
    let [upper, lower] = match conditions.client {
        Some(network) => address_words(octets(network.network()), u64::from_be_bytes).map(Some),
        None => [None; 2],
    };
    let values = [
        conditions.exe.as_deref().map(|exe| path(salt, exe)),
        conditions.user.map(u64::from),
        conditions.unit.as_deref().map(|unit| text(salt, unit)),
        conditions.service.map(|id| number(id).into()),
        listen_path.as_deref().map(|path| text(salt, path)),
        address,
        port.map(u64::from),
        upper,
        lower,
        conditions.peer.map(|id| number(id).into()),
        conditions.cgroup.as_ref().map(|folder| path(salt, folder.as_str())),
        conditions.file.as_ref().map(|folder| path(salt, folder.as_str())),
    ];
    values.into_iter().flatten().fold(salt, hash::word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::RuleAction;

    fn rule(conditions: Conditions, events: &[RuleEvent]) -> Rule {
        Rule {
            name: None,
            span: 0..0,
            priority: 0,
            events: events.to_vec(),
            has_explicit_events: true,
            conditions,
            action: RuleAction::Inherits,
        }
    }

    #[test]
    fn same_conditions_on_other_events_are_another_tuple() {
        let user = |user| Conditions { user: Some(user), ..Conditions::default() };
        let ruleset = Ruleset::new(vec![
            rule(user(1), &[RuleEvent::Exec]),
            rule(user(2), &[RuleEvent::Exec, RuleEvent::Found]),
            rule(user(1), &[RuleEvent::Found]),
        ]);
        let hashed = HashedRuleset::new(&ruleset, 7, |id| id.0).expect("few tuples");
        assert_eq!(
            hashed.tuples,
            [Tuple { fields: field::USER, cgroup_depth: 0, client: (0, 0), file_depth: 0 }; 2]
        );
        assert_eq!(hashed.rules.iter().map(|key| key.tuple).collect::<Vec<_>>(), [0, 0, 1]);
        assert_eq!(hashed.tuples_by_event[1], [0]);
        assert_eq!(hashed.tuples_by_event[2], [0, 1]);
        assert_eq!(hashed.rules[0].hash, hashed.rules[2].hash);
        assert_ne!(hashed.rules[0].hash, hashed.rules[1].hash);
    }

    #[test]
    fn different_conditions_have_different_hashes() {
        assert_ne!(path(1, "/usr/bin"), path(1, "/usr/sbin"));
        assert_ne!(path(1, "/usr/bin"), path(2, "/usr/bin"));
        assert_ne!(path(1, "/a/b"), path(1, "/b/a"));
        assert_ne!(text(1, "a"), text(1, "a\0"));
        assert_eq!(path(1, "/usr/bin/"), path(1, "/usr/bin"));
    }
}
