//! What the parser of rule files looks up on this machine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use service::Host;

use crate::user;

/// The users and paths of this machine.
#[derive(Default)]
pub struct SystemHost {
    users: RefCell<HashMap<String, Option<u32>>>,
}

impl Host for SystemHost {
    fn user(&self, name: &str) -> Option<u32> {
        let find = || user::uid(name).filter(|_| !name.contains(':'));
        *self.users.borrow_mut().entry(name.into()).or_insert_with(find)
    }

    fn real_path(&self, path: &str) -> String {
        let exists =
            Path::new(path).ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
        let whole = exists.and_then(|(part, real)| {
            let rest = Path::new(path).strip_prefix(part).ok()?;
            real.join(rest).into_os_string().into_string().ok()
        });
        whole.unwrap_or_else(|| path.into())
    }
}
