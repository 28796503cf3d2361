//! The scopes of names.

use std::collections::HashMap;

use crate::diagnostic::Span;
use crate::types::Type;

#[derive(Debug, Clone)]
pub enum Symbol {
    Local(usize),
    Global(usize),
    Map(usize),
    Function(usize),
    Constant(u64, Type),
    /// The name of a declaration whose error has been reported.
    Faulty,
}

/// The scopes, from the outermost to the innermost.
pub struct SymbolTable(Vec<HashMap<String, (Symbol, Span)>>);

impl SymbolTable {
    pub fn new() -> Self {
        Self(vec![HashMap::new()])
    }

    pub fn enter(&mut self) {
        self.0.push(HashMap::new());
    }

    pub fn leave(&mut self) {
        self.0.pop();
    }

    /// Declares a name. If the same scope already has it, returns the span of that declaration and
    /// changes nothing.
    pub fn declare(&mut self, name: &str, symbol: Symbol, span: Span) -> Option<Span> {
        let scope = self.0.last_mut().expect("there is an outermost one");
        if let Some((_, other)) = scope.get(name) {
            return Some(other.clone());
        }
        scope.insert(name.into(), (symbol, span));
        None
    }

    pub fn find(&self, name: &str) -> Option<&Symbol> {
        self.0.iter().rev().find_map(|scope| scope.get(name)).map(|(symbol, _)| symbol)
    }

    /// The function that the program itself declares with this name, whatever hides it.
    pub fn function(&self, name: &str) -> Option<usize> {
        match self.0.first()?.get(name)? {
            (Symbol::Function(number), _) => Some(*number),
            _ => None,
        }
    }

    /// Where the program declares a variable, a map or a constant of this name outside of functions
    /// and handlers.
    pub fn outermost(&self, name: &str) -> Option<Span> {
        match self.0.first()?.get(name)? {
            (Symbol::Function(_) | Symbol::Faulty, _) => None,
            (_, span) => Some(span.clone()),
        }
    }

    /// The names whose symbols satisfy the predicate.
    pub fn names(&self, is_wanted: impl Fn(&Symbol) -> bool) -> Vec<String> {
        let all = self.0.iter().flatten().filter(|(_, (symbol, _))| is_wanted(symbol));
        all.map(|(name, _)| name.clone()).collect()
    }
}
