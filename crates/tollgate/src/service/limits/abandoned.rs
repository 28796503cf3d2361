//! Lifts the limits that a daemon has left if it was killed together with its watchdog.

use kernel::process::is_root;

use super::cgroups;
use crate::output::log_message;

/// Lifts them, if there are any and no process has services now.
pub fn lift_abandoned() {
    if !is_root() || !cgroups::exist() {
        return;
    }
    match cgroups::remove_orphaned() {
        Ok(false) => {}
        Ok(true) => log_message("lifted the limits of services that a killed daemon had left"),
        Err(error) => log_message(&format!(
            "cannot lift the limits of services that a killed daemon has left: {error:#}"
        )),
    }
}
