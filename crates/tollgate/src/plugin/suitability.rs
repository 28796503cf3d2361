//! Whether a plugin suits a session, and what it needs there.

use anyhow::{Result, bail, ensure};
use ecode::CALL;
use kernel::wire;

use super::compile::{CompiledPlugin, built, name_of};
use crate::format::{command_line, printable};
use crate::output::print_message;
use crate::source_file::SourceFile;

/// The maximum length of a plugin's name in bytes. The name is an argument of commands.
const MAX_NAME_LEN: usize = 64;

/// What a session has for the handlers of its plugins.
#[derive(Clone, Copy)]
pub struct PluginHost {
    /// Whether this session has a guard; another session may have one in the same gate.
    pub has_guard: bool,
    /// Whether `tollgate plugin call` can call its plugins.
    pub takes_calls: bool,
}

/// Compiles the plugins of a session, prints their problems, and returns the mask that they need.
/// `widen` says how plugins can apply to the whole machine; `None`: they do.
pub fn mask(
    sources: &[SourceFile],
    top: usize,
    widen: Option<&str>,
    host: PluginHost,
) -> Result<u32> {
    let mut mask = 0;
    for source in sources {
        let name = name_of(source);
        ensure!(is_name(&name), "{}: rename the file", name_error(&name));
        let built = built(source, top)?;
        if let Some(widen) = widen {
            check_reach(&built, widen)?;
        }
        for idle in never_run(&built, host) {
            print_message(&format!("tollgate: {} has {idle}", printable(&source.name)))?;
        }
        mask |= wire::PLUGIN | required_mask(&built);
    }
    Ok(mask)
}

/// Refuses a plugin of a part of the machine that can deny something to the rest: a packet belongs
/// to no task. `widen` says how it can be loaded on purpose.
pub fn check_reach(built: &CompiledPlugin, widen: &str) -> Result<()> {
    let mut specs = built.program.handlers.iter().map(|handler| (handler, &handler.spec));
    if let Some((handler, _)) = specs.find(|(_, spec)| spec.can_deny() && spec.packet.is_some()) {
        bail!(
            "`on {}` can drop packets of the whole machine, because a packet belongs to no task: \
            {widen}",
            handler.hook
        );
    }
    Ok(())
}

/// Parts of a plugin that never run.
pub fn never_run(built: &CompiledPlugin, host: PluginHost) -> Vec<String> {
    let programs = &built.object.programs;
    let is_of_guard = |section: &str| ["guard", "verdict"].contains(&section);
    let mut idle = Vec::new();
    if !host.has_guard && programs.iter().any(|program| is_of_guard(program.section)) {
        idle.push(
            "handlers for the guard; these handlers never run, because this session has no guard \
            (--guard)"
                .into(),
        );
    }
    if programs.is_empty() {
        // The compiler has warned of it.
        return idle;
    }
    if !host.takes_calls && programs.iter().all(|program| program.hook == CALL) {
        idle.push("only `on call`, which never runs here: `tollgate plugin call` runs it".into());
    }
    idle
}

/// Whether a plugin can deny something, but only to threads that are gated. `covers_machine` says
/// whether its handlers outside of the gate apply to the whole machine.
pub fn denies_to_gated_threads(built: &CompiledPlugin, covers_machine: bool) -> bool {
    built.program.handlers.iter().any(|handler| {
        let is_of_gate = handler.hook == "guard" || !covers_machine;
        handler.spec.can_deny() && handler.spec.packet.is_none() && is_of_gate
    })
}

/// What the gate must do for a plugin: bits of [`wire::gate_mask`].
pub fn required_mask(built: &CompiledPlugin) -> u32 {
    let sections = built.object.programs.iter().map(|program| program.section);
    sections.fold(0, |needs, section| match section {
        "tp_btf/sys_exit" => needs | wire::PLUGIN | wire::PLUGIN_EXIT,
        section if section.starts_with("tp_btf/") || ["guard", "verdict"].contains(&section) => {
            needs | wire::PLUGIN
        }
        _ => needs,
    })
}

pub fn is_name(name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
    (1..=MAX_NAME_LEN).contains(&name.len())
        && name.chars().all(is_of_name)
        && !name.starts_with('-')
}

pub fn name_error(name: &str) -> String {
    format!(
        "{} is not a name for a plugin: a name has at most {MAX_NAME_LEN} letters, digits, `.`, \
        `_` and `-`",
        command_line(&[name.to_owned()])
    )
}

#[cfg(test)]
mod tests {
    use super::super::compile::build;
    use super::super::hooks::OffsetSource;
    use super::*;

    #[test]
    fn handlers_that_never_run_are_named() {
        let idle = |text: &str, has_guard, takes_calls| {
            let source = SourceFile::new("it.ec".into(), text.into());
            let built = build(&source, OffsetSource::ToCheck).0.expect("a plugin");
            never_run(&built, PluginHost { has_guard, takes_calls }).join("; ")
        };
        let call = "only `on call`, which never runs here";
        assert!(idle("on call {}", true, false).starts_with(call));
        assert_eq!(idle("on call {}", true, true), "");
        assert_eq!(idle("on call {} on fork {}", true, false), "");
        assert_eq!(idle("int n;", true, false), "");
        assert!(idle("on guard {}", false, false).starts_with("handlers for the guard"));
        assert_eq!(idle("on guard {}", true, false), "");
    }

    #[test]
    fn denials_that_need_a_gated_thread_are_known() {
        for (text, in_a_part, everywhere) in [
            ("on connect { return -13; }", true, false),
            ("on guard(kill) { return 1; }", true, true),
            ("on xdp(\"lo\") { return 1; }", false, false),
            ("on enter(kill) {} on call { return 1; }", false, false),
        ] {
            let source = SourceFile::new("it.ec".into(), text.into());
            let built = build(&source, OffsetSource::ToCheck).0.expect("a plugin");
            let denies = [false, true].map(|covers| denies_to_gated_threads(&built, covers));
            assert_eq!(denies, [in_a_part, everywhere], "{text}");
        }
    }

    #[test]
    fn wrong_names_are_quoted() {
        for (name, shown) in [("", "''"), ("a b", "'a b'"), ("a\n\u{1b}", r"$'a\n\x1b'")] {
            assert!(!is_name(name));
            assert!(name_error(name).starts_with(&format!("{shown} is not a name for a plugin")));
        }
    }
}
