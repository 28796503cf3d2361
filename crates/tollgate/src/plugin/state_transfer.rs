//! The state that a swap transfers to the new version of a plugin: variables and maps with the same
//! name and type.

use ecode::{Global, Type};
use kernel::plugin::{Data, SharedMemory};

use super::compile::CompiledPlugin;

pub struct StateTransfer {
    pub shared: SharedMemory,
    /// Variables that are not in shared memory: the old offset, the new offset and the size of
    /// each.
    copied: Vec<(usize, usize, usize)>,
    /// The names of the copied variables.
    pub copied_names: Vec<String>,
    /// What the swap does not transfer, and why.
    pub not_kept: Vec<String>,
}

impl StateTransfer {
    pub fn between(old: &CompiledPlugin, new: &CompiledPlugin) -> Self {
        let mut not_kept = Vec::new();
        let maps = new.program.maps.iter().map(|map| {
            let index = old.program.maps.iter().position(|other| other.name == map.name)?;
            let other = &old.program.maps[index];
            let is_same =
                other.key == map.key && other.value == map.value && other.length == map.length;
            if !is_same {
                not_kept.push(format!(
                    "map `{}`: it was map<{}, {}>[{}] before",
                    map.name, other.key, other.value, other.length
                ));
            }
            is_same.then_some(index)
        });
        let maps = maps.collect();
        let is_new_map = |name: &String| new.program.maps.iter().any(|map| map.name == *name);
        for map in old.program.maps.iter().filter(|map| !is_new_map(&map.name)) {
            not_kept.push(format!("map `{}`: the new version has no map of this name", map.name));
        }
        let is_new = |name: &String| new.program.globals.iter().any(|global| global.name == *name);
        let is_gone = |global: &&Global| !global.is_const && !is_new(&global.name);
        for global in old.program.globals.iter().filter(is_gone) {
            not_kept
                .push(format!("`{}`: the new version has no variable of this name", global.name));
        }
        let (mut copied, mut copied_names) = (Vec::new(), Vec::new());
        // A constant has the value of the new source.
        let news = new.program.globals.iter().zip(&new.object.offsets);
        for (global, at) in news.filter(|(global, _)| !global.is_const) {
            let others = old.program.globals.iter().zip(&old.object.offsets);
            match others.clone().find(|(other, _)| other.name == global.name) {
                Some((other, from)) if other.ty == global.ty => {
                    copied.push((*from as usize, *at as usize, global.ty.size() as usize));
                    copied_names.push(global.name.clone());
                }
                Some((other, _)) => {
                    not_kept.push(format!("`{}`: its type was {} before", global.name, other.ty))
                }
                None => {}
            }
        }
        let data = memory_layout(old) == memory_layout(new) && constants(old) == constants(new);
        if data {
            copied.clear();
            copied_names.clear();
        }
        Self { shared: SharedMemory { data, maps }, copied, copied_names, not_kept }
    }

    /// Copies variables. Changes between this copy and the swap are lost.
    pub fn copy(&self, from: &Data, to: &Data) {
        for (was, is, bytes) in &self.copied {
            to.write(*is, &from.read(*was, *bytes));
        }
    }
}

/// The names and types of the variables, which determine their offsets.
fn memory_layout(built: &CompiledPlugin) -> Vec<(&str, &Type, bool)> {
    let globals = built.program.globals.iter();
    globals.map(|global| (global.name.as_str(), &global.ty, global.is_const)).collect()
}

/// The bytes of constants, and of strings, which follow the variables.
fn constants(built: &CompiledPlugin) -> Vec<&[u8]> {
    let data = &built.object.data;
    let globals = built.program.globals.iter().zip(&built.object.offsets);
    let of = |(global, at): (&Global, &u32)| &data[*at as usize..][..global.ty.size() as usize];
    let strings = &data[built.object.variable_bytes as usize..];
    globals.filter(|(global, _)| global.is_const).map(of).chain([strings]).collect()
}

#[cfg(test)]
mod tests {
    use ecode::Loops;

    use super::*;
    use crate::plugin::hooks::OffsetSource;

    fn built(text: &str) -> CompiledPlugin {
        let (program, problems) = ecode::check(text, &OffsetSource::ToCheck);
        let program = program.unwrap_or_else(|| panic!("{problems:?}"));
        let object = ecode::compile(&program, text, "it.ec", Loops::MayGoto).expect("it compiles");
        CompiledPlugin { program, object, parse_us: 0.0, codegen_us: 0.0 }
    }

    #[test]
    fn same_name_and_type_is_transferred() {
        let old = built(
            "struct s { int a; }; map<u32, u64> hits[4]; map<u32, u64> by[8]; map<u32, u64> lost[2];
            u32 gone, kept, wider; struct s point; const u32 limit = 1; on call {}",
        );
        let new = built(
            "struct s { int a; u8 b; }; map<u32, u64> by[8]; map<u32, u32> hits[4]; \
             map<u32, u64> more[2];
            u64 wider; u32 kept, fresh; struct s point; const u32 limit = 2; on call {}",
        );
        let transfer = StateTransfer::between(&old, &new);
        assert_eq!(transfer.shared.maps, [Some(1), None, None]);
        assert_eq!(
            transfer.not_kept,
            [
                "map `hits`: it was map<u32, u64>[4] before",
                "map `lost`: the new version has no map of this name",
                "`gone`: the new version has no variable of this name",
                "`wider`: its type was u32 before",
                "`point`: its type was struct s before",
            ]
        );
        assert_eq!(transfer.copied_names, ["kept"]);
        assert!(!transfer.shared.data);
        let same = StateTransfer::between(&old, &old);
        assert!(same.shared.data && same.not_kept.is_empty() && same.copied_names.is_empty());
        assert_eq!(same.shared.maps, [Some(0), Some(1), Some(2)]);
    }
}
