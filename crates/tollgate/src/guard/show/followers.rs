//! Which calls followed each call.

use std::cmp::Reverse;

use serde::Serialize;

use super::super::baseline::{Baseline, BaselinePair};

/// The calls that followed a call immediately.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct CallFollowers<'a> {
    pub call: &'a str,
    pub followed_by: Vec<FollowingCall<'a>>,
}

/// One call that followed another.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct FollowingCall<'a> {
    pub call: &'a str,
    pub learned: bool,
    pub normal: bool,
}

impl FollowingCall<'_> {
    /// Whether it was learned and is not normal yet.
    pub fn is_new(&self) -> bool {
        self.learned && !self.normal
    }
}

/// The followers of each call, in the order in which calls were first seen. Calls with followers
/// that are not normal yet come first. Such followers also come first among the followers of a
/// call.
pub fn successors(baseline: &Baseline) -> Vec<CallFollowers<'_>> {
    const ONE_BEFORE: u8 = 1;
    let successor = |pair: &BaselinePair| FollowingCall {
        call: baseline.call(pair.call),
        learned: pair.learned & ONE_BEFORE != 0,
        normal: pair.normal & ONE_BEFORE != 0,
    };
    let mut pairs: Vec<_> = baseline
        .pairs
        .iter()
        .filter(|pair| (pair.learned | pair.normal) & ONE_BEFORE != 0)
        .collect();
    pairs.sort_by_key(|pair| (pair.earlier, Reverse(successor(pair).is_new()), pair.call));
    let of_one_call = |pairs: &[&BaselinePair]| CallFollowers {
        call: baseline.call(pairs[0].earlier),
        followed_by: pairs.iter().map(|pair| successor(pair)).collect(),
    };
    let mut all: Vec<_> = pairs.chunk_by(|a, b| a.earlier == b.earlier).map(of_one_call).collect();
    all.sort_by_key(|of_one| Reverse(of_one.followed_by.iter().any(FollowingCall::is_new)));
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::baseline::tests::example;
    use super::*;

    #[test]
    fn followers_are_adjacent_and_new_ones_first() {
        let baseline = example();
        let successor = |call, learned, normal| FollowingCall { call, learned, normal };
        assert_eq!(
            successors(&baseline),
            [
                CallFollowers { call: "read", followed_by: vec![successor("close", true, false)] },
                CallFollowers {
                    call: "close",
                    followed_by: vec![
                        successor("read", true, false),
                        successor("open", false, true)
                    ]
                },
                CallFollowers { call: "open", followed_by: vec![successor("read", true, true)] },
            ]
        );
    }
}
