//! Limits of the speed that the system itself sets for a time. `scaling_max_freq` shows the lowest
//! of all limits (drivers/cpufreq/cpufreq.c, cpufreq_set_policy), so that such a limit must not be
//! taken for the user's own.

use std::fs;
use std::path::Path;

use super::cpufreq::domain_folder;
use super::sysfs::number;

/// Whether the firmware or a cooling device limits the speed of a domain now. `fastest` is its
/// fastest speed, in kHz.
pub fn is_active(root: &Path, domain: u32, fastest: u64) -> bool {
    // ACPI's _PPC, for example without mains power
    let bios_limit = number::<u64>(&domain_folder(root, domain).join("bios_limit"));
    bios_limit.is_ok_and(|limit| limit < fastest) || is_cooled(root)
}

/// Whether a cooling device slows processors down (Documentation/driver-api/thermal/sysfs-api.rst).
/// Its type is that of drivers/acpi/processor_thermal.c or drivers/thermal/cpufreq_cooling.c.
fn is_cooled(root: &Path) -> bool {
    let Ok(devices) = fs::read_dir(root.join("sys/class/thermal")) else { return false };
    devices.filter_map(Result::ok).any(|device| {
        let kind = fs::read_to_string(device.path().join("type")).unwrap_or_default();
        (kind.trim() == "Processor" || kind.contains("cpufreq"))
            && number::<u64>(&device.path().join("cur_state")).is_ok_and(|state| state > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::fake_sysfs::FakeSysfs;

    #[test]
    fn limits_of_firmware_and_cooling_are_found() {
        let sysfs = FakeSysfs::new(&[0]);
        let is_active = || is_active(sysfs.root(), 0, 3_000_000);
        assert!(!is_active());
        sysfs.write(0, "bios_limit", "3000000");
        assert!(!is_active());
        sysfs.write(0, "bios_limit", "1800000");
        assert!(is_active());
        sysfs.write(0, "bios_limit", "3000000");
        let device = sysfs.root().join("sys/class/thermal/cooling_device0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("type"), "cpufreq-cpu0\n").unwrap();
        fs::write(device.join("cur_state"), "0\n").unwrap();
        assert!(!is_active());
        fs::write(device.join("cur_state"), "2\n").unwrap();
        assert!(is_active());
        fs::write(device.join("type"), "Fan\n").unwrap();
        assert!(!is_active());
    }
}
