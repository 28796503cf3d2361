//! `-u USER`: the user that a command runs as.

use std::fs;

use anyhow::{Result, bail};
use kernel::process::Credentials;

use crate::format::command_line;

/// A user, and what changes in the environment of its programs.
pub struct User {
    pub credentials: Credentials,
    pub environment: Vec<(&'static str, String)>,
}

/// Reads /etc/passwd and /etc/group, because a static binary cannot load the system's name
/// services.
pub fn find(name: &str) -> Result<User> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    match identity(name, &passwd, &group) {
        Some(credentials) => {
            Ok(User { environment: environment(credentials.uid, &passwd), credentials })
        }
        None => bail!(
            "there is no user {} in /etc/passwd (for users of other name services, give UID:GID)",
            command_line(&[name.into()])
        ),
    }
}

/// The UID of a name.
pub fn uid(name: &str) -> Option<u32> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    identity(name, &passwd, "").map(|identity| identity.uid)
}

/// The name of a UID.
pub fn name(uid: u32) -> Option<String> {
    name_of(uid, &fs::read_to_string("/etc/passwd").ok()?)
}

fn name_of(uid: u32, passwd: &str) -> Option<String> {
    Some(entry_of(uid, passwd)?[0].to_owned())
}

/// The fields of a user's entry in /etc/passwd.
fn entry_of(uid: u32, passwd: &str) -> Option<Vec<&str>> {
    let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    entries.find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))
}

/// The variables that sudo(8) and systemd set, if the user has an entry.
fn environment(uid: u32, passwd: &str) -> Vec<(&'static str, String)> {
    let entry = entry_of(uid, passwd);
    let Some([name, _, _, _, _, home, ..]) = entry.as_deref() else { return Vec::new() };
    vec![("HOME", (*home).into()), ("USER", (*name).into()), ("LOGNAME", (*name).into())]
}

fn identity(name: &str, passwd: &str, group: &str) -> Option<Credentials> {
    if let Some((uid, gid)) = name.split_once(':') {
        let gid = gid.parse().ok()?;
        return Some(Credentials { uid: uid.parse().ok()?, gid, groups: vec![gid] });
    }
    let fields: Vec<_> = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| is_called(fields, name))?;
    let name = fields[0];
    let gid = fields.get(3)?.parse().ok()?;
    let mut groups = vec![gid];
    for line in group.lines() {
        let fields: Vec<_> = line.split(':').collect();
        if fields.len() == 4
            && fields[3].split(',').any(|member| member == name)
            && let Ok(id) = fields[2].parse()
            && !groups.contains(&id)
        {
            groups.push(id);
        }
    }
    Some(Credentials { uid: fields.get(2)?.parse().ok()?, gid, groups })
}

/// Whether an entry has this name or number.
fn is_called(fields: &[&str], name: &str) -> bool {
    !name.is_empty() && (fields[0] == name || fields.get(2) == Some(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1002::/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nann:x:1002:\naudio:x:29:bob,ann\n";

    #[test]
    fn a_user_has_a_group_and_supplementary_groups() {
        let ann = identity("ann", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid, ann.groups), (1001, 1002, vec![1002, 29]));
    }

    #[test]
    fn a_user_may_be_named_by_number() {
        let ann = identity("1001", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid, ann.groups), (1001, 1002, vec![1002, 29]));
    }

    #[test]
    fn a_user_with_an_entry_has_a_home() {
        let variables =
            environment(1001, PASSWD).into_iter().map(|(name, is)| format!("{name}={is}"));
        let variables = variables.collect::<Vec<_>>().join(" ");
        assert_eq!(variables, "HOME=/home/ann USER=ann LOGNAME=ann");
        assert!(environment(7, PASSWD).is_empty());
    }

    #[test]
    fn a_pair_of_numbers_needs_no_entry() {
        let some = identity("7:8", PASSWD, GROUP).unwrap();
        assert_eq!((some.uid, some.gid), (7, 8));
    }

    #[test]
    fn an_unknown_user_is_none() {
        assert_eq!(name_of(1001, PASSWD).as_deref(), Some("ann"));
        assert_eq!(name_of(4711, PASSWD), None);
        assert!(identity("eve", PASSWD, GROUP).is_none());
        assert!(identity("", PASSWD, GROUP).is_none());
    }
}
