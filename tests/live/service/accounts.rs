//! What a service is charged, compared with the kernel's counts of its processes and with what
//! these are known to have done.

use std::ffi::CString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::eventually;
use crate::harness::job::state;
use crate::harness::report::none_lost;
use crate::harness::services::{ActiveServices, Consumer, programs};

const SHOP: &str = "[service.shop]\n[[rule]]\nexe = \"FOLDER/shop\"\nbelongs-to = \"shop\"\n";

fn start() -> (ActiveServices, Consumer) {
    let services = ActiveServices::start(programs(&["shop"]), SHOP);
    let shop = Consumer::start(&services, "shop");
    eventually("its rule", || services.service_of(shop.0.pid()) == "shop");
    (services, shop)
}

/// What the service is charged for its own use.
fn charged(services: &ActiveServices) -> Value {
    let report = services.report();
    let mut rows = report["services"].as_array().expect("services").iter();
    rows.find(|row| row["name"] == "shop").expect("it is there").clone()
}

/// The numbers of the report that /proc also has, for a process of one thread.
fn read_from_proc(pid: u32) -> [(&'static str, u64); 8] {
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it runs");
    let (io, status, stat) = (file("io"), file("status"), file("stat"));
    let line = |text: &str, name: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        values.next().and_then(|value| value.trim().parse().ok()).expect("a number")
    };
    // proc_pid_stat(5): minflt and majflt are fields 10 and 12; two fields were cut off.
    let fields: Vec<_> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    let field = |number: usize| fields[number - 3].parse().expect("a number");
    [
        ("read_bytes", line(&io, "rchar")),
        ("written_bytes", line(&io, "wchar")),
        ("storage_read_bytes", line(&io, "read_bytes")),
        ("storage_written_bytes", line(&io, "write_bytes")),
        ("minor_faults", field(10)),
        ("major_faults", field(12)),
        ("switches", line(&status, "voluntary_ctxt_switches")),
        ("preemptions", line(&status, "nonvoluntary_ctxt_switches")),
    ]
}

fn is_on_disk(path: &Path) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in it");
    // SAFETY: room for the result, which is all numbers.
    let kind = unsafe {
        let mut kind: libc::statfs = std::mem::zeroed();
        assert_eq!(libc::statfs(path.as_ptr(), &mut kind), 0, "it is there");
        kind.f_type
    };
    // include/uapi/linux/magic.h
    const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;
    ![libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind)
}

#[test]
fn usage_matches_proc() {
    const BYTES: u64 = 3_000_000;
    let (services, mut shop) = start();
    let pid = shop.0.pid();
    // A thread may appear asleep before the kernel has counted the switch.
    let read = || {
        loop {
            eventually("its sleep", || state(pid) == Some('S'));
            let (before, charged, after) =
                (read_from_proc(pid), charged(&services), read_from_proc(pid));
            if before == after {
                return (charged, after);
            }
        }
    };
    let before = read();
    assert_eq!(
        shop.request(&format!("file {} {BYTES}", services.path("data").display())),
        BYTES.to_string()
    );
    shop.request(&format!("memory {BYTES}"));
    shop.request("burn 50");
    let after = read();
    let own = |name: &str| {
        after.0[name].as_u64().expect("a number") - before.0[name].as_u64().expect("a number")
    };
    for ((name, now), (_, then)) in after.1.into_iter().zip(before.1) {
        assert_eq!(own(name), now - then, "{name}");
    }
    assert!(own("read_bytes") >= BYTES && own("written_bytes") >= BYTES);
    // In the VM, files are in memory.
    if is_on_disk(services.folder.path()) {
        assert!(own("storage_written_bytes") >= BYTES);
    }
    assert!(own("minor_faults") > 0 && own("switches") > 0);
    none_lost(&services.report());
}

/// At any time, a thread is on a processor, waits for one, or is blocked, so the three times add up
/// to its lifetime.
#[test]
fn cpu_wait_and_blocked_add_up() {
    let (services, mut shop) = start();
    let sum = || {
        let row = charged(&services);
        ["cpu_ns", "wait_ns", "blocked_ns"].map(|name| row[name].as_u64().expect("a number"))
    };
    let timed = || {
        let began = Instant::now();
        (began, sum(), Instant::now())
    };
    let before = timed();
    let burned: u64 = shop.request("burn 200").parse().expect("a time");
    eventually("its sleep", || state(shop.0.pid()) == Some('S'));
    thread::sleep(Duration::from_millis(300));
    let after = timed();
    let [cpu, wait, blocked] = [0, 1, 2].map(|index| after.1[index] - before.1[index]);
    let least = after.0.duration_since(before.2).as_nanos() as u64;
    let most = after.2.duration_since(before.0).as_nanos() as u64;
    assert!(
        (least..=most).contains(&(cpu + wait + blocked)),
        "{cpu} {wait} {blocked} of {least} to {most} ns"
    );
    assert!(cpu >= burned && blocked >= 300_000_000, "{cpu} of {burned}, {blocked}");
}

#[test]
fn socket_bytes() {
    const REPLY_BYTES: usize = 7;
    let (services, mut shop) = start();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().expect("a connection").0;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("all it sends");
        stream.write_all(&[b'.'; REPLY_BYTES]).expect("it reads");
        bytes.len()
    });
    let before = charged(&services);
    shop.request(&format!("send {port} 4096000"));
    let after = charged(&services);
    let own = |name: &str| {
        after[name].as_u64().expect("a number") - before[name].as_u64().expect("a number")
    };
    assert_eq!(server.join().expect("it does"), 4_096_000);
    assert_eq!((own("sent_bytes"), own("received_bytes")), (4_096_000, REPLY_BYTES as u64));
}

#[test]
fn process_and_thread_counts() {
    let (services, mut shop) = start();
    let there = || {
        let row = charged(&services);
        ["processes", "threads"].map(|name| row[name].as_u64().expect("a number"))
    };
    assert_eq!(there(), [1, 1]);
    assert_eq!(shop.request_counts("fork 3"), (3, 0));
    assert_eq!(there(), [4, 4]);
    shop.request("threads 5");
    assert_eq!(there(), [4, 9]);
    // Its children end with the process.
    drop(shop);
    eventually("their end", || there() == [0, 0]);
}

#[test]
fn list_tree_and_members() {
    let text = "[service.all]\n[service.shop]\nparent = \"all\"\n[service.empty]\n\
    parent = \"all\"\n\
                [[rule]]\nexe = \"FOLDER/shop\"\nbelongs-to = \"shop\"\n";
    let services = ActiveServices::start(programs(&["shop"]), text);
    let mut shop = Consumer::start(&services, "shop");
    eventually("its rule", || services.service_of(shop.0.pid()) == "shop");
    assert_eq!(shop.request_counts("fork 2"), (2, 0));
    let listed = services.request("list").text();
    let row = |name: &str| {
        let line = listed.lines().position(|line| line.trim_start().starts_with(name)).expect(name);
        (
            line,
            listed.lines().nth(line).expect("it is there").split_whitespace().collect::<Vec<_>>(),
        )
    };
    assert!(row("all").0 < row("empty").0 && row("all").0 < row("shop").0, "{listed}");
    let members = |name: &str| [1, 3].map(|word| row(name).1[word].to_owned());
    assert_eq!(
        (members("shop"), members("empty")),
        (["3".into(), "3".into()], ["0".into(), "0".into()])
    );
}
