//! Tests that the kernel's verifier accepts generated handlers at each hook of this machine. No
//! thread runs the handlers.

use std::cell::{Cell, RefCell};
use std::thread;

use ecode::{HookProvider as _, Loops};
use kernel::gate::{Gate, Lock};
use kernel::plugin::{ALL_SESSIONS, ChainOrder, LoadedPlugin, PluginHooks};
use kernel::{extensions, probe, wire};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any};
use proptest::test_runner::{RngSeed, TestRunner};

use super::OffsetSource;

#[expect(dead_code, reason = "hooks are the machine's here")]
#[path = "../../../../ecode/tests/common/generate.rs"]
mod generate;

const HANDLERS: [(&str, &[&str]); 19] = [
    ("call", &[]),
    ("enter", &[]),
    ("enter", &["openat", "openat2", "open"]),
    ("enter", &["fallocate"]),
    ("exit", &[]),
    ("exit", &["read", "pread64"]),
    ("guard", &["kill"]),
    ("verdict", &["execve"]),
    ("fork", &[]),
    ("exec", &[]),
    ("end", &[]),
    ("connect", &[]),
    ("bind", &[]),
    ("socket", &[]),
    ("xdp", &["lo"]),
    ("ingress", &["lo"]),
    ("egress", &["lo"]),
    ("tracepoint", &["sched:sched_switch"]),
    ("timer", &["1s"]),
];

/// Runs a test in a network namespace of its own, with a separate "lo".
fn apart(test: impl FnOnce() + Send) {
    thread::scope(|threads| {
        let apart = threads.spawn(|| {
            #[allow(unsafe_code)]
            // SAFETY: a plain call.
            let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(unshared, 0);
            test();
        });
        apart.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// `SEED` selects other cases, and `PROPTEST_CASES` their number.
fn runner() -> TestRunner {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    TestRunner::new(ProptestConfig {
        cases: number("PROPTEST_CASES").unwrap_or(8) as u32,
        max_shrink_iters: 50,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(number("SEED").unwrap_or(5)),
        ..Default::default()
    })
}

#[test]
#[ignore = "loads programs into the kernel, as root: scripts/test live"]
fn generated_handlers_load_at_every_hook() {
    apart(|| {
        let gate = Gate::open(
            &Lock::take().expect("nobody keeps it"),
            wire::PLUGIN | wire::PLUGIN_EXIT,
            &extensions::ALL,
        );
        let (gate, hooks) = (gate.expect("it is loaded"), RefCell::new(PluginHooks::default()));
        let loaded = HANDLERS.map(|_| Cell::new(0));
        let load = |bytes: &[u8], hook: &str, selected: &[&str], loaded: &Cell<u32>| {
            let (selected, quoted): (Vec<_>, Vec<_>) =
                selected.iter().map(|name| (String::from(*name), format!("\"{name}\""))).unzip();
            let head = match &quoted[..] {
                [] => format!("on {hook}"),
                all => format!("on {hook}({})", all.join(", ")),
            };
            let spec = OffsetSource::ToLoad.spec(hook, &selected).expect(&head);
            let fields = spec.fields.into_iter().filter(|field| field.ty.is_number());
            let text = generate::handler(bytes, &head, fields.map(|field| field.name));
            let Some(program) = ecode::check(&text, &OffsetSource::ToLoad).0 else { return };
            let kinds = [Loops::MayGoto, Loops::Helper];
            for loops in
                kinds.into_iter().filter(|kind| *kind == Loops::Helper || probe::loops() == *kind)
            {
                let object = match ecode::compile(&program, &text, "test.ec", loops) {
                    Err(problem) if generate::needs_more_memory(&problem) => continue,
                    compiled => compiled.unwrap_or_else(|problem| panic!("{text}\n{problem:?}")),
                };
                let order = ChainOrder { session: ALL_SESSIONS, ..ChainOrder::default() };
                let mut hooks = hooks.borrow_mut();
                let plugin = LoadedPlugin::load_at(&object, &mut hooks, &gate, order, None);
                plugin.unwrap_or_else(|error| panic!("{text}\n{error}")).retire(&mut hooks);
                loaded.set(loaded.get() + 1);
            }
        };
        let tried = runner().run(&vec(any::<u8>(), 0..600), |bytes| {
            let all = HANDLERS.iter().zip(&loaded);
            all.for_each(|((hook, selected), loaded)| load(&bytes, hook, selected, loaded));
            Ok(())
        });
        tried.unwrap_or_else(|problem| panic!("{problem}"));
        hooks.into_inner().wait_for_retired();
        gate.close(&Lock::take().expect("nobody keeps it"));
        let loaded = loaded.map(Cell::into_inner);
        println!("loaded: {loaded:?}");
        assert!(loaded.iter().all(|times| *times > 0), "{loaded:?}");
    });
}
