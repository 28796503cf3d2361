//! Names of calls, as reports show them.

use calls::Abi;
use kernel::wire;

/// The ABI and the name of a call.
pub fn call_name(slot: u32) -> (Abi, String) {
    let abi = Abi::ALL[(slot / wire::CALLS_PER_ABI) as usize];
    let number = slot % wire::CALLS_PER_ABI;
    if number == wire::CALL_UNKNOWN {
        return (abi, "unknown".into());
    }
    (abi, calls::display_name(abi, number).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x32_and_i386_calls_have_their_own_names() {
        assert_eq!(call_name(wire::CALLS_PER_ABI + 20), (Abi::I386, "getpid".into()));
        assert_eq!(call_name(2 * wire::CALLS_PER_ABI + 39), (Abi::X32, "getpid".into()));
        assert_eq!(call_name(wire::CALL_UNKNOWN).1, "unknown");
    }
}
