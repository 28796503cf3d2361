//! The names of files and sockets in a report.

use kernel::lens::files::{FileId, FileStats, Socket, SocketAddresses};
use kernel::wire;

use crate::kernel_text;

/// Protocols of internet sockets (include/uapi/linux/in.h).
const PROTOCOLS: [(i32, &str); 7] = [
    (libc::IPPROTO_TCP, "tcp"),
    (libc::IPPROTO_UDP, "udp"),
    (libc::IPPROTO_UDPLITE, "udplite"),
    (libc::IPPROTO_ICMP, "icmp"),
    (libc::IPPROTO_ICMPV6, "icmpv6"),
    (libc::IPPROTO_SCTP, "sctp"),
    (libc::IPPROTO_MPTCP, "mptcp"),
];

/// Families of sockets without addresses in a report (include/linux/socket.h).
const FAMILIES: [(i32, &str); 4] = [
    (libc::AF_NETLINK, "netlink"),
    (libc::AF_PACKET, "packet"),
    (libc::AF_ALG, "alg"),
    (libc::AF_VSOCK, "vsock"),
];

fn find(names: &[(i32, &'static str)], number: u16, what: &str) -> String {
    let known = names.iter().find(|(known, _)| *known == i32::from(number));
    known.map_or_else(|| format!("{what} {number}"), |(_, name)| (*name).to_owned())
}

/// What a file is: `file`, `folder`, `device`, `fifo`, `socket`, `pipe` or `anonymous`.
pub fn kind(id: &FileId, stats: &FileStats) -> &'static str {
    match id.kind {
        wire::FILE_SOCKET => "socket",
        wire::FILE_PIPE => "pipe",
        wire::FILE_ANONYMOUS => "anonymous",
        _ => match u32::from(stats.path.mode) & libc::S_IFMT {
            libc::S_IFDIR => "folder",
            libc::S_IFCHR | libc::S_IFBLK => "device",
            libc::S_IFIFO => "fifo",
            _ => "file",
        },
    }
}

/// The name of a file: its path, the addresses of a socket, or what /proc/PID/fd shows.
pub fn name(id: &FileId, stats: &FileStats) -> String {
    match (id.kind, &stats.socket) {
        (wire::FILE_PIPE, _) => format!("pipe:[{}]", id.inode),
        (wire::FILE_ANONYMOUS, _) => format!("anon_inode:{}", wire::text(&stats.path.part[0])),
        (_, Some(socket)) => socket_name(socket, id.inode),
        _ if stats.is_deleted => format!("{} (deleted)", kernel_text::path(&stats.path)),
        _ => kernel_text::path(&stats.path),
    }
}

fn socket_name(socket: &Socket, inode: u64) -> String {
    match &socket.addresses {
        SocketAddresses::Internet { local, remote } => {
            let protocol = find(&PROTOCOLS, socket.protocol, "protocol");
            match remote {
                Some(remote) => format!("{protocol} {local} - {remote}"),
                None => format!("{protocol} {local}"),
            }
        }
        SocketAddresses::Unix(path) => match path.split_first() {
            None => format!("unix socket:[{inode}]"),
            Some((0, name)) => format!("unix @{}", String::from_utf8_lossy(name)),
            Some(_) => format!("unix {}", String::from_utf8_lossy(path)),
        },
        SocketAddresses::Other(family) => {
            format!("{} socket:[{inode}]", find(&FAMILIES, *family, "family"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(addresses: SocketAddresses, protocol: i32) -> String {
        socket_name(&Socket { kind: 1, protocol: protocol as u16, addresses }, 7)
    }

    #[test]
    fn sockets_are_named_by_their_addresses() {
        let local = "127.0.0.1:80".parse().expect("an address");
        let remote = "[::1]:9".parse().ok();
        let internet = |remote| SocketAddresses::Internet { local, remote };
        assert_eq!(of(internet(None), libc::IPPROTO_TCP), "tcp 127.0.0.1:80");
        assert_eq!(of(internet(remote), libc::IPPROTO_UDP), "udp 127.0.0.1:80 - [::1]:9");
        assert_eq!(of(internet(None), 200), "protocol 200 127.0.0.1:80");
        let unix = |path: &[u8]| of(SocketAddresses::Unix(path.to_vec()), 0);
        assert_eq!(unix(b"/run/s"), "unix /run/s");
        assert_eq!(unix(b"\0name"), "unix @name");
        assert_eq!(unix(b""), "unix socket:[7]");
        let other = |family: i32| of(SocketAddresses::Other(family as u16), 0);
        assert_eq!(other(libc::AF_NETLINK), "netlink socket:[7]");
        assert_eq!(other(99), "family 99 socket:[7]");
    }
}
