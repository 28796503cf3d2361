//! Programs at hooks of control groups that enter the plugins of the task's session.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use super::chain::Chain;
use crate::error::{ErrorContext as _, Result};
use crate::gate::Gate;
use crate::skeletons::plugin_entry::PluginEntrySkelBuilder;

/// Loads the program for a hook of control groups, such as `cgroup/connect4`. For each task, it
/// enters the plugins that the chain has for the task's session.
pub fn load_task_entry(hook: &str, chain: &Chain, gate: &Gate) -> Result<OwnedFd> {
    let mut object = MaybeUninit::uninit();
    let mut skeleton = PluginEntrySkelBuilder::default()
        .open(&mut object)
        .doing("opening the programs that enter plugins")?;
    gate.share_maps(skeleton.open_object_mut())?;
    let name = hook.replace("cgroup/", "enter_");
    let maps = &mut skeleton.maps;
    maps.bss_chain.reuse_fd(chain.memory()).doing("using a plugin hook's chain")?;
    maps.plugin_slots.reuse_fd(chain.programs()).doing("using a plugin hook's programs")?;
    for mut program in skeleton.open_object_mut().progs_mut() {
        let is_wanted = program.name().to_str() == Some(&name);
        program.set_autoload(is_wanted);
    }
    let skeleton = skeleton.load().doing("loading the program that enters plugins")?;
    let mut programs = skeleton.object().progs();
    let program = programs.find(|program| program.autoload());
    let program = program.expect("each hook of control groups has a program");
    program.as_fd().try_clone_to_owned().doing("keep the program that enters plugins")
}
