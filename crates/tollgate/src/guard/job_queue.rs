//! In which order the files of programs are opened and hashed. Each user's files wait in a queue of
//! their own, so that those of one user do not keep the guard from identifying the programs of
//! others.

use std::collections::{BTreeMap, VecDeque};

/// What a job does with its file. At most one of each is done at a time for each user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    /// Opens the file, and hashes it if it is short.
    Open,
    /// Hashes a file of this length. Shorter ones take precedence.
    Hash(u64),
}

/// The maximum number of files that are hashed at a time. The other threads open files.
const MAX_HASHING: usize = 2;

/// The jobs of one user.
struct UserJobs<J> {
    opening: VecDeque<J>,
    /// By length and by the order of their arrival.
    hashing: BTreeMap<(u64, u64), J>,
    is_opening: bool,
    is_hashing: bool,
    /// When a job of the user was last taken, as a number of jobs; 0: not yet.
    served: u64,
}

/// Jobs that wait.
pub struct JobQueue<J> {
    users: BTreeMap<u32, UserJobs<J>>,
    hashing: usize,
    arrived: u64,
    served: u64,
}

impl<J> Default for JobQueue<J> {
    fn default() -> Self {
        Self { users: BTreeMap::new(), hashing: 0, arrived: 0, served: 0 }
    }
}

impl<J> JobQueue<J> {
    /// Adds a job of a user.
    pub fn push(&mut self, user: u32, kind: JobKind, job: J) {
        self.arrived += 1;
        let jobs = self.users.entry(user).or_insert_with(|| UserJobs {
            opening: VecDeque::new(),
            hashing: BTreeMap::new(),
            is_opening: false,
            is_hashing: false,
            served: 0,
        });
        match kind {
            JobKind::Open => jobs.opening.push_back(job),
            JobKind::Hash(length) => drop(jobs.hashing.insert((length, self.arrived), job)),
        }
    }

    /// How many files of the user wait to be hashed.
    pub fn hashes_waiting(&self, user: u32) -> usize {
        self.users.get(&user).map_or(0, |jobs| jobs.hashing.len())
    }

    /// The next job that may begin: of the user whose turn was the longest time ago. Files are
    /// opened first. [`Self::done`] must follow.
    pub fn take(&mut self) -> Option<(u32, JobKind, J)> {
        let may_hash = self.hashing < MAX_HASHING;
        let turn = |may_begin: &dyn Fn(&UserJobs<J>) -> bool| {
            let users = self.users.iter().filter(|(_, jobs)| may_begin(jobs));
            users.min_by_key(|(_, jobs)| jobs.served).map(|(user, _)| *user)
        };
        let opens = turn(&|jobs| !jobs.is_opening && !jobs.opening.is_empty());
        let hashes = || turn(&|jobs| may_hash && !jobs.is_hashing && !jobs.hashing.is_empty());
        let user = opens.or_else(hashes)?;
        self.served += 1;
        let jobs = self.users.get_mut(&user)?;
        jobs.served = self.served;
        if opens.is_some() {
            jobs.is_opening = true;
            return Some((user, JobKind::Open, jobs.opening.pop_front()?));
        }
        jobs.is_hashing = true;
        self.hashing += 1;
        let ((length, _), job) = jobs.hashing.pop_first()?;
        Some((user, JobKind::Hash(length), job))
    }

    /// A job that was taken has ended.
    pub fn done(&mut self, user: u32, kind: JobKind) {
        let Some(jobs) = self.users.get_mut(&user) else { return };
        match kind {
            JobKind::Open => jobs.is_opening = false,
            JobKind::Hash(_) => {
                jobs.is_hashing = false;
                self.hashing -= 1;
            }
        }
        let is_idle = !jobs.is_opening && !jobs.is_hashing;
        if is_idle && jobs.opening.is_empty() && jobs.hashing.is_empty() {
            self.users.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 0;

    #[test]
    fn many_files_of_a_user_do_not_delay_others() {
        let mut queue = JobQueue::default();
        (0..40).for_each(|_| queue.push(65534, JobKind::Hash(1 << 30), "sparse"));
        let running = queue.take();
        assert_eq!(running, Some((65534, JobKind::Hash(1 << 30), "sparse")));
        assert_eq!(queue.take(), None, "one of each user");
        queue.push(ROOT, JobKind::Hash(90 << 20), "node");
        assert_eq!(queue.take(), Some((ROOT, JobKind::Hash(90 << 20), "node")));
        queue.push(1000, JobKind::Hash(20 << 20), "go");
        assert_eq!(queue.take(), None, "two are hashed already");
        queue.done(65534, JobKind::Hash(1 << 30));
        assert_eq!(queue.take().map(|(user, ..)| user), Some(1000), "it was not served yet");
        queue.push(ROOT, JobKind::Open, "ls");
        assert_eq!(queue.take(), Some((ROOT, JobKind::Open, "ls")));
    }

    #[test]
    fn shorter_files_of_a_user_come_first() {
        let mut queue = JobQueue::default();
        for length in [3, 1, 2, 1] {
            queue.push(ROOT, JobKind::Hash(length), length);
        }
        assert_eq!(queue.hashes_waiting(ROOT), 4);
        let mut order = Vec::new();
        while let Some((user, kind, length)) = queue.take() {
            order.push(length);
            queue.done(user, kind);
        }
        assert_eq!(order, [1, 1, 2, 3]);
        assert!(queue.users.is_empty());
    }

    #[test]
    fn a_file_that_never_opens_delays_its_user_alone() {
        let mut queue = JobQueue::default();
        queue.push(1000, JobKind::Open, "stuck");
        assert!(queue.take().is_some());
        queue.push(1000, JobKind::Open, "next");
        assert_eq!(queue.take(), None);
        queue.push(ROOT, JobKind::Open, "ls");
        assert_eq!(queue.take(), Some((ROOT, JobKind::Open, "ls")));
        queue.done(1000, JobKind::Open);
        assert_eq!(queue.take(), Some((1000, JobKind::Open, "next")));
    }
}
