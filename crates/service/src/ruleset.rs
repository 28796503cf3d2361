//! All rules, in the order of their precedence.

use crate::query::RuleQuery;
use crate::rule::Rule;

/// The rules of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruleset {
    rules: Vec<Rule>,
}

impl Ruleset {
    /// Sorts the rules. Rules with equal priority and equally specific conditions keep their order.
    pub fn new(mut rules: Vec<Rule>) -> Self {
        rules.sort_by(Rule::compare);
        Self { rules }
    }

    /// The rules in the order of their precedence.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The precedence of the first rule that matches. This is the reference for
    /// [`crate::TupleSpace`].
    pub fn match_rule(&self, query: &RuleQuery) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matches(query))
    }
}
