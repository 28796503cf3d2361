//! Work that is handed on within and between real programs: a shell's pipeline, and a server with
//! helper threads.

use std::path::PathBuf;

use crate::harness::eventually;
use crate::harness::job::{copy, cpu_ns, folder};
use crate::harness::services::ActiveServices;
use crate::harness::web_stack::{PerTenant, TENANTS, free_port, listens, redis};
use crate::harness::{Job, Running, words};

use super::web_tenants::{charged, difference, misbilled, split};

/// In tenant a, the compressor belongs to the tenant; in tenant b, it is a service of its own.
const PIPELINES: &str = r#"
[service.a]
[service.b]
[service.compression]

[[rule]]
exe = "FOLDER/a"
belongs-to = "a"

[[rule]]
exe = "FOLDER/b"
belongs-to = "b"

[[rule]]
exe = "FOLDER/gzip"
belongs-to = "compression"

[[rule]]
exe = "FOLDER/gzip"
service = "a"
inherits = true
"#;

/// Prints the processor time of the shell's processes, first without and then with the compressor.
const PIPELINE: &str = "head -c 40000000 /dev/urandom | cat | tr a b | wc -c; times; \
                        head -c 12000000 /dev/urandom | FOLDER/gzip | cat >/dev/null; times";

fn program(name: &str) -> PathBuf {
    let found = ["/usr/bin", "/bin"].map(|folder| PathBuf::from(folder).join(name));
    found.into_iter().find(|path| path.exists()).expect("Debian has it always")
}

/// Parses each `times` in the output, "0m0.012s 0m0.003s" twice: the time of the shell and of its
/// children.
fn times(said: &str) -> Vec<u64> {
    let time = |text: &str| -> Option<f64> {
        let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
        Some((minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?) * 1e9)
    };
    let times: Vec<_> = said.split_whitespace().filter_map(time).collect();
    times.chunks(4).map(|four| four.iter().sum::<f64>() as u64).collect()
}

#[test]
fn shell_pipeline() {
    let folder = folder();
    for name in TENANTS {
        copy(&program("bash"), &folder.path().join(name));
    }
    copy(&program("gzip"), &folder.path().join("gzip"));
    let script = PIPELINE.replace("FOLDER", folder.path().to_str().expect("text"));
    let services = ActiveServices::start(folder, PIPELINES);
    let shells: [Running; 2] = TENANTS.map(|name| {
        Job::of(vec![services.path(name).into(), "-c".into(), script.clone().into()]).start()
    });
    let times = shells.map(|shell| times(&shell.finish().success().text()));
    let usage = services.usage_by_service("cpu_ns");
    let compressed = usage["compression"];
    // All work of b but gzip, and all work of a including gzip.
    let worked: PerTenant = [times[0][1], times[1][1] - compressed];
    let charged = charged(&services);
    eprintln!(
        "pipelines: {charged:?} ns charged of {worked:?} ns, and {compressed} ns for compression"
    );
    assert!(compressed > (times[1][1] - times[1][0]) / 2 && compressed < times[1][1] - times[1][0]);
    assert!(misbilled(charged, worked) <= 0.02, "{charged:?} ns were charged of {worked:?} ns");
}

const REDIS: &str = r#"
[service.a]
[service.b]

[[rule]]
exe = "FOLDER/redis-server"
listen = "127.0.0.1:PORT"
belongs-to = "a"

[[rule]]
exe = "FOLDER/redis-server"
listen = "FOLDER/socket"
belongs-to = "b"
"#;

/// Commands of each tenant, over eight connections. With four replies to write at once, Redis's I/O
/// threads work as well, and the main thread waits for them in a busy loop. That time belongs to no
/// tenant, or to the last one.
const COMMANDS: u64 = 120;
/// Rounds of the loop in each command, which records the main thread's usage meanwhile (getrusage).
const ROUNDS: PerTenant = [1_500_000, 500_000];
const SCRIPT: &str = "local function used() \
                          local sum = 0 \
                          for time in redis.call('INFO', 'cpu'):gmatch('_main_thread:([%d.]+)') \
                          do sum = sum + time end \
                          return sum \
                      end \
                      local began = used() for round = 1, ROUNDS do end \
                      redis.call('INCRBYFLOAT', 'TENANT', used() - began)";

/// Redis's event loop works for the tenants alternately, and has helper threads.
#[test]
fn redis_with_io_threads() {
    let folder = folder();
    copy(&redis(), &folder.path().join("redis-server"));
    let (at, port) = (folder.path().to_str().expect("text").to_owned(), free_port());
    let services = ActiveServices::start(folder, &REDIS.replace("PORT", &port.to_string()));
    let command = format!(
        "{at}/redis-server --bind 127.0.0.1 --port {port} --unixsocket {at}/socket --dir {at} \
        --io-threads 2 \
         --lua-time-limit 0"
    );
    let server = Job::of(words(&command)).start();
    eventually("the server", || {
        assert!(!server.is_over(), "{}", server.read("out"));
        listens(port) && services.path("socket").exists()
    });
    let main_ns = || cpu_ns(server.pid());
    let before = (main_ns(), charged(&services));
    let addresses = [format!("-h 127.0.0.1 -p {port}"), format!("-s {at}/socket")];
    let clients: [Running; 2] = std::array::from_fn(|tenant| {
        let script = SCRIPT
            .replace("ROUNDS", &ROUNDS[tenant].to_string())
            .replace("TENANT", TENANTS[tenant]);
        let mut job =
            Job::of(words(&format!("redis-benchmark {} -c 8 -n {COMMANDS}", addresses[tenant])));
        job.command.args(["EVAL", &script, "0"]);
        job.start()
    });
    clients.into_iter().for_each(|clients| drop(clients.finish().success()));
    let charged = difference(charged(&services), before.1);
    let main = main_ns() - before.0;
    let noted: PerTenant = TENANTS.map(|tenant| {
        let said = Job::of(words(&format!("redis-cli -s {at}/socket GET {tenant}")))
            .finish()
            .success()
            .text();
        (said.trim().parse::<f64>().expect("seconds") * 1e9) as u64
    });
    // Apart from the loops, it does the same work for both.
    let worked = split(main, noted);
    let too_much: u64 =
        [0, 1].map(|tenant| charged[tenant].saturating_sub(worked[tenant])).iter().sum();
    let too_much = too_much as f64 / main as f64;
    eprintln!(
        "redis: {charged:?} ns charged of {worked:?} ns, {noted:?} of them in commands, {:.2} % \
        for others",
        too_much * 100.0
    );
    assert!(too_much <= 0.02, "{charged:?} ns were charged of {worked:?} ns");
    for tenant in [0, 1] {
        assert!(
            charged[tenant] as f64 >= 0.98 * noted[tenant] as f64,
            "{charged:?} ns charged, {noted:?} worked"
        );
    }
    server.signal(libc::SIGTERM);
    server.finish().success();
}
