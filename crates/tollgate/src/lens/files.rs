//! `--by file`: the calls, bytes and times of each file and socket.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use kernel::lens::call_stats::RowStats;
use kernel::lens::files::{FileId, FileStats};

use super::file_name::{kind, name};
use super::order::Order;
use super::report::{CallOnFile, FileCalls};
use crate::call_name::call_name;

/// The files of a row in this order; of equal ones, the one with the most calls first.
pub fn files(row: &RowStats, order: Order) -> Vec<FileCalls> {
    // Sockets have one name if they have the same addresses, and so have files that replaced each
    // other. A path may lead to another file in another container, on another file system.
    let mut merged: BTreeMap<(String, u32), (FileId, u64, FileStats)> = BTreeMap::new();
    for (id, stats) in &row.files {
        merged
            .entry((name(id, stats), id.device))
            .and_modify(|(_, files, sum)| {
                *files += 1;
                sum.add(stats);
            })
            .or_insert_with(|| (*id, 1, stats.clone()));
    }
    let mut files: Vec<_> = merged
        .into_iter()
        .map(|((name, _), (id, files, stats))| file(name, &id, files, &stats))
        .collect();
    files.sort_by_key(|file| Reverse((key(order, file), file.wall_ns, file.calls)));
    files
}

fn file(name: String, id: &FileId, files: u64, stats: &FileStats) -> FileCalls {
    let mut by_call: Vec<_> = stats
        .by_call
        .iter()
        .map(|(call, count, wall_ns)| {
            let (abi, name) = call_name(*call);
            CallOnFile { name, abi: abi.as_str().into(), count: *count, wall_ns: *wall_ns }
        })
        .collect();
    by_call.sort_by_key(|call| Reverse((call.wall_ns, call.count)));
    FileCalls {
        kind: kind(id, stats).into(),
        name,
        files,
        calls: stats.calls,
        errors: stats.errors,
        wall_ns: stats.wall_ns,
        blocked_ns: stats.blocked_ns,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        shared_calls: stats.shared_calls,
        shared_wall_ns: stats.shared_wall_ns,
        by_call,
    }
}

fn key(order: Order, file: &FileCalls) -> u64 {
    match order {
        Order::Wall => file.wall_ns,
        Order::Cpu => file.wall_ns.saturating_sub(file.blocked_ns),
        Order::Blocked => file.blocked_ns,
        Order::Count => file.calls,
        Order::Errors => file.errors,
    }
}

#[cfg(test)]
mod tests {
    use kernel::lens::files::{Socket, SocketAddresses};
    use kernel::wire;

    use super::*;

    fn stats(calls: u64, wall_ns: u64) -> FileStats {
        let unnamed =
            Socket { kind: 1, protocol: 0, addresses: SocketAddresses::Unix(b"/s".into()) };
        FileStats { calls, wall_ns, socket: Some(unnamed), ..FileStats::default() }
    }

    #[test]
    fn sockets_of_one_name_are_one_row() {
        let id = |inode| FileId { kind: wire::FILE_SOCKET, inode, ..FileId::default() };
        let mut row = RowStats::default();
        row.files.insert(id(1), FileStats { by_call: vec![(0, 2, 7)], ..stats(2, 7) });
        row.files.insert(id(2), FileStats { by_call: vec![(1, 1, 9)], ..stats(1, 9) });
        let pipe = FileId { kind: wire::FILE_PIPE, ..id(3) };
        row.files.insert(pipe, FileStats { socket: None, ..stats(9, 12) });
        let all = files(&row, Order::Wall);
        assert_eq!((all[0].name.as_str(), all[0].files, all[0].calls), ("unix /s", 2, 3));
        let calls: Vec<_> = all[0].by_call.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(calls, ["write", "read"]);
        assert_eq!((all[1].name.as_str(), all[1].kind.as_str()), ("pipe:[3]", "pipe"));
        assert_eq!(files(&row, Order::Count)[0].name, "pipe:[3]");
    }
}
