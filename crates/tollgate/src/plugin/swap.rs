//! What a plugin that comes in another one's place has from it: whatever has the same name and type.

use ecode::Global;
use kernel::plugins::{Data, Shared};

use super::build::Built;

pub struct Kept {
    pub shared: Shared,
    /// Of variables that are not in the same memory: where each was, where it is, and its bytes.
    copied: Vec<(usize, usize, usize)>,
    /// And why.
    pub not_kept: Vec<String>,
}

impl Kept {
    pub fn of(old: &Built, new: &Built) -> Self {
        let mut not_kept = Vec::new();
        let maps = new.program.maps.iter().map(|map| {
            let place = old.program.maps.iter().position(|other| other.name == map.name)?;
            let other = &old.program.maps[place];
            let is_same = other.key == map.key && other.value == map.value && other.length == map.length;
            if !is_same {
                not_kept.push(format!(
                    "map `{}`: it was another map<{}, {}>[{}]",
                    map.name, other.key, other.value, other.length
                ));
            }
            is_same.then_some(place)
        });
        let maps = maps.collect();
        let is_new_map = |name: &String| new.program.maps.iter().any(|map| map.name == *name);
        for map in old.program.maps.iter().filter(|map| !is_new_map(&map.name)) {
            not_kept.push(format!("map `{}`: the new one has none of this name", map.name));
        }
        let is_new = |name: &String| new.program.globals.iter().any(|global| global.name == *name);
        for global in old.program.globals.iter().filter(|global| !is_new(&global.name)) {
            not_kept.push(format!("`{}`: the new one has none of this name", global.name));
        }
        let mut copied = Vec::new();
        for (global, at) in new.program.globals.iter().zip(&new.object.offsets) {
            let others = old.program.globals.iter().zip(&old.object.offsets);
            match others.clone().find(|(other, _)| other.name == global.name) {
                Some((other, from)) if other.of == global.of => {
                    copied.push((*from as usize, *at as usize, global.of.size() as usize));
                }
                Some((other, _)) => not_kept.push(format!("`{}`: it was of type {}", global.name, other.of)),
                None => {}
            }
        }
        let shape = |built: &Built| -> Vec<_> {
            let shape = |global: &Global| (global.name.clone(), global.of.clone(), global.is_const);
            built.program.globals.iter().map(shape).collect()
        };
        // Strings, which are behind the variables, are those of the text.
        let strings = |built: &Built| built.object.data[built.object.variable_bytes as usize..].to_vec();
        let data = shape(old) == shape(new) && strings(old) == strings(new);
        if data {
            copied.clear();
        }
        Self { shared: Shared { data, maps }, copied, not_kept }
    }

    /// What changes between this and the swap is lost.
    pub fn copy(&self, from: &Data, to: &Data) {
        for (was, is, bytes) in &self.copied {
            to.write(*is, &from.read(*was, *bytes));
        }
    }
}
