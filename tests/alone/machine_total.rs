//! What all services are charged, compared with the time that the machine's processors worked.

use std::fs;
use std::thread;

use crate::harness::eventually;
use crate::harness::service_limits::start;
use crate::harness::services::Consumer;

/// Returns how long all processors have worked, by the kernel's own account, in its steps of 10 ms.
fn machine_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").expect("it is there");
    let line = text.lines().next().expect("the sum of all").split_whitespace().skip(1);
    let ticks: Vec<u64> = line.map(|field| field.parse().expect("ticks")).collect();
    // proc_stat(5): user, nice, system, irq and softirq; not idle, iowait and steal.
    [0, 1, 2, 5, 6].iter().map(|field| ticks[*field] * 10_000_000).sum()
}

#[test]
fn charges_add_up_to_machine_cpu_time() {
    // One step for each of these five numbers, on each processor.
    let steps = 50_000_000 * thread::available_parallelism().map_or(1, usize::from) as u64;
    let services = start(&[("shop", "")]);
    let mut shop = Consumer::start(&services, "shop");
    eventually("its rule", || services.service_of(shop.0.pid()) == "shop");
    let read = || {
        let report = services.report();
        let rows = report["services"].as_array().expect("services");
        let charged: u64 = rows.iter().map(|row| row["cpu_ns"].as_u64().expect("a number")).sum();
        let [machine, kernel] =
            ["machine_cpu_ns", "kernel_cpu_ns"].map(|name| report[name].as_u64().expect("one"));
        (charged, machine, kernel)
    };
    let outer = machine_ns();
    let before = read();
    let inner = machine_ns();
    shop.request("burn 1500");
    let inner = machine_ns() - inner;
    let after = read();
    let outer = machine_ns() - outer;
    let (charged, machine) = (after.0 - before.0, after.1 - before.1);
    assert!(
        (inner.saturating_sub(steps)..=outer + steps).contains(&machine),
        "{machine} of {inner} to {outer} ns"
    );
    // No time is charged twice: the kernel's own part is not negative.
    assert!(charged <= machine + machine / 50 + steps, "{charged} of {machine} ns");
    assert_eq!(after.2, after.1.saturating_sub(after.0));
    // While a program only computes, almost none of the time is the kernel's own.
    assert!(charged > machine / 4 * 3, "{charged} of {machine} ns");
}
