//! The numbers of services on the kernel side. A service keeps its number as long as each new rule
//! file has a service of the same name.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail};
use kernel::wire;
use service::{Id, Tree};

/// A service that has a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredService {
    pub name: String,
    pub parent: u16,
    /// Whether the active rule file has the service.
    pub is_active: bool,
}

#[derive(Debug, Default, Clone)]
pub struct ServiceRegistry {
    services: BTreeMap<u16, RegisteredService>,
    numbers: HashMap<String, u16>,
    /// The number of names that have ever had a number.
    named: usize,
}

/// The changes that a new rule file makes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceChange {
    pub added: Vec<u16>,
    /// Removed services, each with its successor.
    pub removed: Vec<(u16, u16)>,
}

impl ServiceRegistry {
    /// Numbers all services of a tree. Changes nothing if there are too many.
    pub fn update(&mut self, tree: &Tree) -> Result<ServiceChange> {
        let new = tree.ids().filter(|id| self.find(tree.name(*id)).is_none()).count();
        if self.named + new > wire::SERVICES_DYNAMIC as usize {
            bail!(
                "the daemon has used {} service IDs since it was started (a service that comes \
                back gets a new one), but only {} are possible: restart it",
                self.named + new,
                wire::SERVICES_DYNAMIC
            );
        }
        let before: Vec<_> = self.active().collect();
        // A name that comes back gets a new number: sleeping threads of the removed service must
        // not belong to the new one.
        let services = &self.services;
        self.numbers.retain(|_, number| services[number].is_active);
        let named = |(number, _): &(&u16, &mut RegisteredService)| {
            u32::from(**number) < wire::SERVICES_DYNAMIC
        };
        self.services.iter_mut().filter(named).for_each(|(_, service)| service.is_active = false);
        for id in tree.ids() {
            let name = tree.name(id);
            let number = *self.numbers.entry(name.into()).or_insert_with(|| {
                self.named += 1;
                self.named as u16 - 1
            });
            let numbered = RegisteredService { name: name.into(), parent: 0, is_active: true };
            self.services.insert(number, numbered);
        }
        for id in tree.ids() {
            let (number, parent) = (self.of(tree, id), self.of(tree, tree.get(id).parent));
            self.services.get_mut(&number).expect("numbered above").parent = parent;
        }
        // Dynamic services are removed together with their parent.
        for number in &before {
            let parent_is_there = self.get(self.get(*number).parent).is_active;
            if !parent_is_there && u32::from(*number) >= wire::SERVICES_DYNAMIC {
                self.services.get_mut(number).expect("it was there").is_active = false;
            }
        }
        let removed = before.iter().copied().filter(|number| !self.get(*number).is_active);
        let removed = removed.map(|number| (number, self.successor(number))).collect();
        let added = self.active().filter(|number| !before.contains(number)).collect();
        Ok(ServiceChange { added, removed })
    }

    /// Adds a dynamic service.
    pub fn add_dynamic(&mut self, number: u16, name: String, parent: u16) {
        self.numbers.insert(name.clone(), number);
        self.services.insert(number, RegisteredService { name, parent, is_active: true });
    }

    /// Removed services, each with its successor.
    pub fn removed(&self) -> Vec<(u16, u16)> {
        let removed = self.services.iter().filter(|(_, service)| !service.is_active);
        removed.map(|(number, _)| (*number, self.successor(*number))).collect()
    }

    pub fn is_known(&self, number: u16) -> bool {
        self.services.contains_key(&number)
    }

    pub fn of(&self, tree: &Tree, id: Id) -> u16 {
        self.numbers[tree.name(id)]
    }

    pub fn get(&self, number: u16) -> &RegisteredService {
        &self.services[&number]
    }

    pub fn find(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied().filter(|number| self.get(*number).is_active)
    }

    pub fn require(&self, name: &str) -> Result<u16> {
        self.find(name).with_context(|| {
            format!("there is no service {name:?}: `tollgate service list` lists the services")
        })
    }

    /// The service itself or, if it was removed, its nearest active ancestor. The root is always
    /// active.
    pub fn successor(&self, number: u16) -> u16 {
        let mut successor = number;
        // A dynamic service that was created a moment ago may not be registered yet.
        while let Some(removed) = self.services.get(&successor).filter(|service| !service.is_active)
        {
            successor = removed.parent;
        }
        successor
    }

    /// The service itself and its ancestors, without the root.
    pub fn ancestors(&self, number: u16) -> impl Iterator<Item = u16> {
        let first = Some(self.successor(number)).filter(|number| *number != Id::ROOT.0);
        let parent = |number: &u16| self.services.get(number).map(|service| service.parent);
        std::iter::successors(first, move |number| {
            parent(number).filter(|parent| *parent != Id::ROOT.0)
        })
    }

    /// All services, including removed ones.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        self.services.keys().copied()
    }

    /// The services of the active rule file, and the dynamic services.
    pub fn active(&self) -> impl Iterator<Item = u16> {
        self.services.iter().filter(|(_, service)| service.is_active).map(|(number, _)| *number)
    }

    /// The active services, parents first, each with its depth in the tree.
    pub fn in_tree_order(&self) -> Vec<(u16, usize)> {
        let mut below: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for number in self.active().filter(|number| *number != Id::ROOT.0) {
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
            tree.set_parent(id, tree.find(parent).expect("it is there")).expect("no cycle");
        }
        tree
    }

    #[test]
    fn ids_are_stable_and_members_move_to_parents() {
        let mut numbers = ServiceRegistry::default();
        let change =
            numbers.update(&tree(&[("all", "root"), ("a", "all"), ("b", "a")])).expect("few");
        assert_eq!(change, ServiceChange { added: vec![0, 1, 2, 3, 4], removed: Vec::new() });
        assert_eq!(numbers.in_tree_order(), [(0, 0), (1, 1), (2, 1), (3, 2), (4, 3)]);
        let b = numbers.find("b").expect("numbered");
        let change = numbers.update(&tree(&[("c", "root"), ("all", "root")])).expect("few");
        assert_eq!(change, ServiceChange { added: vec![5], removed: vec![(3, 2), (4, 2)] });
        assert_eq!(numbers.find("b"), None);
        assert_eq!(numbers.successor(b), 2);
        let change = numbers.update(&tree(&[("b", "root")])).expect("few");
        assert_eq!(change, ServiceChange { added: vec![6], removed: vec![(2, 0), (5, 0)] });
        assert_eq!(
            (numbers.find("b"), numbers.successor(b), numbers.successor(3)),
            (Some(6), 0, 0)
        );
    }

    #[test]
    fn dynamic_service_goes_with_its_parent() {
        let mut numbers = ServiceRegistry::default();
        numbers.update(&tree(&[("users", "root")])).expect("few");
        let started = wire::SERVICES_DYNAMIC as u16;
        numbers.add_dynamic(started, "users:ann".into(), 2);
        let change = numbers.update(&tree(&[("users", "root"), ("other", "root")])).expect("few");
        assert_eq!(change, ServiceChange { added: vec![3], removed: Vec::new() });
        let change = numbers.update(&tree(&[("other", "root")])).expect("few");
        assert_eq!(
            change,
            ServiceChange { added: Vec::new(), removed: vec![(2, 0), (started, 0)] }
        );
    }
}
