//! Rule matching as the kernel side does it: one look-up by exact values for each event and shape
//! of conditions, regardless of the number of rules (tuple space search; Srinivasan, Suri and
//! Varghese, SIGCOMM 1999).

use std::collections::{BTreeMap, HashMap};

use crate::conditions::{Conditions, Shape};
use crate::event::RuleEvent;
use crate::query::RuleQuery;
use crate::ruleset::Ruleset;

/// The maximum number of look-ups for one event. The value is our choice; a look-up takes about 20
/// ns.
pub const MAX_TUPLES: usize = 32;

/// The rules on an event have more shapes of conditions than [`MAX_TUPLES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyTuples {
    /// The event.
    pub event: RuleEvent,
    /// The number of shapes.
    pub tuples: usize,
}

/// The precedences of the rules of one shape, by the values of their conditions. If several rules
/// have equal values, the first one counts.
type TupleTable = HashMap<Conditions, usize>;

/// The rules of each event by the shape of their conditions (tuple space search).
#[derive(Debug, Clone, Default)]
pub struct TupleSpace {
    tuples: HashMap<(RuleEvent, bool), BTreeMap<Shape, TupleTable>>,
}

impl TupleSpace {
    /// Sorts the rules of a ruleset into tuples.
    pub fn new(ruleset: &Ruleset) -> Result<Self, TooManyTuples> {
        let mut space = Self::default();
        for event in RuleEvent::ALL {
            for on_behalf in [false, true] {
                let tuples: &mut BTreeMap<Shape, TupleTable> =
                    space.tuples.entry((event, on_behalf)).or_default();
                for (precedence, rule) in ruleset.rules().iter().enumerate() {
                    if rule.applies_to(event, on_behalf) {
                        let table = tuples.entry(rule.conditions.shape()).or_default();
                        table.entry(rule.conditions.clone()).or_insert(precedence);
                    }
                }
                if tuples.len() > MAX_TUPLES {
                    return Err(TooManyTuples { event, tuples: tuples.len() });
                }
            }
        }
        Ok(space)
    }

    /// The number of look-ups for an event.
    pub fn tuple_count(&self, event: RuleEvent) -> usize {
        self.tuples[&(event, false)].len()
    }

    /// As [`Ruleset::match_rule`].
    pub fn match_rule(&self, query: &RuleQuery) -> Option<usize> {
        let tuples = &self.tuples[&(query.event, query.on_behalf)];
        let found = |(shape, table): (&Shape, &TupleTable)| {
            table.get(&Conditions::project(query, shape)?).copied()
        };
        tuples.iter().filter_map(found).min()
    }
}
