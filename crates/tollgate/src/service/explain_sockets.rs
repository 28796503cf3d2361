//! `tollgate service explain SOCKET`: the connections that have this socket as an end, and the
//! service for which each direction is used.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;

use kernel::{process, wire};
use service::Listen;

use super::requests::{ExplainedEnd, ExplainedListener, SocketProcess};

/// A socket's name, as the kernel side or /proc reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketName {
    Internet(SocketAddr),
    Unix(String),
}

impl SocketName {
    pub fn text(&self) -> String {
        match self {
            Self::Internet(address) => address.to_string(),
            Self::Unix(name) => name.clone(),
        }
    }

    fn is(&self, wanted: &Listen, is_listener: bool) -> bool {
        match self {
            Self::Unix(name) => wanted.path.as_ref() == Some(name),
            Self::Internet(own) => {
                let any = is_listener && own.ip().is_unspecified();
                wanted.path.is_none()
                    && wanted.port.is_none_or(|port| port == own.port())
                    && wanted
                        .address
                        .is_none_or(|address| any || address == own.ip().to_canonical())
            }
        }
    }
}

/// The processes that have sockets open.
#[derive(Default)]
pub struct SocketOwners {
    by_inode: HashMap<u64, Vec<SocketProcess>>,
    /// One process in each network namespace.
    networks: BTreeMap<u64, u32>,
}

impl SocketOwners {
    pub fn read() -> Self {
        let mut owners = Self::default();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
            if let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/net")) {
                owners.networks.entry(namespace.ino()).or_insert(pid);
            }
            let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            let mut inodes: Vec<_> = open.filter_map(|entry| inode(&entry.path())).collect();
            inodes.sort_unstable();
            inodes.dedup();
            if inodes.is_empty() {
                continue;
            }
            let command = process::name(pid).unwrap_or_default();
            let process = SocketProcess { pid, command };
            for inode in inodes {
                owners.by_inode.entry(inode).or_default().push(process.clone());
            }
        }
        owners
            .by_inode
            .values_mut()
            .for_each(|processes| processes.sort_by_key(|process| process.pid));
        owners
    }

    pub fn of(&self, inode: u64) -> Vec<SocketProcess> {
        self.by_inode.get(&inode).cloned().unwrap_or_default()
    }
}

fn inode(path: &std::path::Path) -> Option<u64> {
    let link = fs::read_link(path).ok()?;
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The listeners at this address, in any network namespace.
pub fn listeners(wanted: &Listen, owners: &SocketOwners) -> Vec<ExplainedListener> {
    let in_network = |pid: &u32| {
        let read =
            |name: &str| process::read_text(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let (tcp, tcp6, unix) = (read("tcp"), read("tcp6"), read("unix"));
        let tcp = tcp.lines().chain(tcp6.lines()).filter_map(tcp_listener);
        let all = tcp.chain(unix.lines().filter_map(unix_listener));
        all.filter(|(name, _)| name.is(wanted, true)).collect::<Vec<_>>()
    };
    let all = owners.networks.values().flat_map(in_network);
    all.map(|(name, inode)| ExplainedListener { socket: name.text(), processes: owners.of(inode) })
        .collect()
}

/// Parses "sl local_address rem_address st … inode", with addresses in words of the host's byte
/// order (Documentation/networking/proc_net_tcp.rst).
fn tcp_listener(line: &str) -> Option<(SocketName, u64)> {
    const LISTEN: &str = "0A";
    let fields: Vec<_> = line.split_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let words: Option<Vec<u32>> = (0..address.len() / 8)
        .map(|at| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip: IpAddr = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
    };
    let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    Some((SocketName::Internet(address), fields.get(9)?.parse().ok()?))
}

/// Parses "Num RefCount Protocol Flags Type St Inode Path". The flag of a listener is
/// __SO_ACCEPTCON (include/uapi/linux/net.h).
fn unix_listener(line: &str) -> Option<(SocketName, u64)> {
    const ACCEPTS: &str = "00010000";
    let mut fields = line.split_whitespace();
    (fields.nth(3)? == ACCEPTS).then_some(())?;
    let inode = fields.nth(2)?.parse().ok()?;
    Some((SocketName::Unix(fields.collect::<Vec<_>>().join(" ")), inode))
}

fn address(words: [u64; 2], port: u16) -> SocketAddr {
    SocketAddr::new(wire::ip_address(words), port)
}

fn name_of(record: &wire::service_socket_record) -> SocketName {
    if record.is_unix == 0 {
        return SocketName::Internet(address(record.flow.from, record.flow.from_port));
    }
    SocketName::Unix(wire::text(&record.name))
}

/// The connections that have this end. Each connection is listed with the ends through which a
/// thread has sent or received.
pub fn connections(
    records: Vec<wire::service_socket_record>,
    wanted: &Listen,
) -> Vec<Vec<wire::service_socket_record>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in records {
        let wire::service_flow_key { from, to, from_port, to_port, net } = record.flow;
        let mut ends = [(from, from_port, record.inode), (to, to_port, record.peer_inode)];
        // Only inodes identify Unix sockets and unconnected sockets. Unconnected sockets have no
        // other end, and several of them may share an address.
        if record.is_unix == 0 && to_port != 0 {
            ends.iter_mut().for_each(|end| end.2 = 0);
        }
        ends.sort_unstable();
        all.entry((net, ends)).or_default().push(record);
    }
    let is_meant = |ends: &Vec<wire::service_socket_record>| {
        ends.iter().any(|end| {
            let other = SocketName::Internet(address(end.flow.to, end.flow.to_port));
            name_of(end).is(wanted, false) || end.is_unix == 0 && other.is(wanted, false)
        })
    };
    let mut all: Vec<_> = all.into_values().filter(is_meant).collect();
    // The end that opened the connection comes first.
    let opened = wire::ROLE_OPENED as u16;
    all.iter_mut().for_each(|ends| ends.sort_by_key(|end| end.role != opened));
    all
}

/// An end of a connection, without the names that only the daemon knows.
pub fn end(record: &wire::service_socket_record, owners: &SocketOwners) -> ExplainedEnd {
    let role = match u32::from(record.role) {
        wire::ROLE_ACCEPTED => "accepted",
        wire::ROLE_OPENED => "opened",
        wire::ROLE_NEITHER => "neither",
        _ => "unknown",
    };
    ExplainedEnd {
        socket: name_of(record).text(),
        role: role.into(),
        processes: owners.of(record.inode),
        sender: (record.sender != 0).then_some(record.sender),
        ..ExplainedEnd::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_by_address_port_and_path() {
        let line = "   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000   \
              0        0 4321 1 0";
        let (name, inode) = tcp_listener(line).expect("it listens");
        assert_eq!((name.text().as_str(), inode), ("127.0.0.1:5432", 4321));
        let wanted = |text| service::listen(text).expect("a socket");
        assert!(name.is(&wanted("127.0.0.1:5432"), true) && name.is(&wanted(":5432"), true));
        assert!(!name.is(&wanted("127.0.0.2:5432"), true) && !name.is(&wanted(":80"), true));
        assert_eq!(tcp_listener(&line.replace(" 0A ", " 01 ")), None);
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 999 /run/a.sock";
        let (name, inode) = unix_listener(line).expect("it listens");
        assert!(name.is(&wanted("/run/a.sock"), true) && inode == 999);
    }
}
