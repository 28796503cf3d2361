//! The calls by file, as the gate has counted them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libbpf_rs::{MapCore as _, MapFlags};
use zerocopy::FromBytes as _;

use crate::error::{ErrorContext as _, Result};
use crate::gate::{Gate, KernelSide, LazyMaps};
use crate::skeletons::gate::OpenGateMaps;
use crate::wire;

/// What identifies a file, in all rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// One of [`wire::file_kind`].
    pub kind: u32,
    /// The kernel's number of its file system.
    pub device: u32,
    /// Its number there.
    pub inode: u64,
    /// Distinguishes files that had the same number one after the other.
    pub generation: u32,
    /// The kind of an anonymous file.
    pub operations: u64,
}

/// The addresses of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketAddresses {
    /// Of IPv4 or IPv6. A part that the socket does not have is unspecified.
    Internet {
        /// Its own address.
        local: SocketAddr,
        /// That of its peer. `None`: it is not connected.
        remote: Option<SocketAddr>,
    },
    /// The path of a Unix socket, or of its peer. An abstract one begins with a NUL.
    Unix(Vec<u8>),
    /// There are none, or they are of another family, of this number.
    Other(u16),
}

/// A socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// As in socket(2): SOCK_STREAM and so on.
    pub kind: u16,
    /// As in socket(2): IPPROTO_TCP and so on.
    pub protocol: u16,
    /// Its addresses.
    pub addresses: SocketAddresses,
}

/// The calls on a file.
#[derive(Debug, Clone, Default)]
pub struct FileStats {
    /// Calls that returned.
    pub calls: u64,
    /// Of `calls`: those that failed.
    pub errors: u64,
    /// What calls have read from the file.
    pub read_bytes: u64,
    /// What they have written to it.
    pub written_bytes: u64,
    /// The time of the calls.
    pub wall_ns: u64,
    /// Of `wall_ns`: time asleep.
    pub blocked_ns: u64,
    /// Of `calls`: those that also count for another file.
    pub shared_calls: u64,
    /// The time of `shared_calls`.
    pub shared_wall_ns: u64,
    /// The first kinds of calls that were made on it: the call's index, the number, and the time.
    pub by_call: Vec<(u32, u64, u64)>,
    /// The file's path, as the process that used it first saw it.
    pub path: wire::fd_path,
    /// No path led to it any more when it was first used.
    pub is_deleted: bool,
    /// If it is one.
    pub socket: Option<Socket>,
}

impl FileStats {
    fn new(kind: u32, value: &wire::file_value) -> Self {
        let by_call = value.call.iter().filter(|call| call.call != 0);
        Self {
            calls: value.calls,
            errors: value.errors,
            read_bytes: value.read_bytes,
            written_bytes: value.written_bytes,
            wall_ns: value.wall_ns,
            blocked_ns: value.blocked_ns,
            shared_calls: value.shared_calls,
            shared_wall_ns: value.shared_wall_ns,
            by_call: by_call.map(|call| (call.call as u32 - 1, call.count, call.wall_ns)).collect(),
            path: value.path,
            is_deleted: value.is_deleted != 0,
            socket: (kind == wire::FILE_SOCKET).then(|| socket(&value.socket)),
        }
    }

    /// Adds the calls on the same file in another row, or on another file of the same name.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.wall_ns += other.wall_ns;
        self.blocked_ns += other.blocked_ns;
        self.shared_calls += other.shared_calls;
        self.shared_wall_ns += other.shared_wall_ns;
        for (call, count, ns) in &other.by_call {
            match self.by_call.iter_mut().find(|known| known.0 == *call) {
                Some(known) => (known.1, known.2) = (known.1 + count, known.2 + ns),
                None => self.by_call.push((*call, *count, *ns)),
            }
        }
    }

    /// Subtracts what an earlier reading of the same row has.
    pub(super) fn subtract(&mut self, before: &Self) {
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut self.calls, before.calls);
        less(&mut self.errors, before.errors);
        less(&mut self.read_bytes, before.read_bytes);
        less(&mut self.written_bytes, before.written_bytes);
        less(&mut self.wall_ns, before.wall_ns);
        less(&mut self.blocked_ns, before.blocked_ns);
        less(&mut self.shared_calls, before.shared_calls);
        less(&mut self.shared_wall_ns, before.shared_wall_ns);
        for (call, count, ns) in &mut self.by_call {
            if let Some(known) = before.by_call.iter().find(|known| known.0 == *call) {
                less(count, known.1);
                less(ns, known.2);
            }
        }
        self.by_call.retain(|(_, count, _)| *count > 0);
    }
}

fn socket(name: &wire::socket_name) -> Socket {
    let address = |bytes: &[u8; 16], port: u16| {
        let [a, b, c, d, ..] = *bytes;
        let ip = match i32::from(name.family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
            _ => IpAddr::V6(Ipv6Addr::from(*bytes)),
        };
        SocketAddr::new(ip.to_canonical(), port)
    };
    let addresses = match i32::from(name.family) {
        libc::AF_INET | libc::AF_INET6 => SocketAddresses::Internet {
            local: address(&name.local, name.local_port),
            remote: (name.has_remote != 0).then(|| address(&name.remote, name.remote_port)),
        },
        libc::AF_UNIX => {
            let path = name.path.iter().take(name.path_len.into()).map(|byte| *byte as u8);
            let mut path: Vec<_> = path.collect();
            // The length of a path that is no abstract one includes the NUL.
            if path.first().is_some_and(|byte| *byte != 0) {
                path.retain(|byte| *byte != 0);
            }
            SocketAddresses::Unix(path)
        }
        _ => SocketAddresses::Other(name.family),
    };
    Socket { kind: name.type_, protocol: name.protocol, addresses }
}

impl Gate {
    /// The calls by file in these rows.
    pub(super) fn files_of(&self, rows: &BTreeSet<u32>) -> Result<Vec<(u32, FileId, FileStats)>> {
        let mut all = Vec::new();
        if self.enabled() & wire::LENS_FILES == 0 {
            return Ok(all);
        }
        let files = self.maps.get("lens_files");
        for bytes in files.keys() {
            let key = wire::file_key::read_from_bytes(&bytes).expect("all bytes of a key");
            if !rows.contains(&key.row) {
                continue;
            }
            let Some(value) = files.lookup(&bytes, MapFlags::ANY).doing("reading files")? else {
                continue;
            };
            let value = wire::file_value::read_from_bytes(&value).expect("all bytes of a value");
            let wire::file_key { inode, operations, device, generation, row, kind } = key;
            let id = FileId { kind, device, inode, generation, operations };
            let stats = FileStats::new(kind, &value);
            if stats.calls > 0 {
                all.push((row, id, stats));
            }
        }
        Ok(all)
    }

    /// Removes the calls by file in rows that were freed.
    pub(crate) fn free_files(&self, rows: &BTreeSet<u32>) {
        if rows.is_empty() || self.enabled() & wire::LENS_FILES == 0 {
            return;
        }
        let files = self.maps.get("lens_files");
        let is_freed = |key: &Vec<u8>| {
            wire::file_key::read_from_bytes(key).is_ok_and(|key| rows.contains(&key.row))
        };
        let stale: Vec<_> = files.keys().filter(is_freed).collect();
        for key in stale {
            // As in free_sites: the same key may be listed twice.
            let _ = files.delete(&key);
        }
    }
}

fn shrink_maps(maps: &mut OpenGateMaps) -> Result<()> {
    const SIZING: &str = "shrinking the maps of files, which are not used";
    let entry = size_of::<wire::file_key>() * wire::ARG_NAMES as usize;
    maps.lens_files.set_max_entries(1).doing(SIZING)?;
    maps.bss_file_calls.set_value_size(entry as u32).doing(SIZING)
}

/// Makes the maps of calls by file when they are first needed.
pub struct FilesKernelSide;

impl KernelSide for FilesKernelSide {
    fn lazy_maps(&self) -> Option<&'static LazyMaps> {
        Some(&LazyMaps {
            prefixes: &["lens_files", ".bss.file_calls"],
            bit: wire::LENS_FILES,
            shrink: shrink_maps,
            fit: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(family: i32) -> wire::socket_name {
        wire::socket_name { family: family as u16, local_port: 80, ..Default::default() }
    }

    #[test]
    fn sockets_have_the_addresses_of_their_family() {
        let mut four = name(libc::AF_INET);
        four.local[..4].copy_from_slice(&[127, 0, 0, 1]);
        let local = "127.0.0.1:80".parse().expect("an address");
        let addresses = SocketAddresses::Internet { local, remote: None };
        assert_eq!(socket(&four).addresses, addresses);

        let mut six = wire::socket_name { has_remote: 1, remote_port: 9, ..name(libc::AF_INET6) };
        six.local[15] = 1;
        // An IPv4 peer of an IPv6 socket.
        six.remote[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        let local = "[::1]:80".parse().expect("an address");
        let remote = Some("10.0.0.2:9".parse().expect("an address"));
        assert_eq!(socket(&six).addresses, SocketAddresses::Internet { local, remote });

        let mut unix = wire::socket_name { path_len: 3, ..name(libc::AF_UNIX) };
        unix.path[..2].copy_from_slice(&[b'/' as i8, b's' as i8]);
        assert_eq!(socket(&unix).addresses, SocketAddresses::Unix(b"/s".to_vec()));
        unix.path[0] = 0;
        assert_eq!(socket(&unix).addresses, SocketAddresses::Unix(b"\0s\0".to_vec()));
        assert_eq!(socket(&name(16)).addresses, SocketAddresses::Other(16));
    }

    #[test]
    fn calls_of_rows_are_added_by_name() {
        let mut value = wire::file_value { calls: 3, read_bytes: 5, ..Default::default() };
        value.call[0] = wire::file_call { call: 1, count: 2, wall_ns: 10 };
        let mut sum = FileStats::new(wire::FILE_AT_PATH, &value);
        value.call[0].call = 4;
        value.call[1] = wire::file_call { call: 1, count: 1, wall_ns: 5 };
        sum.add(&FileStats::new(wire::FILE_AT_PATH, &value));
        assert_eq!((sum.calls, sum.read_bytes, &sum.socket), (6, 10, &None));
        assert_eq!(sum.by_call, [(0, 3, 15), (3, 2, 10)]);

        let mut since = sum.clone();
        since.subtract(&FileStats::new(wire::FILE_AT_PATH, &value));
        assert_eq!((since.calls, since.read_bytes), (3, 5));
        assert_eq!(since.by_call, [(0, 2, 10)]);
    }
}
