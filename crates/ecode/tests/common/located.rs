//! Checks that any text is a valid program or has diagnostics at positions in the text.

use ecode::{Program, Severity};

use super::common::TestHooks;

pub fn check_diagnostics(text: &str) -> Option<Program> {
    let (program, problems) = ecode::check(text, &TestHooks);
    let has_errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    assert_eq!(program.is_none(), has_errors);
    for problem in &problems {
        let spans = [Some(&problem.span), problem.other.as_ref().map(|(span, _)| span)];
        for span in spans.into_iter().flatten() {
            assert!(span.start <= span.end && text.get(span.clone()).is_some(), "{problem:?}");
        }
        assert!(
            !problem.message.is_empty() && !problem.message.contains(char::is_control),
            "{problem:?}"
        );
    }
    program
}
