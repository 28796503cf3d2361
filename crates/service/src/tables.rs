//! The rules as the kernel asks them: for each event and shape of conditions one look-up by exact values, however many
//! rules there are (tuple space search; Srinivasan, Suri and Varghese, SIGCOMM 1999).

use std::collections::{BTreeMap, HashMap};

use crate::book::Book;
use crate::conditions::{Conditions, Shape};
use crate::facts::Facts;
use crate::rule::Event;

/// Our choice: look-ups that one event may cost, some 20 ns each.
pub const MOST_SETS: usize = 32;

/// More shapes of conditions than one event may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManySets {
    pub event: Event,
    pub sets: usize,
}

/// Rules of one shape, by their conditions' values: the place of the first one in the book.
type Set = HashMap<Conditions, usize>;

#[derive(Debug, Clone, Default)]
pub struct Tables {
    sets: HashMap<(Event, bool), BTreeMap<Shape, Set>>,
}

impl Tables {
    pub fn new(book: &Book) -> Result<Self, TooManySets> {
        let mut tables = Self::default();
        for event in Event::ALL {
            for borrowed in [false, true] {
                let sets: &mut BTreeMap<Shape, Set> = tables.sets.entry((event, borrowed)).or_default();
                for (place, rule) in book.rules().iter().enumerate() {
                    if rule.hears_of(event, borrowed) {
                        let set = sets.entry(rule.when.shape()).or_default();
                        set.entry(rule.when.clone()).or_insert(place);
                    }
                }
                if sets.len() > MOST_SETS {
                    return Err(TooManySets { event, sets: sets.len() });
                }
            }
        }
        Ok(tables)
    }

    /// Look-ups that the event costs.
    pub fn sets(&self, event: Event) -> usize {
        self.sets[&(event, false)].len()
    }

    /// As [`Book::decide`].
    pub fn decide(&self, facts: &Facts) -> Option<usize> {
        let sets = &self.sets[&(facts.event, facts.borrowed)];
        let found = |(shape, set): (&Shape, &Set)| set.get(&Conditions::of(facts, shape)?).copied();
        sets.iter().filter_map(found).min()
    }
}
