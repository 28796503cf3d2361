//! Rule matching as the kernel side does it: one look-up by exact values for each event and shape
//! of conditions, regardless of the number of rules (tuple space search; Srinivasan, Suri and
//! Varghese, SIGCOMM 1999).

use std::collections::{BTreeMap, HashMap};

use crate::conditions::{Conditions, Shape};
use crate::event::RuleEvent;
use crate::query::RuleQuery;
use crate::ruleset::Ruleset;

/// The most look-ups for one event, about 20 ns each. Our choice.
pub const MAX_TUPLES: usize = 32;

/// The rules on an event have more shapes of conditions than [`MAX_TUPLES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyTuples {
    /// The event.
    pub event: RuleEvent,
    /// The number of shapes.
    pub sets: usize,
}

/// The rules of one shape, by the values of their conditions. For rules with equal values, this has
/// the precedence of the first one.
type TupleTable = HashMap<Conditions, usize>;

/// The rules of each event by the shape of their conditions (tuple space search).
#[derive(Debug, Clone, Default)]
pub struct TupleSpace {
    sets: HashMap<(RuleEvent, bool), BTreeMap<Shape, TupleTable>>,
}

impl TupleSpace {
    /// Sorts the rules of a ruleset into tuples.
    pub fn new(book: &Ruleset) -> Result<Self, TooManyTuples> {
        let mut tables = Self::default();
        for event in RuleEvent::ALL {
            for borrowed in [false, true] {
                let sets: &mut BTreeMap<Shape, TupleTable> =
                    tables.sets.entry((event, borrowed)).or_default();
                for (place, rule) in book.rules().iter().enumerate() {
                    if rule.applies_to(event, borrowed) {
                        let set = sets.entry(rule.when.shape()).or_default();
                        set.entry(rule.when.clone()).or_insert(place);
                    }
                }
                if sets.len() > MAX_TUPLES {
                    return Err(TooManyTuples { event, sets: sets.len() });
                }
            }
        }
        Ok(tables)
    }

    /// The number of look-ups for an event.
    pub fn sets(&self, event: RuleEvent) -> usize {
        self.sets[&(event, false)].len()
    }

    /// As [`Ruleset::match_rule`].
    pub fn match_rule(&self, facts: &RuleQuery) -> Option<usize> {
        let sets = &self.sets[&(facts.event, facts.on_behalf)];
        let found = |(shape, set): (&Shape, &TupleTable)| {
            set.get(&Conditions::project(facts, shape)?).copied()
        };
        sets.iter().filter_map(found).min()
    }
}
