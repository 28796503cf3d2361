//! The names of services.

use toml_reader::{At, Problem, Problems};

use crate::limits::Errno;
use crate::tree::{Id, Tree};

/// The maximum number of characters of a name. A longer name fits neither into a line of
/// `service top` nor into the path of a control group, which also has the names of the parents.
const MAX_NAME_LEN: usize = 64;

/// Why a service cannot have this name.
pub fn validation_error(name: &str) -> Option<&'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match name {
        "root" | "shared" => Some("it always exists, and has no settings"),
        _ if name == "none" || Errno::parse(name).is_some() => {
            Some("this word has another meaning in `tollgate service limit`")
        }
        _ if name.is_empty() => Some("a name must not be empty"),
        _ if name.len() > MAX_NAME_LEN => Some("a name has at most 64 characters"),
        _ if !name.chars().all(is_plain) => {
            Some("a name has letters, digits, '_', '-' and '.' only")
        }
        _ if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            Some("a name begins with a letter or a digit")
        }
        _ => None,
    }
}

/// Finds the service with this name, or adds a problem.
pub fn find(tree: &Tree, name: &At<&str>, problems: &mut Problems) -> Option<Id> {
    let found = tree.find(name.value);
    if found.is_none() {
        let known = || tree.ids().map(|id| tree.name(id));
        let declare = || match (validation_error(name.value), name.value.contains('.')) {
            (Some(_), _) => None,
            (None, false) => Some(format!("declare it: [service.{}]", name.value)),
            (None, true) => Some(format!("declare it: [service.{:?}]", name.value)),
        };
        let problem =
            Problem::new(name.span.clone(), format!("there is no service {:?}", name.value));
        problems.push(problem.suggest(name.value, known(), problems, declare));
    }
    found
}
