//! Names dynamic services after the user, unit, program or client that each is for.

use std::fs;

use identity::cgroup::Cgroups;
use kernel::process::read_text;
use kernel::service::{DynamicKey, DynamicService, Member};
use kernel::wire;

/// The name of a dynamic service. The kernel side has only hashes of units and programs; their
/// names come from a current member, or from the first one.
pub fn dynamic_name(started: &DynamicService, members: &[Member]) -> String {
    // Members that a rule bound to the service, not the processes that these members started.
    let is_its = |member: &&Member| {
        member.service == started.number && u32::from(member.why) != wire::WHY_FORKED
    };
    let of_members = |name: fn(u32) -> Option<String>, hash: u64| {
        let found = members.iter().filter(is_its).find_map(|member| name(member.tgid));
        let called = (!started.first_member.is_empty()).then(|| started.first_member.clone());
        found.or(called).unwrap_or_else(|| format!("{:08x}", hash as u32))
    };
    match started.key {
        DynamicKey::User(uid) => crate::user::name(uid).unwrap_or_else(|| uid.to_string()),
        DynamicKey::Client(address) => address.to_string(),
        DynamicKey::Exe(hash) => of_members(program, hash),
        DynamicKey::Unit(hash) => of_members(unit, hash),
    }
}

fn program(pid: u32) -> Option<String> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()?.into_os_string().into_string().ok()
}

fn unit(pid: u32) -> Option<String> {
    let text = read_text(format!("/proc/{pid}/cgroup")).ok()?;
    Cgroups::parse(&text).innermost_unit().map(str::to_owned)
}
