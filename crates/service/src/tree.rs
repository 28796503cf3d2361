//! The tree of services: names, numbers and parents.

use std::collections::HashMap;

/// A service's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u16);

impl Id {
    /// Work that belongs to no other service.
    pub const ROOT: Self = Self(0);
    /// Work that cannot be attributed to a service.
    pub const SHARED: Self = Self(1);
}

/// A service in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The name, which is unique.
    pub name: String,
    /// The parent. The root is its own parent.
    pub parent: Id,
}

/// The services, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    services: Vec<Service>,
    numbers: HashMap<String, Id>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self { services: Vec::new(), numbers: HashMap::new() };
        tree.add("root");
        tree.add("shared");
        tree
    }
}

impl Tree {
    /// Adds a service below the root.
    pub fn add(&mut self, name: &str) -> Id {
        let id = Id(self.services.len() as u16);
        self.services.push(Service { name: name.into(), parent: Id::ROOT });
        self.numbers.insert(name.into(), id);
        id
    }

    /// Sets the parent of a service. Fails with the path from `id` back to itself if this would
    /// make a cycle.
    pub fn set_parent(&mut self, id: Id, parent: Id) -> Result<(), Vec<Id>> {
        let path: Vec<_> =
            [id].into_iter().chain(self.ancestors(parent).take_while(|step| *step != id)).collect();
        if path.last() != Some(&Id::ROOT) {
            return Err(path);
        }
        self.services[usize::from(id.0)].parent = parent;
        Ok(())
    }

    /// The service with this number.
    pub fn get(&self, id: Id) -> &Service {
        &self.services[usize::from(id.0)]
    }

    /// The name of a service.
    pub fn name(&self, id: Id) -> &str {
        &self.get(id).name
    }

    /// The service with this name.
    pub fn find(&self, name: &str) -> Option<Id> {
        self.numbers.get(name).copied()
    }

    /// The numbers of all services.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.services.len() as u16).map(Id)
    }

    /// The service itself, its parent and so on, up to the root.
    pub fn ancestors(&self, id: Id) -> impl Iterator<Item = Id> {
        std::iter::successors(Some(id), |id| (*id != Id::ROOT).then(|| self.get(*id).parent))
    }

    /// The services directly below a service.
    pub fn children(&self, id: Id) -> impl Iterator<Item = Id> {
        self.ids().filter(move |child| *child != Id::ROOT && self.get(*child).parent == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_parents() {
        let mut tree = Tree::default();
        let [customers, shop] = ["customers", "shop"].map(|name| tree.add(name));
        tree.set_parent(shop, customers).expect("no cycle");
        assert_eq!(tree.ancestors(shop).collect::<Vec<_>>(), [shop, customers, Id::ROOT]);
        assert_eq!(tree.children(Id::ROOT).collect::<Vec<_>>(), [Id::SHARED, customers]);
        assert_eq!(tree.find("shop"), Some(shop));
        assert_eq!(tree.find("shops"), None);
    }

    #[test]
    fn cycles_of_parents_are_refused() {
        let mut tree = Tree::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| tree.add(name));
        tree.set_parent(b, a).expect("no cycle");
        tree.set_parent(c, b).expect("no cycle");
        assert_eq!(tree.set_parent(a, c), Err(vec![a, c, b]));
        assert_eq!(tree.set_parent(a, a), Err(vec![a]));
        assert_eq!(tree.set_parent(c, a), Ok(()));
    }
}
