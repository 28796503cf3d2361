//! Which name means what, and where.

use std::collections::HashMap;

use crate::diagnostic::Span;
use crate::types::Type;

#[derive(Debug, Clone)]
pub enum Named {
    Local(usize),
    Global(usize),
    Map(usize),
    Function(usize),
    Constant(u64, Type),
    /// By a declaration that has been told of.
    Faulty,
}

/// From the outermost on.
pub struct Scopes(Vec<HashMap<String, (Named, Span)>>);

impl Scopes {
    pub fn new() -> Self {
        Self(vec![HashMap::new()])
    }

    pub fn enter(&mut self) {
        self.0.push(HashMap::new());
    }

    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// Where the same scope has the name already, that is said, and nothing changed.
    pub fn declare(&mut self, name: &str, named: Named, span: Span) -> Option<Span> {
        let scope = self.0.last_mut().expect("there is an outermost one");
        if let Some((_, other)) = scope.get(name) {
            return Some(other.clone());
        }
        scope.insert(name.into(), (named, span));
        None
    }

    pub fn find(&self, name: &str) -> Option<&Named> {
        self.0.iter().rev().find_map(|scope| scope.get(name)).map(|(named, _)| named)
    }

    /// Of which this is so.
    pub fn names(&self, is_wanted: impl Fn(&Named) -> bool) -> Vec<String> {
        let all = self.0.iter().flatten().filter(|(_, (named, _))| is_wanted(named));
        all.map(|(name, _)| name.clone()).collect()
    }
}
