//! The services that a file declares: `[service.NAME]`.

use std::collections::BTreeMap;

use toml_reader::{At, DeTable, Problem, Problems, TableReader};

use super::limits;
use super::names::{find, validation_error};
use crate::limits::Limits;
use crate::tree::{Id, Tree};

/// The maximum number of services in a file. It is less than the gate's limit, SERVICES_DYNAMIC
/// (bpf/wire/service.h), because services that are added while a daemon runs need new numbers.
pub const MAX_SERVICES: usize = 4096;
/// The maximum number of ancestors of a service, root included. The value is our choice. It is
/// small, because the kernel side visits all ancestors at each event to which a limit may apply.
pub const MAX_ANCESTORS: usize = 7;

pub fn read(table: Option<&DeTable>, problems: &mut Problems) -> (Tree, BTreeMap<Id, Limits>) {
    let mut tree = Tree::default();
    let (mut declared, mut limited) = (Vec::new(), Vec::new());
    for (key, value) in table.into_iter().flatten() {
        let name: &str = key.get_ref().as_ref();
        if let Some(reason) = validation_error(name) {
            problems.push(Problem::new(
                key.span(),
                format!("a service cannot be called {name:?}: {reason}"),
            ));
            continue;
        }
        let Some(settings) = value.get_ref().as_table() else {
            problems.push(
                Problem::new(value.span(), format!("service {name:?} must be a table"))
                    .help(format!("write [service.{name}]")),
            );
            continue;
        };
        if declared.len() == MAX_SERVICES {
            let text = format!(
                "there are {} services, but at most {MAX_SERVICES} are possible",
                table.map_or(0, DeTable::len)
            );
            problems.push(Problem::new(key.span(), text));
            break;
        }
        let mut reader = TableReader::new(settings, value.span(), problems);
        let (parent, limits) = (reader.string("parent"), limits::read(&mut reader));
        reader.finish(|child| {
            format!(
                "a service below {name:?} needs a table of its own: [service.{child}] with parent \
                = {name:?}; a name with a dot needs quotes: [service.\"{name}.{child}\"]"
            )
        });
        let id = tree.add(name);
        declared.push((id, parent));
        limited.push((id, limits));
    }
    for (id, parent) in &declared {
        if let Some(parent) = parent {
            set_parent(&mut tree, *id, parent, problems);
        }
    }
    for (id, parent) in declared {
        // Report only the highest service that is too deep. Those below it need no message of their
        // own.
        if let Some(parent) = parent
            && tree.ancestors(id).nth(MAX_ANCESTORS + 1) == Some(Id::ROOT)
        {
            let text =
                format!("{:?} has more than {MAX_ANCESTORS} services above it", tree.name(id));
            problems.push(Problem::new(parent.span, text));
        }
    }
    let limits = limits::resolve(limited, &tree, problems);
    (tree, limits)
}

fn set_parent(tree: &mut Tree, id: Id, parent: &At<&str>, problems: &mut Problems) {
    let Some(above) = find(tree, parent, problems) else { return };
    let name = tree.name(id).to_owned();
    if above == Id::SHARED {
        let text = format!(
            "{name:?} cannot be below \"shared\", which is for work that cannot be attributed to \
            a service"
        );
        problems.push(Problem::new(parent.span.clone(), text));
    } else if let Err(cycle) = tree.set_parent(id, above) {
        let mut names: Vec<_> = cycle.iter().map(|id| tree.name(*id)).collect();
        if names.len() > MAX_ANCESTORS {
            names.truncate(MAX_ANCESTORS);
            names.push("…");
        }
        let text = format!("{name:?} would be below itself: {}, {name}", names.join(", "));
        problems.push(Problem::new(parent.span.clone(), text));
    }
}
