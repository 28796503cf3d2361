//! Processes and threads: they are made, execute a program, and end.

use ecode::{Offer, Refusal, Source};

use super::{Machine, always, field, observes};

// The contexts of sched_process_fork (parent, child), sched_process_exec (task, its number before, linux_binprm) and
// sched_process_exit (task).
const FIRST: u16 = 0;
const SECOND: u16 = 8;

pub fn offer(machine: Machine, hook: &str) -> Result<Offer, Refusal> {
    let task = |member| machine.offset_of("task_struct", member);
    Ok(match hook {
        "fork" => {
            let fields = vec![field("child_pid", 32, false), field("child_tid", 32, false)];
            let child = |member| Ok(Source::context(&[SECOND, task(member)?], 4));
            observes(fields, vec![always("tp_btf/sched_process_fork", vec![child("tgid")?, child("pid")?])])
        }
        "exec" => {
            let fields = vec![field("old_tid", 32, false)];
            observes(fields, vec![always("tp_btf/sched_process_exec", vec![Source::context(&[SECOND], 4)])])
        }
        _ => {
            let code = Source::context(&[FIRST, task("exit_code")?], 4);
            let entry = always("tp_btf/sched_process_exit", vec![code]);
            observes(vec![field("exit_code", 32, true)], vec![entry])
        }
    })
}
