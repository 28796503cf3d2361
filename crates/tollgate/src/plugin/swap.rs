//! What a plugin that comes in another one's place has from it: whatever has the same name and type.

use ecode::{Global, Type};
use kernel::plugins::{Data, Shared};

use super::build::Built;

pub struct Kept {
    pub shared: Shared,
    /// Of variables that are not in the same memory: where each was, where it is, and its bytes.
    copied: Vec<(usize, usize, usize)>,
    /// What those are called.
    pub copied_names: Vec<String>,
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
        let is_gone = |global: &&Global| !global.is_const && !is_new(&global.name);
        for global in old.program.globals.iter().filter(is_gone) {
            not_kept.push(format!("`{}`: the new one has none of this name", global.name));
        }
        let (mut copied, mut copied_names) = (Vec::new(), Vec::new());
        // A constant is what the new text says.
        let news = new.program.globals.iter().zip(&new.object.offsets);
        for (global, at) in news.filter(|(global, _)| !global.is_const) {
            let others = old.program.globals.iter().zip(&old.object.offsets);
            match others.clone().find(|(other, _)| other.name == global.name) {
                Some((other, from)) if other.of == global.of => {
                    copied.push((*from as usize, *at as usize, global.of.size() as usize));
                    copied_names.push(global.name.clone());
                }
                Some((other, _)) => not_kept.push(format!("`{}`: it was of type {}", global.name, other.of)),
                None => {}
            }
        }
        let data = shape(old) == shape(new) && constants(old) == constants(new);
        if data {
            copied.clear();
            copied_names.clear();
        }
        Self { shared: Shared { data, maps }, copied, copied_names, not_kept }
    }

    /// What changes between this and the swap is lost.
    pub fn copy(&self, from: &Data, to: &Data) {
        for (was, is, bytes) in &self.copied {
            to.write(*is, &from.read(*was, *bytes));
        }
    }
}

/// Where variables are in memory follows from these.
fn shape(built: &Built) -> Vec<(&str, &Type, bool)> {
    let globals = built.program.globals.iter();
    globals.map(|global| (global.name.as_str(), &global.of, global.is_const)).collect()
}

/// The bytes of the text's constants, and of its strings, which are behind the variables.
fn constants(built: &Built) -> Vec<&[u8]> {
    let data = &built.object.data;
    let globals = built.program.globals.iter().zip(&built.object.offsets);
    let of = |(global, at): (&Global, &u32)| &data[*at as usize..][..global.of.size() as usize];
    let strings = &data[built.object.variable_bytes as usize..];
    globals.filter(|(global, _)| global.is_const).map(of).chain([strings]).collect()
}

#[cfg(test)]
mod tests {
    use ecode::Loops;

    use super::*;
    use crate::plugin::hooks::Machine;

    fn built(text: &str) -> Built {
        let (program, problems) = ecode::check(text, &Machine::ToCheck);
        let program = program.unwrap_or_else(|| panic!("{problems:?}"));
        let object = ecode::compile(&program, text, "it.ec", Loops::MayGoto).expect("it compiles");
        Built { program, object, parse_us: 0.0, codegen_us: 0.0 }
    }

    #[test]
    fn what_has_the_same_name_and_type_is_kept() {
        let old = built(
            "struct s { int a; }; map<u32, u64> hits[4]; map<u32, u64> by[8]; map<u32, u64> lost[2];
            u32 gone, kept, wider; struct s point; const u32 limit = 1; on call {}",
        );
        let new = built(
            "struct s { int a; u8 b; }; map<u32, u64> by[8]; map<u32, u32> hits[4]; map<u32, u64> more[2];
            u64 wider; u32 kept, fresh; struct s point; const u32 limit = 2; on call {}",
        );
        let kept = Kept::of(&old, &new);
        assert_eq!(kept.shared.maps, [Some(1), None, None]);
        assert_eq!(
            kept.not_kept,
            [
                "map `hits`: it was another map<unsigned int, unsigned long>[4]",
                "map `lost`: the new one has none of this name",
                "`gone`: the new one has none of this name",
                "`wider`: it was of type unsigned int",
                "`point`: it was of type struct s",
            ]
        );
        assert_eq!(kept.copied_names, ["kept"]);
        assert!(!kept.shared.data);
        let same = Kept::of(&old, &old);
        assert!(same.shared.data && same.not_kept.is_empty() && same.copied_names.is_empty());
        assert_eq!(same.shared.maps, [Some(0), Some(1), Some(2)]);
    }
}
