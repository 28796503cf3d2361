//! Hooks and a runtime that give the same values each time. The user memory is the memory of the
//! test process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use ecode::interpreter::{ProgramState, Runtime, run};
use ecode::{
    Builtin, DenyReturn, Diagnostic, FieldSource, HookError, HookField, HookProgram, HookProvider,
    HookSpec, HookVariant, HookWarning, Integer, Program, ReturnPolicy, Type,
};

/// include/uapi/linux/bpf.h, enum bpf_func_id
const XDP_LOAD_BYTES: i32 = 189;

pub struct TestHooks;

impl HookProvider for TestHooks {
    fn names(&self) -> Vec<String> {
        ["call", "enter", "timer", "connect", "xdp"].map(String::from).into()
    }

    fn has_separate_attach_points(&self, hook: &str) -> bool {
        hook == "timer"
    }

    fn spec(&self, hook: &str, selected: &[String]) -> Result<HookSpec, HookError> {
        let waits = selected.iter().position(|call| call == "waitpid");
        let warnings: Vec<_> = waits
            .map(|selected| HookWarning {
                selected,
                message: "only 32-bit programs make the call `waitpid`".into(),
                help: Some("64-bit programs make the call `wait4` instead".into()),
            })
            .into_iter()
            .collect();
        let spec = |section, fields: Vec<HookField>, return_policy| {
            let numbers =
                (0..fields.len()).map(|number| FieldSource::number(number as u64)).collect();
            let variants = vec![HookVariant { conditions: Vec::new(), fields: numbers }];
            let lacks = Some((
                &[Builtin::Random][..],
                "the hooks of these tests have no `random`, so that each run has the same result",
            ))
            .filter(|_| hook != "call");
            HookSpec {
                fields,
                programs: vec![HookProgram { section, variants }],
                return_policy,
                unreadable: vec![("comm".into(), "it is an array of no fixed length".into())],
                unavailable: lacks,
                packet: (hook == "xdp").then_some(XDP_LOAD_BYTES),
                warnings,
            }
        };
        if hook == "call" {
            return Ok(spec("syscall", Vec::new(), ReturnPolicy::Returned));
        }
        if hook == "timer" {
            return Ok(spec(
                "perf_event",
                Vec::new(),
                ReturnPolicy::Chained { goes_on: 0, stops: None },
            ));
        }
        let denying = |value, sets_errno| ReturnPolicy::Chained {
            goes_on: 0,
            stops: Some(DenyReturn { value, sets_errno }),
        };
        if hook == "xdp" {
            return Ok(spec("xdp", Vec::new(), denying(1, false)));
        }
        if hook == "connect" {
            return Ok(spec("cgroup/connect4", Vec::new(), denying(0, true)));
        }
        if let Some(at) = selected.iter().position(|call| call != "openat" && call != "waitpid") {
            return Err((Some(at), format!("there is no system call `{}`", selected[at])));
        }
        let field = |name: &str, bits, is_signed| HookField {
            name: name.into(),
            ty: Type::Integer(Integer::short(bits, is_signed)),
        };
        let fields =
            vec![field("dfd", 32, true), field("flags", 32, true), field("how", 64, false)];
        Ok(spec("tp_btf/sys_enter", fields, ReturnPolicy::Chained { goes_on: 0, stops: None }))
    }
}

/// A runtime that stores the output.
#[derive(Default)]
pub struct Same {
    pub printed: Vec<String>,
    pub emitted: Vec<Vec<u8>>,
}

impl Runtime for Same {
    fn field(&mut self, number: usize) -> u64 {
        number as u64
    }

    fn call_builtin(&mut self, builtin: Builtin) -> u64 {
        builtin as u64
    }

    fn comm(&mut self) -> Vec<u8> {
        b"same\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()
    }

    fn read_user(&mut self, address: u64, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, address).ok()?;
        Some(bytes)
    }

    fn packet(&mut self, _: u64, _: u8) -> Option<u64> {
        None
    }

    fn emit(&mut self, record: &[u8]) {
        self.emitted.push(record.to_vec());
    }

    fn print(&mut self, text: &[u8]) {
        self.printed.push(String::from_utf8_lossy(text).into_owned());
    }
}

#[track_caller]
pub fn program(text: &str) -> Program {
    let (program, problems) = ecode::check(text, &TestHooks);
    let errors: Vec<&Diagnostic> =
        problems.iter().filter(|problem| problem.severity == ecode::Severity::Error).collect();
    program.unwrap_or_else(|| panic!("{text}\n{errors:#?}"))
}

/// Runs the first handler and returns its result, the state after it and the output.
pub fn interpreted(program: &Program, arguments: &[u64]) -> (i64, ProgramState, Same) {
    let (mut state, mut runtime) = (ProgramState::new(program), Same::default());
    let result = run(program, &mut state, &mut runtime, 0, arguments, 1 << 20);
    (result as i64, state, runtime)
}
