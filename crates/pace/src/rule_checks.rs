//! Finds rules that can never begin a task, and names that no user can have.

use std::ops::Range;

use toml_reader::{At, Problem, Problems, TableReader};

use crate::task_rules::{
    BeginningResult, COMPARED_PROGRAM_LEN, DescriptorKind, TaskRule, is_same_program,
};

/// The kinds of descriptors that a call can have, of those that a rule can name.
fn kinds_of(call: &str) -> &'static [DescriptorKind] {
    match call {
        "accept" | "accept4" | "recvfrom" | "recvmmsg" | "recvmsg" => &[DescriptorKind::Socket],
        "epoll_pwait" | "epoll_pwait2" | "epoll_wait" => &[DescriptorKind::Epoll],
        "ioctl" | "read" | "readv" => &DescriptorKind::ALL,
        // The others have no descriptor, several, or one of another kind.
        _ => &[],
    }
}

/// Adds a problem for each call that can have none of the rule's descriptors.
pub fn check_descriptors(
    entry: &mut TableReader<'_, '_>,
    calls: &[((&'static str, BeginningResult), Range<usize>)],
    descriptors: &[DescriptorKind],
    port: Option<&At<i64>>,
) {
    let socket = [DescriptorKind::Socket];
    let wanted = match port {
        Some(port) if !descriptors.is_empty() && !descriptors.contains(&socket[0]) => {
            let help = "leave out `port`, or add \"socket\" to `descriptor`";
            let problem = Problem::new(port.span.clone(), "only sockets have a port");
            entry.problem(problem.help(help));
            return;
        }
        Some(_) => &socket,
        None => descriptors,
    };
    if wanted.is_empty() {
        return;
    }
    for ((call, _), span) in calls {
        if !kinds_of(call).iter().any(|kind| wanted.contains(kind)) {
            let kinds: Vec<_> = wanted.iter().map(|kind| kind.name()).collect();
            let text = format!("{call} never has a descriptor of this kind: {}", kinds.join(", "));
            let help = "leave out the call, or give it a rule without `descriptor` and `port`";
            entry.problem(Problem::new(span.clone(), text).help(help));
        }
    }
}

/// Adds a problem for each rule that never decides, because an earlier one matches whenever it
/// does.
pub fn find_shadowed(rules: &[(TaskRule, Range<usize>)], problems: &mut Problems) {
    for (index, (rule, span)) in rules.iter().enumerate() {
        let earlier = rules[..index].iter().find(|(earlier, _)| covers(earlier, rule));
        if let Some((earlier, other)) = earlier {
            let text = format!("this rule begins no task: {:?} decides before it", earlier.name);
            let problem = Problem::new(span.clone(), text).other(other.clone(), "the earlier rule");
            problems.push(problem.help(shadowed_help(earlier, rule)));
        }
    }
}

/// What to do about a rule that never decides.
fn shadowed_help(earlier: &TaskRule, rule: &TaskRule) -> String {
    if !covers(rule, earlier) {
        return "the first rule that matches decides: put this one first".into();
    }
    match earlier.program == rule.program {
        true => "both match the same calls: remove one of them".into(),
        false => format!(
            "only the first {COMPARED_PROGRAM_LEN} bytes of a program's name are compared: remove \
            one of the rules"
        ),
    }
}

/// Whether a rule matches whenever the other one does.
fn covers(rule: &TaskRule, other: &TaskRule) -> bool {
    let kinds = |rule: &TaskRule| match rule.port {
        Some(_) => vec![DescriptorKind::Socket],
        None => rule.descriptors.clone(),
    };
    let (own, others) = (kinds(rule), kinds(other));
    let has_program = rule.program.as_ref().is_none_or(|program| {
        other.program.as_ref().is_some_and(|other| is_same_program(program, other))
    });
    let has_calls = !other.calls.is_empty() && other.calls.iter().all(|c| rule.calls.contains(c));
    let has_kinds =
        own.is_empty() || (!others.is_empty() && others.iter().all(|kind| own.contains(kind)));
    has_program && has_calls && has_kinds && (rule.port.is_none() || rule.port == other.port)
}

/// Adds a problem if this can be neither the name of a user nor a user ID.
pub fn check_user(reader: &mut TableReader<'_, '_>, user: &At<&str>) {
    let name = user.value;
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    // The greatest number stands for no user (setuid(2)).
    let is_id = name.parse::<u32>().is_ok_and(|uid| uid != u32::MAX);
    if name.is_empty() || name.contains(':') || name.starts_with('-') || (is_number && !is_id) {
        let problem = Problem::new(user.span.clone(), format!("{name:?} is no user"));
        reader.problem(problem.help("give the user's name or numeric user ID: users = [\"1000\"]"));
    }
}
