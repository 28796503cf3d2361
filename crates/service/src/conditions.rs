//! The conditions of a rule, and how specific they are.

use std::cmp::Ordering;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::query::{LocalEnd, RuleQuery};
use crate::tree::Id;

/// The maximum number of parts of a path that the kernel side can match (bpf/gate/names.bpf.h,
/// NAMES).
pub const MAX_PATH_PARTS: usize = 63;

/// A path and everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Folder(String);

impl Folder {
    /// Removes a trailing slash. `None` if the path is not absolute, if a part is empty, `.` or
    /// `..`, or if it has more than 63 parts.
    pub fn new(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let rest = path.strip_prefix('/')?;
        let is_plain = rest.split('/').all(|part| !matches!(part, "" | "." | ".."));
        let folder = Self(path.into());
        (is_plain && folder.depth() <= MAX_PATH_PARTS).then_some(folder)
    }

    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number of parts of the path.
    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    /// The first `depth` parts of `path`.
    fn of(path: &str, depth: u8) -> Option<Self> {
        let mut ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        Self::new(&path[..ends.nth(depth.into())?])
    }
}

/// Where a server listens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Listen {
    /// The address; `None` matches any.
    pub address: Option<IpAddr>,
    /// The port; `None` matches any.
    pub port: Option<u16>,
    /// The path of a Unix socket; an abstract name begins with `@`.
    pub path: Option<String>,
}

/// The conditions of a rule, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Conditions {
    /// The path of the executable.
    pub exe: Option<String>,
    /// The effective user.
    pub user: Option<u32>,
    /// The systemd unit.
    pub unit: Option<String>,
    /// The thread's control group, or an ancestor of it.
    pub cgroup: Option<Folder>,
    /// The thread's service. For a dynamic service, this is its parent.
    pub service: Option<Id>,
    /// Where the server listens, on receive.
    pub listen: Listen,
    /// The network of the client.
    pub client: Option<IpNet>,
    /// The service of the connection's other end.
    pub peer: Option<Id>,
    /// The opened file, or a folder above it.
    pub file: Option<Folder>,
}

/// Which conditions a rule has, without their values. One look-up matches all rules of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    // The derived order compares the fields from first to last, so the fields that make a rule more
    // specific come first. After the count, conditions on the work precede conditions on the thread
    // that does it.
    /// The number of conditions.
    pub count: u8,
    /// The number of parts of the file's path; 0 without a condition on the file.
    pub file_depth: u8,
    pub peer: bool,
    pub client: Option<(AddressFamily, u8)>,
    pub listen_path: bool,
    pub listen_address: bool,
    pub listen_port: bool,
    pub service: bool,
    pub exe: bool,
    pub unit: bool,
    pub cgroup_depth: u8,
    pub user: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    V4,
    V6,
}

impl Shape {
    pub fn needs_connection(&self) -> bool {
        self.peer
            || self.client.is_some()
            || self.listen_path
            || self.listen_address
            || self.listen_port
    }

    pub fn needs_file(&self) -> bool {
        self.file_depth > 0
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::V4 } else { AddressFamily::V6 }
}

impl Conditions {
    /// Which conditions the rule has.
    pub fn shape(&self) -> Shape {
        let depth =
            |folder: &Option<Folder>| folder.as_ref().map_or(0, |folder| folder.depth() as u8);
        let mut shape = Shape {
            count: 0,
            file_depth: depth(&self.file),
            peer: self.peer.is_some(),
            client: self.client.map(|network| (family(network.addr()), network.prefix_len())),
            listen_path: self.listen.path.is_some(),
            listen_address: self.listen.address.is_some(),
            listen_port: self.listen.port.is_some(),
            service: self.service.is_some(),
            exe: self.exe.is_some(),
            unit: self.unit.is_some(),
            cgroup_depth: depth(&self.cgroup),
            user: self.user.is_some(),
        };
        let single = [
            shape.peer,
            shape.listen_path,
            shape.listen_address,
            shape.listen_port,
            shape.service,
            shape.exe,
            shape.unit,
            shape.user,
            shape.client.is_some(),
            shape.file_depth > 0,
            shape.cgroup_depth > 0,
        ];
        shape.count = single.into_iter().filter(|is_there| *is_there).count() as u8;
        shape
    }

    /// `Less` if `self` is more specific and takes precedence.
    pub fn compare(&self, other: &Self) -> Ordering {
        other.shape().cmp(&self.shape())
    }

    /// The conditions of this shape with the thread's own values. The thread meets no others of
    /// this shape. `None` if the thread lacks a value that the shape needs.
    pub fn project(query: &RuleQuery, shape: &Shape) -> Option<Self> {
        let folder = |path: Option<&str>, depth: u8| match depth {
            0 => Some(None),
            depth => Folder::of(path?, depth).map(Some),
        };
        let (address, port, path) = match query.listen {
            Some(LocalEnd::Internet(local)) => {
                (Some(local.ip().to_canonical()), Some(local.port()), None)
            }
            Some(LocalEnd::Unix(path)) => (None, None, Some(path.to_owned())),
            None => (None, None, None),
        };
        Some(Self {
            exe: required(shape.exe, Some(query.exe.to_owned()))?,
            user: required(shape.user, Some(query.user))?,
            unit: required(shape.unit, query.unit.map(str::to_owned))?,
            cgroup: folder(Some(query.cgroup), shape.cgroup_depth)?,
            service: required(shape.service, Some(query.service))?,
            listen: Listen {
                address: required(shape.listen_address, address)?,
                port: required(shape.listen_port, port)?,
                path: required(shape.listen_path, path)?,
            },
            client: match shape.client {
                None => None,
                Some((wanted, bits)) => {
                    let client = query.client?.to_canonical();
                    (family(client) == wanted).then_some(())?;
                    Some(IpNet::new(client, bits).ok()?.trunc())
                }
            },
            peer: required(shape.peer, query.peer)?,
            file: folder(query.file, shape.file_depth)?,
        })
    }
}

/// `Some(None)` for a condition that the shape does not have; `None` if the shape has it but the
/// thread has no value for it.
fn required<T>(has_condition: bool, value: Option<T>) -> Option<Option<T>> {
    if has_condition { value.map(Some) } else { Some(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_depths() {
        for path in ["", "etc", "/", "//", "/a//b", "/a/./b", "/a/.."] {
            assert_eq!(Folder::new(path), None, "{path:?}");
        }
        assert!(Folder::new(&"/d".repeat(63)).is_some() && Folder::new(&"/d".repeat(64)).is_none());
        let folder = Folder::new("/srv/shop/").expect("a path");
        assert_eq!((folder.as_str(), folder.depth()), ("/srv/shop", 2));
        let parts = |depth| Folder::of("/srv/shop/index.php", depth).map(|folder| folder.0);
        assert_eq!(parts(0), None);
        assert_eq!(parts(1).as_deref(), Some("/srv"));
        assert_eq!(parts(2).as_deref(), Some("/srv/shop"));
        assert_eq!(parts(3).as_deref(), Some("/srv/shop/index.php"));
        assert_eq!(parts(4), None);
    }

    #[test]
    fn more_conditions_win() {
        let user = Conditions { user: Some(33), ..Default::default() };
        let exe = Conditions { exe: Some("/usr/sbin/nginx".into()), ..Default::default() };
        let both = Conditions { user: Some(33), ..exe.clone() };
        let network = |text: &str| Conditions { client: text.parse().ok(), ..Default::default() };
        let file = |path| Conditions { file: Folder::new(path), ..Default::default() };
        for (first, second) in [
            (&both, &exe),
            (&both, &user),
            (&exe, &user),
            (&network("10.1.0.0/16"), &network("10.0.0.0/8")),
            (&file("/srv/shop"), &file("/srv")),
            (&file("/srv"), &network("10.1.0.0/16")),
        ] {
            assert_eq!(first.compare(second), Ordering::Less, "{first:?} {second:?}");
            assert_eq!(second.compare(first), Ordering::Greater, "{first:?} {second:?}");
        }
    }
}
