//! Hooks of sockets and packets, at which a handler can deny the operation.

use ecode::{
    Builtin, FieldCondition, FieldSource, HookError, HookField, HookProgram, HookSpec, HookVariant,
    Integer, Type,
};

use super::parts::{denying_policy, field, unconditional_program};

/// Builtins about the task that runs a plugin.
const PROCESS_BUILTINS: &[Builtin] = &[
    Builtin::Pid,
    Builtin::Tid,
    Builtin::Uid,
    Builtin::Gid,
    Builtin::Comm,
    Builtin::ReadUser,
    Builtin::ReadUserText,
];
const NO_PROCESS: &str =
    "a packet belongs to no task; the task that runs when it arrives is unrelated to it";
// include/uapi/linux/bpf.h, enum bpf_func_id
const SKB_LOAD_BYTES: i32 = 26;
const XDP_GET_BUFF_LEN: i32 = 188;
const XDP_LOAD_BYTES: i32 = 189;
// enum xdp_action, enum tc_action, TCX_NEXT
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const TC_ACT_SHOT: i32 = 2;
const TCX_NEXT: i32 = -1;
// Return values of cgroup programs.
const DENIED: i32 = 0;
const ALLOWED: i32 = 1;
// struct bpf_sock_addr
const USER_FAMILY: u16 = 0;
const USER_IP4: u16 = 4;
const USER_IP6: u16 = 8;
const USER_PORT: u16 = 24;
const ADDRESS_TYPE: u16 = 32;
const ADDRESS_PROTOCOL: u16 = 36;
// struct bpf_sock
const SOCKET_FAMILY: u16 = 4;
const SOCKET_TYPE: u16 = 8;
const SOCKET_PROTOCOL: u16 = 12;
// struct xdp_md, struct __sk_buff
const XDP_INTERFACE: u16 = 12;
const SKB_LENGTH: u16 = 0;
const SKB_MARK: u16 = 8;
const SKB_INTERFACE: u16 = 40;

fn number(at: u16) -> FieldSource {
    FieldSource::context(&[at], 4)
}

/// `connect`, `bind`, `socket`
pub fn sockets(hook: &str) -> HookSpec {
    let return_policy = denying_policy(ALLOWED, DENIED, true);
    let all = [field("family", 32, false), field("type", 32, false), field("protocol", 32, false)];
    if hook == "socket" {
        let offsets = [SOCKET_FAMILY, SOCKET_TYPE, SOCKET_PROTOCOL];
        let program = unconditional_program("cgroup/sock_create", offsets.map(number).into());
        return HookSpec {
            fields: all.into(),
            programs: vec![program],
            return_policy,
            unreadable: Vec::new(),
            unavailable: None,
            packet: None,
            warnings: Vec::new(),
        };
    }
    let mut fields: Vec<HookField> = all.into();
    fields.push(field("port", 16, false));
    fields.push(field("ip", 32, false));
    let word = Type::Integer(Integer::short(32, false));
    fields.push(HookField { name: "ip6".into(), ty: Type::Array(word.into(), 4) });
    // Sending a UDP datagram to an address is treated like connecting to that address.
    let sections: &[[&'static str; 2]] = match hook {
        "connect" => {
            &[["cgroup/connect4", "cgroup/connect6"], ["cgroup/sendmsg4", "cgroup/sendmsg6"]]
        }
        _ => &[["cgroup/bind4", "cgroup/bind6"]],
    };
    let sources = |family: FieldSource, ip: FieldSource, ip6: FieldSource| {
        let mut sources = vec![family, number(ADDRESS_TYPE), number(ADDRESS_PROTOCOL)];
        sources.push(FieldSource::context(&[USER_PORT], 2).big_endian());
        sources.extend([ip, ip6]);
        sources
    };
    let word = |at: u16| number(USER_IP6 + 4 * at).big_endian();
    // ::ffff:192.0.2.1 is an IPv4 address.
    let is = |at, is| FieldCondition { source: word(at), mask: u64::MAX, equals: is };
    let mapped = vec![is(0, 0), is(1, 0), is(2, 0xffff)];
    let six = |ip| sources(number(USER_FAMILY), ip, word(0));
    let mapped = HookVariant { conditions: mapped, fields: six(word(3)) };
    let other = HookVariant { conditions: Vec::new(), fields: six(FieldSource::number(0)) };
    let programs = sections.iter().flat_map(|[four, six]| {
        // The caller can write AF_UNSPEC into an address that Linux uses as one of IPv4, in
        // udp_sendmsg and __inet_bind (net/ipv4). Any other family fails after these programs.
        let family = FieldSource::number(libc::AF_INET as u64);
        let of_four = unconditional_program(
            four,
            sources(family, number(USER_IP4).big_endian(), FieldSource::number(0)),
        );
        [of_four, HookProgram { section: six, variants: vec![mapped.clone(), other.clone()] }]
    });
    let programs = programs.collect();
    HookSpec {
        fields,
        programs,
        return_policy,
        unreadable: Vec::new(),
        unavailable: None,
        packet: None,
        warnings: Vec::new(),
    }
}

/// Fails at names that no network device can have (net/core/dev.c, dev_valid_name).
pub fn check_device(name: &str) -> Result<(), HookError> {
    /// IFNAMSIZ without the NUL at the end.
    const MAX_LEN: usize = 15;
    let is_refused = |byte: u8| matches!(byte, b'/' | b':' | b'\x0b') || byte.is_ascii_whitespace();
    if name.is_empty() || matches!(name, "." | "..") || name.bytes().any(is_refused) {
        return Err((Some(0), "this cannot be the name of a network device".into()));
    }
    if name.len() > MAX_LEN {
        let message = format!("the name of a network device has at most {MAX_LEN} bytes");
        return Err((Some(0), message));
    }
    Ok(())
}

/// `xdp`, `ingress`, `egress`
pub fn packets(hook: &str) -> HookSpec {
    let mut fields = vec![field("length", 32, false), field("interface", 32, false)];
    let lacks = Some((PROCESS_BUILTINS, NO_PROCESS));
    if hook == "xdp" {
        let program = unconditional_program(
            "xdp",
            vec![FieldSource::by_helper(XDP_GET_BUFF_LEN), number(XDP_INTERFACE)],
        );
        let return_policy = denying_policy(XDP_PASS, XDP_DROP, false);
        return HookSpec {
            fields,
            programs: vec![program],
            return_policy,
            unreadable: Vec::new(),
            unavailable: lacks,
            packet: Some(XDP_LOAD_BYTES),
            warnings: Vec::new(),
        };
    }
    let section = if hook == "ingress" { "tcx/ingress" } else { "tcx/egress" };
    fields.push(field("mark", 32, false));
    let program =
        unconditional_program(section, [SKB_LENGTH, SKB_INTERFACE, SKB_MARK].map(number).into());
    let return_policy = denying_policy(TCX_NEXT, TC_ACT_SHOT, false);
    HookSpec {
        fields,
        programs: vec![program],
        return_policy,
        unreadable: Vec::new(),
        unavailable: lacks,
        packet: Some(SKB_LOAD_BYTES),
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::check_device;

    #[test]
    fn impossible_names_of_devices_are_refused() {
        for name in ["eth0", "a", "0123456789abcde", "...", "vlan.7", "ü"] {
            assert!(check_device(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a:b", "a b", "a\u{b}", "0123456789abcdef"] {
            assert!(check_device(name).is_err(), "{name}");
        }
    }
}
