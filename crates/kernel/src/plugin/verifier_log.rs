//! Finds the verifier's message about a program in its log, and the line of the plugin's text that
//! the message is about.

/// The verifier's message: the first line after the last instruction in the log, without the
/// statistics.
pub fn verifier_message(log: &str) -> Option<&str> {
    let mut message = None;
    for text in log.lines().filter(|text| !text.is_empty() && !text.starts_with("processed ")) {
        if is_progress_line(text) {
            message = None;
        } else if message.is_none() {
            message = Some(text);
        }
    }
    message
}

/// The line of the last instruction in the log, counted from 1. `lines` is the program's `struct
/// bpf_line_info`. It is needed because the log itself names lines only since v6.9 (7cc13adbd057).
/// `None` if the message is about the program as a whole.
pub fn line(log: &str, lines: &[[u32; 4]]) -> Option<usize> {
    let last = log.lines().filter_map(instruction).next_back()?;
    let [.., position] = lines.iter().rfind(|[first, ..]| *first <= last)?;
    // include/uapi/linux/bpf.h, BPF_LINE_INFO_LINE_NUM
    Some((position >> 10) as usize)
}

/// Whether a line of the log is a source line, an instruction, or a state of the verifier, and not
/// a message.
fn is_progress_line(text: &str) -> bool {
    instruction(text).is_some() || text.starts_with("; ") || text.starts_with("from ")
}

/// The number of the instruction that a line of the log shows.
fn instruction(text: &str) -> Option<u32> {
    text.split_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of v6.18, with fewer instructions.
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
    const END: &str = "processed 21 insns (limit 1000000) max_states_per_insn 0 total_states 0 \
        peak_states 0 mark_read 0\n";

    fn log_line(last: &str) -> String {
        format!("{LOG}{last}{END}")
    }

    /// Instructions and their lines; the other fields are not read.
    fn lines(positions: &[(u32, u32)]) -> Vec<[u32; 4]> {
        positions.iter().map(|(at, line)| [*at, 0, 0, line << 10 | 5]).collect()
    }

    #[test]
    fn verifier_message_maps_to_last_line() {
        let lines = lines(&[(0, 6), (3, 7), (22, 8), (24, 9)]);
        let log = log_line("R0 invalid mem access 'scalar'\n");
        assert_eq!(verifier_message(&log), Some("R0 invalid mem access 'scalar'"));
        assert_eq!(line(&log, &lines), Some(8));
        let log = log_line(
            "invalid access to map value, value_size=8 off=8 size=8\nR1 min value is outside\n",
        );
        assert_eq!(
            verifier_message(&log),
            Some("invalid access to map value, value_size=8 off=8 size=8")
        );
    }

    #[test]
    fn short_verifier_logs() {
        let message = "combined stack size of 2 calls is 544. Too large";
        assert_eq!(verifier_message(message), Some(message));
        assert_eq!(line(message, &lines(&[(0, 1)])), None);
        let old = "; return sum;\n23: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'scalar'\n";
        assert_eq!(line(old, &lines(&[(0, 1), (23, 4)])), Some(4));
        assert_eq!(line(old, &[]), None);
        assert_eq!(verifier_message(""), None);
        assert_eq!(verifier_message(&log_line("")), None);
    }
}
