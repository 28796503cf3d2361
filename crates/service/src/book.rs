//! All rules, in the order in which they decide.

use crate::facts::Facts;
use crate::rule::Rule;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Book {
    rules: Vec<Rule>,
}

impl Book {
    /// Of equal priority and equally specific ones, the first comes first.
    pub fn new(mut rules: Vec<Rule>) -> Self {
        rules.sort_by(Rule::compare);
        Self { rules }
    }

    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The place of the rule that decides: the reference of [`crate::Tables`].
    pub fn decide(&self, facts: &Facts) -> Option<usize> {
        self.rules.iter().position(|rule| rule.fits(facts))
    }
}
