//! Tasks whose cycles a counter counts. The machines at hand have no counter of cycles, so an event
//! that the kernel counts stands for it: a clock with a cycle in each nanosecond.

mod alone {
    use crate::harness::job::watches;
    use crate::harness::{Job, Running};
    use crate::pace::sessions::{ByteReader, interrupted};
    use crate::pace::{NO_RULE, TIMER, Watched, watch};

    const CLOCK: &str = "cycle-counter = \"software/config=0/\"\n";

    fn counted(rules: &str, arguments: &str) -> Watched {
        let watched = watch(Some(&format!("{CLOCK}{rules}")), arguments);
        assert_eq!(watched.pace["cycle_counter"], "software/config=0x0/");
        watched
    }

    #[test]
    fn counters_count_the_work_of_tasks() {
        let cycles =
            |watched: &Watched| watched.tasks.iter().map(|(_, cycles)| cycles).sum::<f64>();
        // In the second one, the threads of a task sleep within it. When a task ends, none of them
        // runs on another processor, where its cycles would be an estimate.
        let waits = format!("{TIMER}includes-waits = true\n");
        for (rules, program) in [(NO_RULE, "own-tasks 40 2"), (&waits, "ticks-with-replies 20 2")] {
            let watched = counted(rules, program);
            watched.assert_work(program, cycles(&watched) as u64, watched.printed()[0], 40);
        }
        // Without a counter, the same clock has more cycles: the processor is faster than 1 GHz.
        let watched = watch(Some(NO_RULE), "own-tasks 40 2");
        assert!(cycles(&watched) > 1.2 * watched.printed()[0] as f64);
    }

    /// A watch, which is there when this returns.
    fn started(watch: Job) -> Running {
        let watch = watch.start();
        watches(&watch);
        watch
    }

    #[test]
    fn first_session_decides_what_counts() {
        const NONE: &str = "cycle-counter = \"none\"\n";
        let subject = ByteReader::new();
        let first = started(subject.watch(CLOCK));
        let second = started(subject.watch(""));
        let expected = "the cycle-counter of another session is software/config=0x0/";
        subject.watch(NONE).finish().exits_with(125).says(expected);
        interrupted(first);
        let later = started(subject.watch(""));
        for session in [second, later] {
            assert_eq!(interrupted(session)["pace"]["cycle_counter"], "software/config=0x0/");
        }
        // No session uses the counters any more.
        let last = started(subject.watch(NONE));
        assert!(interrupted(last)["pace"]["cycle_counter"].is_null());
        subject.end();
    }

    #[test]
    fn sessions_that_start_at_once_count_alike() {
        let subject = ByteReader::new();
        for _ in 0..2 {
            let sessions = [CLOCK, CLOCK].map(|rules| subject.watch(rules).start());
            sessions.iter().for_each(watches);
            for session in sessions {
                assert_eq!(interrupted(session)["pace"]["cycle_counter"], "software/config=0x0/");
            }
        }
        subject.end();
    }

    #[test]
    fn counters_that_the_machine_lacks_are_refused() {
        let subject = ByteReader::new();
        for (counter, expected) in [
            ("no-such/config=0/", "this machine has no counters of `no-such`"),
            ("software/config=65535/", "no processor of this machine has this event"),
        ] {
            let line = format!("cycle-counter = \"{counter}\"\n");
            let refused = subject.watch(&line).finish().exits_with(125);
            refused.says(expected).says("rules.toml:1:17").says("leave out `cycle-counter`");
        }
        subject.end();
    }
}
