//! The text form of `guard show`.

use std::fmt::Write as _;
use std::path::Path;

use ::guard::Parameters;

use super::super::baseline::{Baseline, BaselineState, freezing_ratio};
use super::super::resolve::{short_name, title};
use super::followers::{CallFollowers, FollowingCall};
use crate::format::{count, number_of, printable, shown_path, span};

/// A table of baselines, at most `top` of them. `now` is in Unix seconds.
pub fn list(all: &[Baseline], folder: &Path, top: usize, now: u64) -> String {
    if all.is_empty() {
        return format!("no baselines in {}\n", shown_path(folder));
    }
    let mut out = format!(
        "{:<9} {:>15} {:>8} {:>7} {:>8} {:>12} {:>7}  {:<19}  program\n",
        "state", "calls", "distinct", "pairs", "windows", "last new", "ratio", "digest"
    );
    for it in all.iter().take(top) {
        let _ = writeln!(
            out,
            "{:<9} {:>15} {:>8} {:>7} {:>8} {:>12} {:>7}  {:<19}  {}",
            it.state.name(),
            count(it.seen_calls),
            it.calls.len(),
            count(it.pairs.len() as u64),
            count(it.windows.len() as u64),
            time_since(it.last_changed, now),
            it.ratio().map_or("-".into(), |ratio| format!("{ratio:.1}")),
            short_name(it),
            title(it)
        );
    }
    more(&mut out, all.len(), top);
    let _ = writeln!(
        out,
        "ratio: all training calls, divided by those up to the last call that taught something \
        new; a baseline freezes when the ratio exceeds {}",
        freezing_ratio()
    );
    out
}

/// One baseline, with the calls that follow each call.
pub fn one(it: &Baseline, successors: &[CallFollowers<'_>], top: usize, now: u64) -> String {
    let mut out = format!("{}\n\n", title(it));
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<8} {value}");
    };
    row("digest", &it.digest.to_string());
    for path in it.paths.iter().skip(1) {
        row("also at", &printable(path));
    }
    row(
        "seen",
        &format!("{} calls, the first {}", count(it.seen_calls), time_since(it.first_seen, now)),
    );
    row("state", &state(it, now));
    row("ratio", &stability_text(it, now));
    row(
        "knows",
        &format!(
            "{}, {}, {}",
            number_of(it.calls.len(), "call"),
            number_of(it.pairs.len(), "pair"),
            number_of(it.windows.len(), "window")
        ),
    );
    let is_any_normal = it.pairs.iter().any(|pair| pair.normal != 0);
    follow(&mut out, successors, is_any_normal, top);
    out
}

/// The state, and what would end it.
fn state(it: &Baseline, now: u64) -> String {
    let Parameters { normal_wait, anomaly_limit, .. } = Parameters::default();
    match it.state {
        BaselineState::Training => format!(
            "training: freezes when the ratio exceeds {}, and becomes normal {} later",
            freezing_ratio(),
            span(normal_wait.as_secs())
        ),
        BaselineState::Frozen { normal_at } if normal_at < now => {
            "frozen: becomes normal at the next call, unless that call is new".into()
        }
        BaselineState::Frozen { normal_at } => {
            format!(
                "frozen: becomes normal in {}, unless something new comes first",
                span(normal_at - now)
            )
        }
        BaselineState::Normal => format!(
            "normal: {} since it became normal, {} of them counted; more than {anomaly_limit} \
            counted ones return it to training",
            match it.anomalies {
                1 => "1 anomaly".into(),
                n => format!("{} anomalies", count(n)),
            },
            it.counted_anomalies
        ),
    }
}

fn stability_text(it: &Baseline, now: u64) -> String {
    let trained = count(it.trained);
    match it.ratio() {
        None if it.trained == 0 => {
            "no training calls since the baseline became normal or was wiped".into()
        }
        None => format!("nothing new in {trained} training calls"),
        Some(ratio) => format!(
            "{ratio:.1}: {trained} training calls; call {} was the last that taught something new \
            ({})",
            count(it.changed_at),
            time_since(it.last_changed, now)
        ),
    }
}

fn follow(out: &mut String, all: &[CallFollowers<'_>], is_any_normal: bool, top: usize) {
    let is_any_new = all.iter().flat_map(|it| &it.followed_by).any(FollowingCall::is_new);
    let note = match (is_any_normal, is_any_new) {
        (false, _) => " (nothing is normal yet)",
        (true, true) => " (*: learned, not normal yet)",
        (true, false) => "",
    };
    let _ = writeln!(out, "\n{:<24} followed by{note}", "call");
    for CallFollowers { call, followed_by } in all.iter().take(top) {
        let mark = |it: &FollowingCall<'_>| if is_any_normal && it.is_new() { "*" } else { "" };
        let mut names: Vec<_> =
            followed_by.iter().take(top).map(|it| printable(it.call) + mark(it)).collect();
        if followed_by.len() > top {
            names.push(format!("… {} more", followed_by.len() - top));
        }
        let _ = writeln!(out, "{:<24} {}", printable(call), names.join(", "));
    }
    more(out, all.len(), top);
}

fn more(out: &mut String, all: usize, top: usize) {
    if all > top {
        let _ = writeln!(out, "… {} more", all - top);
    }
}

/// How long ago a time was; 0 for a time in the future, which comes from another machine's clock.
fn time_since(then: u64, now: u64) -> String {
    format!("{} ago", span(now.saturating_sub(then)))
}

#[cfg(test)]
mod tests {
    use super::super::super::baseline::tests::example;
    use super::super::successors;
    use super::*;

    const NOW: u64 = 1_700_007_300;

    #[test]
    fn states_name_their_condition() {
        let said = |state_of| {
            state(
                &Baseline { state: state_of, anomalies: 1, counted_anomalies: 1, ..example() },
                NOW,
            )
        };
        assert_eq!(
            said(BaselineState::Training),
            "training: freezes when the ratio exceeds 4, and becomes normal 7 days later"
        );
        assert_eq!(
            said(BaselineState::Frozen { normal_at: NOW + 7200 }),
            "frozen: becomes normal in 2 h, unless something new comes first"
        );
        assert_eq!(
            said(BaselineState::Frozen { normal_at: NOW - 1 }),
            "frozen: becomes normal at the next call, unless that call is new"
        );
        assert_eq!(
            said(BaselineState::Normal),
            "normal: 1 anomaly since it became normal, 1 of them counted; more than 30 counted \
            ones return it to training"
        );
    }

    #[test]
    fn stability_is_the_ratio() {
        assert_eq!(
            stability_text(&example(), NOW),
            "5.0: 500 training calls; call 100 was the last that taught something new (2 h ago)"
        );
        let normal = Baseline { trained: 1234, changed_at: 0, ..example() };
        assert_eq!(stability_text(&normal, NOW), "nothing new in 1,234 training calls");
        assert_eq!(
            stability_text(&Baseline { trained: 0, ..normal }, NOW),
            "no training calls since the baseline became normal or was wiped"
        );
    }

    #[test]
    fn followers_are_marked_and_truncated() {
        let table = |it: &Baseline, top| {
            let text = one(it, &successors(it), top, NOW);
            text.split_once("\ncall ").expect("a table").1.to_owned()
        };
        let columns = |call: &str, followed_by: &str| format!("{call:<24} {followed_by}\n");
        assert_eq!(
            table(&example(), 20),
            columns("", "followed by (*: learned, not normal yet)")[5..].to_owned()
                + &columns("read", "close*")
                + &columns("close", "read*, open")
                + &columns("open", "read")
        );
        assert!(table(&example(), 2).ends_with("\n… 1 more\n"));
        assert!(table(&example(), 1).contains("close*\n… 2 more\n"));

        let mut fresh = example();
        fresh.pairs.iter_mut().for_each(|pair| pair.normal = 0);
        let fresh_table = table(&fresh, 20);
        assert!(fresh_table.contains("(nothing is normal yet)") && !fresh_table.contains('*'));
    }
}
