//! The numbers by which the kernel side knows services. A name keeps its number from one rule file to the next.

use std::collections::HashMap;

use anyhow::{Result, bail};
use kernel::wire;
use service::{Id, Tree};

/// A service as the kernel side has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    pub name: String,
    pub parent: u16,
    /// It is in the rule file in force.
    pub is_there: bool,
}

/// By number.
#[derive(Debug, Default)]
pub struct Numbers {
    services: Vec<Numbered>,
    numbers: HashMap<String, u16>,
}

/// What a new rule file changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub added: Vec<u16>,
    /// With whom its members belong to from now on.
    pub gone: Vec<(u16, u16)>,
}

impl Numbers {
    /// Numbers all services of a tree. Nothing is changed where there are too many.
    pub fn take(&mut self, tree: &Tree) -> Result<Change> {
        let new = tree.ids().filter(|id| !self.numbers.contains_key(tree.name(*id))).count();
        if self.services.len() + new > wire::SERVICES as usize {
            bail!(
                "there were {} different services since the daemon was started, of which {} are possible: start it anew",
                self.services.len() + new,
                wire::SERVICES
            );
        }
        let before: Vec<_> = self.services.iter().map(|service| service.is_there).collect();
        self.services.iter_mut().for_each(|service| service.is_there = false);
        for id in tree.ids() {
            let name = tree.name(id);
            let number = *self.numbers.entry(name.into()).or_insert_with(|| {
                self.services.push(Numbered { name: name.into(), parent: 0, is_there: true });
                self.services.len() as u16 - 1
            });
            self.services[usize::from(number)].is_there = true;
        }
        for id in tree.ids() {
            let (number, parent) = (self.of(tree, id), self.of(tree, tree.get(id).parent));
            self.services[usize::from(number)].parent = parent;
        }
        let mut change = Change::default();
        for number in 0..self.services.len() as u16 {
            let was_there = before.get(usize::from(number)).copied().unwrap_or_default();
            match (was_there, self.get(number).is_there) {
                (false, true) => change.added.push(number),
                (true, false) => change.gone.push((number, self.heir(number))),
                _ => {}
            }
        }
        Ok(change)
    }

    pub fn of(&self, tree: &Tree, id: Id) -> u16 {
        self.numbers[tree.name(id)]
    }

    pub fn get(&self, number: u16) -> &Numbered {
        &self.services[usize::from(number)]
    }

    pub fn find(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied().filter(|number| self.get(*number).is_there)
    }

    /// Itself, or the nearest above that is there. The root always is.
    pub fn heir(&self, number: u16) -> u16 {
        let mut heir = number;
        while !self.get(heir).is_there {
            heir = self.get(heir).parent;
        }
        heir
    }

    /// Those of the rule file in force.
    pub fn there(&self) -> impl Iterator<Item = u16> {
        (0..self.services.len() as u16).filter(|number| self.get(*number).is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(services: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (name, parent) in services {
            let id = tree.add(name);
            tree.place(id, tree.find(parent).expect("it is there")).expect("no cycle");
        }
        tree
    }

    #[test]
    fn names_keep_their_numbers_and_members_go_up() {
        let mut numbers = Numbers::default();
        let change = numbers.take(&tree(&[("all", "root"), ("a", "all"), ("b", "a")])).expect("few");
        assert_eq!(change, Change { added: vec![0, 1, 2, 3, 4], gone: Vec::new() });
        let b = numbers.find("b").expect("numbered");
        let change = numbers.take(&tree(&[("c", "root"), ("all", "root")])).expect("few");
        assert_eq!(change, Change { added: vec![5], gone: vec![(3, 2), (4, 2)] });
        assert_eq!(numbers.find("b"), None);
        assert_eq!(numbers.heir(b), 2);
        let change = numbers.take(&tree(&[("b", "root")])).expect("few");
        assert_eq!(change, Change { added: vec![b], gone: vec![(2, 0), (5, 0)] });
        assert_eq!((numbers.find("b"), numbers.heir(3)), (Some(b), 0));
    }
}
