//! What services are called that rules have started: by the user, unit, program or client that each is for.

use std::fs;

use kernel::services::{Each, Member, Started};
use kernel::wire;

/// The kernel side knows units and programs by hashes: their names are those of who is there, or was first.
pub fn value(started: &Started, members: &[Member]) -> String {
    // Those that were given it for what they are, not those that they started.
    let is_its =
        |member: &&Member| member.service == started.number && u32::from(member.why) != wire::WHY_FORKED;
    let of_members = |name: fn(u32) -> Option<String>, hash: u64| {
        let found = members.iter().filter(is_its).find_map(|member| name(member.tgid));
        let called = (!started.called.is_empty()).then(|| started.called.clone());
        found.or(called).unwrap_or_else(|| format!("{:08x}", hash as u32))
    };
    match started.each {
        Each::User(uid) => crate::user::name(uid).unwrap_or_else(|| uid.to_string()),
        Each::Client(address) => address.to_string(),
        Each::Exe(hash) => of_members(program, hash),
        Each::Unit(hash) => of_members(unit, hash),
    }
}

fn program(pid: u32) -> Option<String> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()?.into_os_string().into_string().ok()
}

fn unit(pid: u32) -> Option<String> {
    unit_of(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The innermost, as bpf/scope.bpf.h finds it.
fn unit_of(cgroups: &str) -> Option<String> {
    let paths = cgroups.lines().rev().filter_map(|line| line.splitn(3, ':').nth(2));
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    paths.filter_map(|path| path.rsplit('/').find(is_unit)).map(str::to_owned).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_innermost_services_or_scopes() {
        let unit = |text| unit_of(text);
        assert_eq!(unit("0::/system.slice/nginx.service/worker\n").as_deref(), Some("nginx.service"));
        assert_eq!(
            unit("4:pids:/user.slice/user-0.slice/session-1.scope\n0::/\n").as_deref(),
            Some("session-1.scope")
        );
        assert_eq!(unit("0::/a\n"), None);
    }
}
