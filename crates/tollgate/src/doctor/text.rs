//! The text form of the report, in 100 columns, or in those of a narrower terminal.

use std::fmt::Write as _;

use super::capabilities::RIGHTS_OF_ROOT;
use super::finding::{AS_ROOT, WITH_RIGHTS};
use super::report::{DoctorReport, ExaminedCapability};

const MAX_WIDTH: usize = 100;
const NAME: usize = 36;
const HAVE: usize = 4;
const NEEDED_BY: usize = 14;
/// Where the last column begins.
const DETAIL: usize = 2 + NAME + 1 + HAVE + 2 + NEEDED_BY + 1;
const INDENT: usize = 6;
/// In fewer columns, the details would be broken after every other word; they get lines of their
/// own instead.
const MIN_TABLE_WIDTH: usize = DETAIL + 20;

/// `columns`: the width of the terminal, if it is written to one.
pub fn text(report: &DoctorReport, columns: Option<usize>) -> String {
    let width = columns.unwrap_or(MAX_WIDTH).min(MAX_WIDTH);
    let mut out = format!("Linux {} on {}\n", report.kernel, report.machine);
    let mut group = "";
    for capability in &report.capabilities {
        if capability.group != group {
            group = capability.group;
            heading(&mut out, group, width);
        }
        line(&mut out, capability, width);
        // A capability is not tried if another one that it needs is missing. The remedy for the
        // missing one is enough.
        if capability.have == Some(false) {
            remedy(&mut out, "instead: ", capability.instead.as_deref(), width);
            remedy(&mut out, "to get it: ", capability.how.as_deref(), width);
        }
    }
    out.push('\n');
    put(&mut out, "", 0, &verdict(report), width);
    out
}

fn heading(out: &mut String, group: &str, width: usize) {
    if width < MIN_TABLE_WIDTH {
        let _ = write!(out, "\n{group}\n");
        return;
    }
    let _ = write!(out, "\n{group:<width$} have  needed by\n", width = NAME + 2);
}

fn line(out: &mut String, capability: &ExaminedCapability, width: usize) {
    let have = match capability.have {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "?",
    };
    let users = capability.needed_by.join(", ");
    if width < MIN_TABLE_WIDTH {
        let text = format!("{}: {have}. Needed by {users}. {}", capability.name, capability.detail);
        put(out, "  ", INDENT, &text, width);
        return;
    }
    let start = format!("  {:<NAME$} {have:<HAVE$}  {users:<NEEDED_BY$} ", capability.name);
    put(out, &start, DETAIL, &capability.detail, width);
}

fn remedy(out: &mut String, label: &str, text: Option<&str>, width: usize) {
    if let Some(text) = text {
        put(out, &format!("{:INDENT$}{label}", ""), INDENT + label.len(), text, width);
    }
}

/// Appends `start` and then `text`, whose further lines begin at `column`.
fn put(out: &mut String, start: &str, column: usize, text: &str, width: usize) {
    let mut line = start.to_owned();
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.len() + 1 + word.len() > width {
            let _ = writeln!(out, "{}", line.trim_end());
            line = " ".repeat(column);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += word;
        empty = false;
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

fn verdict(report: &DoctorReport) -> String {
    let count = |have| report.capabilities.iter().filter(|one| one.have == have).count();
    let all = report.capabilities.len();
    let mut text = format!("{} of {all} capabilities found", count(Some(true)));
    if count(None) > 0 {
        let _ = write!(text, ", {} could not be tried", count(None));
    }
    text += ". ";
    text += &match report.can_run {
        true => "`tollgate run` can work here.".into(),
        false => format!("`tollgate run` cannot work here: it needs {}.", missing_text(report)),
    };
    let is_remedy = |how| report.capabilities.iter().any(|one| one.how.as_deref() == Some(how));
    if is_remedy(AS_ROOT) {
        let _ = write!(text, " Try again as root: {AS_ROOT}");
    } else if is_remedy(WITH_RIGHTS) {
        let _ = write!(text, " Root lacks rights here: {RIGHTS_OF_ROOT}.");
    }
    text
}

/// The capabilities that `tollgate run` needs and that are known to be missing, or, if there are
/// none, those that could not be tried.
fn missing_text(report: &DoctorReport) -> String {
    let names = |have| {
        let required = report.capabilities.iter().filter(|one| one.required);
        required.filter(|one| one.have == have).map(|one| one.name).collect::<Vec<_>>()
    };
    let missing = names(Some(false));
    let lacking = if missing.is_empty() { names(None) } else { missing };
    lacking.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(name: &'static str, have: Option<bool>, how: &str) -> ExaminedCapability {
        ExaminedCapability {
            group: "the gate",
            name,
            have,
            needed_by: &["lens", "guard"],
            instead: (have == Some(false)).then(|| "something else".into()),
            how: (have != Some(true)).then(|| how.into()),
            detail: "detail".into(),
            required: true,
        }
    }

    fn report(capabilities: Vec<ExaminedCapability>) -> DoctorReport {
        DoctorReport {
            schema: super::super::report::SCHEMA,
            kernel: "6.1.0".into(),
            machine: "x86_64".into(),
            can_run: super::super::can_run(&capabilities),
            capabilities,
        }
    }

    #[test]
    fn missing_capabilities_carry_their_remedy() {
        let long = "boot with lsm=lockdown,capability,landlock,yama,apparmor,bpf on the kernel's \
            command line";
        let text = text(
            &report(vec![
                examined("ring buffer", Some(true), ""),
                examined("queue map", Some(false), long),
                examined("timers", None, AS_ROOT),
            ]),
            None,
        );
        let expected = "\
Linux 6.1.0 on x86_64

the gate                               have  needed by
  ring buffer                          yes   lens, guard    detail
  queue map                            NO    lens, guard    detail
      instead: something else
      to get it: boot with lsm=lockdown,capability,landlock,yama,apparmor,bpf on the kernel's
                 command line
  timers                               ?     lens, guard    detail

1 of 3 capabilities found, 1 could not be tried. `tollgate run` cannot work here: it needs queue
map. Try again as root: sudo tollgate doctor
";
        assert_eq!(text, expected);
    }

    #[test]
    fn root_without_rights_is_not_told_to_become_root() {
        let report = report(vec![examined("timers", None, WITH_RIGHTS)]);
        let text = text(&report, None);
        assert!(text.contains("container with CAP_SYS_ADMIN"), "{text}");
        assert!(!text.contains("sudo"), "{text}");
    }

    #[test]
    fn narrow_terminals_get_no_wider_lines() {
        let remedy = "boot with some words on the command line of the kernel";
        let report = report(vec![
            examined("ring buffer with a long name", Some(true), ""),
            examined("queue map", Some(false), remedy),
        ]);
        for columns in 30..=MAX_WIDTH + 20 {
            let text = text(&report, Some(columns));
            let widest = text.lines().map(str::len).max();
            assert!(widest <= Some(columns.min(MAX_WIDTH)), "{columns}\n{text}");
        }
    }

    #[test]
    fn text_of_complete_machine_is_one_line() {
        let text = text(&report(vec![examined("ring buffer", Some(true), "")]), None);
        assert!(
            text.ends_with("\n\n1 of 1 capabilities found. `tollgate run` can work here.\n"),
            "{text}"
        );
    }

    #[test]
    fn untried_is_named_only_if_nothing_is_missing() {
        let untried = || examined("timers", None, "");
        assert_eq!(missing_text(&report(vec![untried()])), "timers");
        assert_eq!(
            missing_text(&report(vec![untried(), examined("root", Some(false), "")])),
            "root"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_table() {
        let words = vec!["word"; 60].join(" ");
        let mut out = String::new();
        put(&mut out, "  start", DETAIL, &words, MAX_WIDTH);
        assert!(out.lines().all(|line| line.len() <= MAX_WIDTH), "{out}");
        assert_eq!(out.matches("word").count(), 60);
    }
}
