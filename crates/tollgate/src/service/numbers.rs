//! The numbers by which the kernel side knows services. A name keeps its number from one rule file to the next, as long as it is
//! in each of them.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
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

#[derive(Debug, Default, Clone)]
pub struct Numbers {
    services: BTreeMap<u16, Numbered>,
    numbers: HashMap<String, u16>,
    /// How many names had a number.
    named: usize,
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
        let new = tree.ids().filter(|id| self.find(tree.name(*id)).is_none()).count();
        if self.named + new > wire::SERVICES_STARTED as usize {
            bail!(
                "there were {} services since the daemon was started, those that came back counted anew, of which {} are possible: start it anew",
                self.named + new,
                wire::SERVICES_STARTED
            );
        }
        let before: Vec<_> = self.there().collect();
        // One that is back is another one: who worked for the first, and sleeps, is not the second's.
        let services = &self.services;
        self.numbers.retain(|_, number| services[number].is_there);
        let named = |(number, _): &(&u16, &mut Numbered)| u32::from(**number) < wire::SERVICES_STARTED;
        self.services.iter_mut().filter(named).for_each(|(_, service)| service.is_there = false);
        for id in tree.ids() {
            let name = tree.name(id);
            let number = *self.numbers.entry(name.into()).or_insert_with(|| {
                self.named += 1;
                self.named as u16 - 1
            });
            let numbered = Numbered { name: name.into(), parent: 0, is_there: true };
            self.services.insert(number, numbered);
        }
        for id in tree.ids() {
            let (number, parent) = (self.of(tree, id), self.of(tree, tree.get(id).parent));
            self.services.get_mut(&number).expect("numbered above").parent = parent;
        }
        // Those that rules have started go with the one below which they are.
        for number in &before {
            let parent_is_there = self.get(self.get(*number).parent).is_there;
            if !parent_is_there && u32::from(*number) >= wire::SERVICES_STARTED {
                self.services.get_mut(number).expect("it was there").is_there = false;
            }
        }
        let gone = before.iter().copied().filter(|number| !self.get(*number).is_there);
        let gone = gone.map(|number| (number, self.heir(number))).collect();
        let added = self.there().filter(|number| !before.contains(number)).collect();
        Ok(Change { added, gone })
    }

    /// One that a rule has started.
    pub fn start(&mut self, number: u16, name: String, parent: u16) {
        self.numbers.insert(name.clone(), number);
        self.services.insert(number, Numbered { name, parent, is_there: true });
    }

    /// Those that are not there any more, each with whom its members belong to.
    pub fn gone(&self) -> Vec<(u16, u16)> {
        let gone = self.services.iter().filter(|(_, service)| !service.is_there);
        gone.map(|(number, _)| (*number, self.heir(*number))).collect()
    }

    pub fn is_known(&self, number: u16) -> bool {
        self.services.contains_key(&number)
    }

    pub fn of(&self, tree: &Tree, id: Id) -> u16 {
        self.numbers[tree.name(id)]
    }

    pub fn get(&self, number: u16) -> &Numbered {
        &self.services[&number]
    }

    pub fn find(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied().filter(|number| self.get(*number).is_there)
    }

    pub fn named(&self, name: &str) -> Result<u16> {
        self.find(name).with_context(|| {
            format!("there is no service {name:?}: `tollgate service list` shows those that there are")
        })
    }

    /// Itself, or the nearest above that is there. The root always is.
    pub fn heir(&self, number: u16) -> u16 {
        let mut heir = number;
        // One that was started a moment ago has no name yet.
        while let Some(gone) = self.services.get(&heir).filter(|service| !service.is_there) {
            heir = gone.parent;
        }
        heir
    }

    /// Itself, those above, but for the root.
    pub fn way_up(&self, number: u16) -> impl Iterator<Item = u16> {
        let first = Some(self.heir(number)).filter(|number| *number != Id::ROOT.0);
        let parent = |number: &u16| self.services.get(number).map(|service| service.parent);
        std::iter::successors(first, move |number| parent(number).filter(|parent| *parent != Id::ROOT.0))
    }

    /// Also those that are gone.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        self.services.keys().copied()
    }

    /// Those of the rule file in force, and those that its rules have started.
    pub fn there(&self) -> impl Iterator<Item = u16> {
        self.services.iter().filter(|(_, service)| service.is_there).map(|(number, _)| *number)
    }

    /// Those, each before those below it, with how deep it is in the tree.
    pub fn as_tree(&self) -> Vec<(u16, usize)> {
        let mut below: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for number in self.there().filter(|number| *number != Id::ROOT.0) {
            below.entry(self.get(number).parent).or_default().push(number);
        }
        let mut open = vec![(Id::ROOT.0, 0)];
        let mut all = Vec::new();
        while let Some((number, depth)) = open.pop() {
            all.push((number, depth));
            let children = below.get(&number).into_iter().flatten().rev();
            open.extend(children.map(|child| (*child, depth + 1)));
        }
        all
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
        assert_eq!(numbers.as_tree(), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3)]);
        let b = numbers.find("b").expect("numbered");
        let change = numbers.take(&tree(&[("c", "root"), ("all", "root")])).expect("few");
        assert_eq!(change, Change { added: vec![5], gone: vec![(3, 2), (4, 2)] });
        assert_eq!(numbers.find("b"), None);
        assert_eq!(numbers.heir(b), 2);
        let change = numbers.take(&tree(&[("b", "root")])).expect("few");
        assert_eq!(change, Change { added: vec![6], gone: vec![(2, 0), (5, 0)] });
        assert_eq!((numbers.find("b"), numbers.heir(b), numbers.heir(3)), (Some(6), 0, 0));
    }

    #[test]
    fn what_a_rule_has_started_goes_with_the_one_above() {
        let mut numbers = Numbers::default();
        numbers.take(&tree(&[("users", "root")])).expect("few");
        let started = wire::SERVICES_STARTED as u16;
        numbers.start(started, "users:ann".into(), 2);
        let change = numbers.take(&tree(&[("users", "root"), ("other", "root")])).expect("few");
        assert_eq!(change, Change { added: vec![3], gone: Vec::new() });
        let change = numbers.take(&tree(&[("other", "root")])).expect("few");
        assert_eq!(change, Change { added: Vec::new(), gone: vec![(2, 0), (started, 0)] });
    }
}
