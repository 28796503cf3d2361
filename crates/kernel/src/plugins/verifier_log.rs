//! What the verifier says of a program that it refuses, and of which line of the text.

/// What comes after the last instruction that it has looked at, before its figures.
pub fn complaint(log: &str) -> Option<&str> {
    let mut sentence = None;
    for told in log.lines().filter(|told| !told.is_empty() && !told.starts_with("processed ")) {
        if is_a_step(told) {
            sentence = None;
        } else if sentence.is_none() {
            sentence = Some(told);
        }
    }
    sentence
}

/// That of the last instruction, from 1 on: the log itself names lines only since v6.9 (7cc13adbd057). What the verifier says of a
/// program as a whole is about none.
pub fn line(log: &str, lines: &[[u32; 4]]) -> Option<usize> {
    let last = log.lines().filter_map(instruction).next_back()?;
    let [.., place] = lines.iter().rfind(|[first, ..]| *first <= last)?;
    // include/uapi/linux/bpf.h, BPF_LINE_INFO_LINE_NUM
    Some((place >> 10) as usize)
}

/// A source line, an instruction, or what is known on the way to one.
fn is_a_step(told: &str) -> bool {
    instruction(told).is_some() || told.starts_with("; ") || told.starts_with("from ")
}

fn instruction(told: &str) -> Option<u32> {
    told.split_once(':')?.0.parse().ok()
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

    /// An instruction, and its line; the rest is not looked at.
    fn lines(places: &[(u32, u32)]) -> Vec<[u32; 4]> {
        places.iter().map(|(at, line)| [*at, 0, 0, line << 10 | 5]).collect()
    }

    #[test]
    fn the_last_sentence_is_about_the_last_line() {
        let lines = lines(&[(0, 6), (3, 7), (22, 8), (24, 9)]);
        let log = told("R0 invalid mem access 'scalar'\n");
        assert_eq!(complaint(&log), Some("R0 invalid mem access 'scalar'"));
        assert_eq!(line(&log, &lines), Some(8));
        let log = told("invalid access to map value, value_size=8 off=8 size=8\nR1 min value is outside\n");
        assert_eq!(complaint(&log), Some("invalid access to map value, value_size=8 off=8 size=8"));
    }

    #[test]
    fn a_log_may_say_less() {
        let sentence = "combined stack size of 2 calls is 544. Too large";
        assert_eq!(complaint(sentence), Some(sentence));
        assert_eq!(line(sentence, &lines(&[(0, 1)])), None);
        let old = "; return sum;\n23: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'scalar'\n";
        assert_eq!(line(old, &lines(&[(0, 1), (23, 4)])), Some(4));
        assert_eq!(line(old, &[]), None);
        assert_eq!(complaint(""), None);
        assert_eq!(complaint(&told("")), None);
    }
}
