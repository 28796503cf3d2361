//! Hooks of processes and threads: fork, exec and exit.

use ecode::{FieldSource, HookError, HookSpec};

use super::parts::{OffsetSource, field, observing_spec, unconditional_program};

// The contexts of sched_process_fork (parent, child), sched_process_exec (task, its old TID,
// linux_binprm) and sched_process_exit (task).
const FIRST: u16 = 0;
const SECOND: u16 = 8;

pub fn spec(machine: OffsetSource, hook: &str) -> Result<HookSpec, HookError> {
    let task = |member| machine.offset_of("task_struct", member);
    Ok(match hook {
        "fork" => {
            let fields = vec![field("child_pid", 32, false), field("child_tid", 32, false)];
            let child = |member| Ok(FieldSource::context(&[SECOND, task(member)?], 4));
            observing_spec(
                fields,
                vec![unconditional_program(
                    "tp_btf/sched_process_fork",
                    vec![child("tgid")?, child("pid")?],
                )],
            )
        }
        "exec" => {
            let fields = vec![field("old_tid", 32, false)];
            observing_spec(
                fields,
                vec![unconditional_program(
                    "tp_btf/sched_process_exec",
                    vec![FieldSource::context(&[SECOND], 4)],
                )],
            )
        }
        _ => {
            let code = FieldSource::context(&[FIRST, task("exit_code")?], 4);
            let program = unconditional_program("tp_btf/sched_process_exit", vec![code]);
            observing_spec(vec![field("exit_code", 32, true)], vec![program])
        }
    })
}
