//! What the verifier says of a program that it refuses, and of which line of the text.

#[derive(Debug, PartialEq, Eq)]
pub struct Complaint<'a> {
    pub sentence: &'a str,
    /// From 1 on. What it says of a program as a whole is about none.
    pub line: Option<usize>,
}

/// What comes after the last instruction that it has looked at, before its figures.
pub fn complaint(log: &str) -> Option<Complaint<'_>> {
    let (mut sentence, mut line) = (None, None);
    for told in log.lines().filter(|told| !told.is_empty() && !told.starts_with("processed ")) {
        if let Some(text) = told.strip_prefix("; ") {
            line = line_of(text).or(line);
        }
        if is_a_step(told) {
            sentence = None;
        } else if sentence.is_none() {
            sentence = Some(told);
        }
    }
    Some(Complaint { sentence: sentence?, line })
}

/// A source line, an instruction, or what is known on the way to one.
fn is_a_step(told: &str) -> bool {
    let is_numbered = told.split_once(':').is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    is_numbered || told.starts_with("; ") || told.starts_with("from ")
}

/// `text @ file:line`, since v6.9 (7cc13adbd057).
fn line_of(text: &str) -> Option<usize> {
    text.rsplit_once(" @ ")?.1.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of v6.18, with fewer instructions.
    const LOG: &str = "\
0: R1=ctx() R10=fp0
; on call(int n) { @ test.ec:6
0: (79) r2 = *(u64 *)(r1 +0)          ; R1=ctx() R2=scalar()
; sum += twice(n); @ test.ec:7
5: (85) call pc+19
Func#1 ('twice') is global and assumed valid.
6: R0=scalar()
16: (63) *(u32 *)(r1 +0) = r2         ; R1=map_value(map=plugin_data,ks=4,vs=8)

from 16 to 18: R0=scalar() R10=fp0
; return sum; @ test.ec:8
22: (c7) r2 s>>= 32                   ; R2=scalar(smin=0xffffffff80000000,smax=0x7fffffff)
23: (79) r0 = *(u64 *)(r0 +0)
";
    const END: &str =
        "processed 21 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0\n";

    fn told(last: &str) -> String {
        format!("{LOG}{last}{END}")
    }

    #[test]
    fn the_last_sentence_is_about_the_last_line() {
        let log = told("R0 invalid mem access 'scalar'\n");
        assert_eq!(
            complaint(&log),
            Some(Complaint { sentence: "R0 invalid mem access 'scalar'", line: Some(8) })
        );
        let log = told("invalid access to map value, value_size=8 off=8 size=8\nR1 min value is outside\n");
        let sentence = "invalid access to map value, value_size=8 off=8 size=8";
        assert_eq!(complaint(&log), Some(Complaint { sentence, line: Some(8) }));
    }

    #[test]
    fn a_log_may_say_less() {
        let sentence = "combined stack size of 2 calls is 544. Too large";
        assert_eq!(complaint(sentence), Some(Complaint { sentence, line: None }));
        let old = "; return sum;\n23: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'scalar'\n";
        assert_eq!(complaint(old).expect("there is one").line, None);
        assert_eq!(complaint(""), None);
        assert_eq!(complaint(&told("")), None);
    }

    #[test]
    fn a_text_may_look_like_a_place() {
        assert_eq!(line_of("print(\" @ a:9\"); @ a:b.ec:12"), Some(12));
        assert_eq!(line_of("x = y; @ file"), None);
    }
}
