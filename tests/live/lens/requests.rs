//! The list of processes to attach, which all sessions share.

/// Change the list, and need to know the numbers of sessions.
mod alone {
    use kernel::wire;
    use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

    use crate::harness::bpf::shared_map;
    use crate::harness::job::watches;
    use crate::harness::{Job, Running};
    use crate::lens::subject::{CALLS, Subject};

    /// Above the numbers of processes (include/linux/threads.h, PID_MAX_LIMIT).
    const NO_PROCESS: u32 = 1 << 23;

    /// Entries that remain in the gate's list until the value is dropped.
    struct LeftRequests {
        map: MapHandle,
        tgids: Vec<u32>,
    }

    impl LeftRequests {
        fn of(session: u32, tgids: impl IntoIterator<Item = u32>) -> Self {
            let map = shared_map("attach_requests");
            let tgids = Vec::from_iter(tgids);
            let words = [session, 0, 0, 0].map(u32::to_ne_bytes);
            for tgid in &tgids {
                map.update(&tgid.to_ne_bytes(), words.as_flattened(), MapFlags::ANY)
                    .expect("the list has room");
            }
            Self { map, tgids }
        }

        fn remaining(&self) -> usize {
            self.map.keys().count()
        }
    }

    impl Drop for LeftRequests {
        fn drop(&mut self) {
            for tgid in &self.tgids {
                let _ = self.map.delete(&tgid.to_ne_bytes());
            }
        }
    }

    /// Ends a lens, and returns the calls that it has counted.
    #[track_caller]
    fn calls_seen_by(lens: Running) -> u64 {
        lens.signal(libc::SIGINT);
        lens.finish().success().report().complete().count("getppid")
    }

    #[test]
    fn requests_that_others_have_left_attach_nothing() {
        let (mut subject, mut left, mut right) = (Subject::new(), Subject::new(), Subject::new());
        let first = subject.watch();
        // The numbers of sessions begin at 1. The first session lives, the second one comes next.
        let of_living = LeftRequests::of(1, [left.pid()]);
        let of_next = LeftRequests::of(2, [right.pid()]);
        let second = subject.watch();
        assert_eq!(of_next.remaining(), 1, "only the request of the living session remains");
        [&mut subject, &mut left, &mut right].into_iter().for_each(Subject::make_calls);
        assert_eq!([calls_seen_by(second), calls_seen_by(first)], [CALLS; 2]);
        drop((of_living, of_next));
        [subject, left, right].into_iter().for_each(Subject::end);
    }

    #[test]
    fn list_that_is_full_of_left_requests_is_cleared() {
        let mut subject = Subject::new();
        let first = subject.watch();
        let left = LeftRequests::of(wire::SESSIONS - 1, NO_PROCESS..NO_PROCESS + wire::THREADS);
        let second = subject.watch();
        assert_eq!(left.remaining(), 0);
        subject.make_calls();
        assert_eq!([calls_seen_by(second), calls_seen_by(first)], [CALLS; 2]);
        subject.end();
    }

    #[test]
    fn more_processes_than_the_list_has_room_for_are_attached() {
        let mut subjects = [Subject::new(), Subject::new(), Subject::new()];
        let first = subjects[0].watch();
        // The requests of a living session are left alone. One more has room.
        let left = LeftRequests::of(1, NO_PROCESS..NO_PROCESS + wire::THREADS - 1);
        let pids = subjects.each_ref().map(|subject| format!("-p {}", subject.pid())).join(" ");
        let second = Job::lens(&pids).start();
        watches(&second);
        subjects.iter_mut().for_each(Subject::make_calls);
        assert_eq!([calls_seen_by(second), calls_seen_by(first)], [3 * CALLS, CALLS]);
        drop(left);
        subjects.into_iter().for_each(Subject::end);
    }
}
