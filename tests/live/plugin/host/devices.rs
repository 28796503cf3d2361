//! Network devices that appear and disappear while plugins are attached to them, in a network
//! namespace of the test's own.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::os::fd::AsRawFd as _;

use crate::harness::eventually;
use crate::harness::network::{OwnNetwork, request};
use crate::harness::plugins::PluginDaemon;

/// Creates a device that exists as long as its file is open.
fn device(name: &str) -> File {
    /// include/uapi/linux/if_tun.h
    const TUNSETIFF: u64 = 0x4004_54ca;
    const IFF_TAP: i16 = 2;
    const IFF_NO_PI: i16 = 0x1000;
    let file =
        OpenOptions::new().read(true).write(true).open("/dev/net/tun").expect("a kernel with TUN");
    let mut request = request(name);
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI;
    // A device of the same name exists until every process has closed it, including children that
    // another test has forked.
    eventually("it is made", || {
        // SAFETY: a request that is there until the call is over.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        let error = Error::last_os_error();
        assert!(made == 0 || error.raw_os_error() == Some(libc::EBUSY), "{error}");
        made == 0
    });
    file
}

#[test]
fn plugin_on_removed_device_is_reported() {
    const GONE: &str = "its network device was removed: unload the plugin and load it again";
    let _network = OwnNetwork::enter();
    let at_work = PluginDaemon::start_idle();
    for hook in ["xdp", "ingress"] {
        let text = format!("u64 seen; on {hook}(\"gate0\") {{ seen++; }} on call {{ return 4; }}");
        let file = at_work.file(hook, &text);
        let load = || at_work.request(&format!("load --machine-wide {}", file.display()));
        load().exits_with(125).says("cannot find the network device gate0: No such device");
        let taken_away = device("gate0");
        load().success();
        let state = at_work.show(hook);
        assert_eq!(
            (&state["is_linked"], &state["taken_out"]),
            (&true.into(), &().into()),
            "{state}"
        );
        drop(taken_away);
        // A new device of the same name.
        let another = device("gate0");
        let state = at_work.show(hook);
        assert_eq!(
            (&state["is_linked"], &state["taken_out"]),
            (&false.into(), &GONE.into()),
            "{state}"
        );
        let list = at_work.request("list").success().text();
        assert!(list.contains(GONE), "{list}");
        at_work.request(&format!("swap {hook} {}", file.display())).exits_with(125).says(GONE);
        // The rest of the plugin still works.
        assert_eq!(at_work.request(&format!("call {hook}")).success().text(), "4\n");
        at_work.request(&format!("unload {hook}")).success();
        load().success();
        assert_eq!(at_work.show(hook)["is_linked"], true);
        at_work.request(&format!("unload {hook}")).success();
        drop(another);
    }
}
