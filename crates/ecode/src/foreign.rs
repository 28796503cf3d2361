//! Names of C, of BPF programs in C and of other tracers that E-code does not have, each with what
//! to write instead.

use std::net::Ipv4Addr;

type Hints = &'static [(&'static [&'static str], &'static str)];

/// The form of a map.
pub const MAP_FORM: &str = "declare a map like this: `map<KEY, VALUE> name[ENTRIES];`";
/// The hint at any iteration.
pub const NO_ITERATION: &str = "count an index for the elements of an array; nothing iterates over \
    a map, but `tollgate plugin show` prints its entries";
/// What the return value of a handler of packets means.
pub const PACKET_RETURN: &str = "return 0 passes the packet, and anything else drops it";
/// How memory of the process is read.
const READ_USER: &str =
    "use `read_user(TO, ADDRESS, BYTES)`: the address comes before the number of bytes";
const READ_USER_TEXT: &str =
    "use `read_user_text(TO, ADDRESS)`, which reads up to a NUL or as much as fits into TO";
/// What to do with the address of a text or of data.
pub const AT_ADDRESS: &str = "an address is a number: `read_user_text(TO, ADDRESS)` reads the \
    text there, `read_user(TO, ADDRESS, BYTES)` other data";
const NO_KERNEL_MEMORY: &str = "a plugin cannot read the kernel's memory; for the memory of the \
    process, use `read_user(TO, ADDRESS, BYTES)` or `read_user_text(TO, ADDRESS)`";
const WITH_A_TYPE: &str = "begin a declaration with a type: `u64 x = 3;`";
/// What a histogram needs. `>>` of a negative number never reaches 0.
const COUNT_BITS: &str = "there is no equivalent: count the bits of an unsigned number with a \
    loop, `u64 n = …; while (n) { n >>= 1; bits++; }`";
const NO_PARENT: &str = "there is no equivalent: keep the parents of processes in a map, which a \
    handler of `fork` fills";
const STACKS: &str = "a plugin cannot read stacks: `tollgate lens` shows where calls sleep";

/// Names of probes.
const HOOKS: Hints = &[
    (
        &[
            "kprobe",
            "kretprobe",
            "kfunc",
            "kretfunc",
            "fentry",
            "fexit",
            "uprobe",
            "uretprobe",
            "usdt",
            "lsm",
        ],
        "functions cannot be probed: use `tracepoint(\"GROUP:EVENT\")`, or `enter` and `exit` of a \
        system call",
    ),
    (&["interval", "profile", "iter"], "use `timer(\"1s\")`"),
    (
        &["BEGIN", "END", "begin"],
        "initialize variables where they are declared; `tollgate plugin show` prints them at any \
        time",
    ),
    (&["sys_enter", "syscall", "raw_syscalls", "entry"], "use `enter` or `enter(NAME)`"),
    (&["sys_exit", "return", "sysret"], "use `exit` or `exit(NAME)`"),
    (&["rawtracepoint", "rtp", "tp", "raw_tp"], "use `tracepoint(\"GROUP:EVENT\")`"),
    (&["tc", "classifier"], "use `ingress` or `egress`"),
];

/// Words and macros outside of functions.
const DECLARATIONS: Hints = &[
    (&["SEC", "license"], "remove it: a plugin has no sections and no license"),
    (
        &[
            "BPF_HASH",
            "BPF_TABLE",
            "BPF_ARRAY",
            "BPF_HISTOGRAM",
            "BPF_PERCPU_ARRAY",
            "BPF_PERCPU_HASH",
            "BPF_LRU_HASH",
        ],
        MAP_FORM,
    ),
    (&["BPF_PERF_OUTPUT", "BPF_RINGBUF_OUTPUT"], "remove it: `emit` and `print` need no buffer"),
    (
        &["__attribute__", "__attribute", "__packed", "__aligned"],
        "remove it: there are no attributes, and structs have the layout of C",
    ),
    (
        &["fn", "func", "function", "def", "fun", "__always_inline"],
        "begin a function with the type of its result: `int f(int n) { … }`",
    ),
    (&["let", "var", "auto"], WITH_A_TYPE),
    (
        &["std"],
        "there are no namespaces, and a map is declared like this: `map<KEY, VALUE> \
        name[ENTRIES];`",
    ),
    (&["import", "use", "include"], "remove it: a program is one file"),
];

/// Words that begin statements.
const STATEMENTS: Hints = &[
    (&["foreach"], NO_ITERATION),
    (&["let", "var", "auto", "local"], WITH_A_TYPE),
    (&["elif", "elseif", "elsif"], "write `else if`"),
    (&["unless"], "write `if (!…)`"),
    (&["until"], "write `while (!…)`"),
    (&["unroll", "loop", "repeat"], "use `for` or `while`"),
    (&["delete", "del"], "use `erase(MAP, KEY)`"),
];

/// Words that other languages have as operators.
const OPERATORS: Hints = &[
    (&["and"], "write `&&`"),
    (&["or"], "write `||`"),
    (&["not"], "write `!`"),
    (&["in"], "write `has(MAP, KEY)`"),
    (&["is"], "write `==`"),
];

/// Names that are used as variables.
const VARIABLES: Hints = &[
    (&["nsecs"], "use `now()`"),
    (&["elapsed"], "use `now()`, and subtract the time of the beginning"),
    (&["rand"], "use `random()`"),
    (&["args", "ctx"], "the fields of a hook are variables: write the name of the field alone"),
    (&["retval"], "the result of a call is the field `result` of `exit`"),
    (&["curtask"], "`pid()`, `tid()` and `comm` describe the running thread"),
    (&["username"], "use `uid()`"),
    (&["kstack", "ustack"], STACKS),
    (&["errno"], "the `result` at `exit` of a call that has failed is the negative errno"),
    (&["ppid"], NO_PARENT),
    (
        &["NULL", "null", "nullptr", "nil"],
        "write 0; whether a map has an entry, `has(MAP, KEY)` tells",
    ),
    (&["cgroup"], "`tollgate daemon --cgroup` selects the processes"),
];

/// Names of functions.
const FUNCTIONS: Hints = &[
    (
        &["bpf_get_current_comm", "get_current_comm"],
        "use `comm(NAME)`, which fills an array: `char name[16]; comm(name);`",
    ),
    (&["bpf_get_current_pid_tgid"], "use `pid()` and `tid()`"),
    (&["bpf_get_current_uid_gid"], "use `uid()` and `gid()`"),
    (&["bpf_get_prandom_u32", "rand"], "use `random()`"),
    (&["bpf_get_smp_processor_id"], "use `cpu()`"),
    (&["bpf_ktime_get_ns", "clock_gettime", "nsecs", "strftime", "time"], "use `now()`"),
    (&["bpf_printk", "bpf_trace_printk", "printf"], "use `print`"),
    (
        &[
            "bpf_probe_read_user",
            "bpf_copy_from_user",
            "probe_read_user",
            "copy_from_user",
            "uptr",
            "buf",
        ],
        READ_USER,
    ),
    (
        &[
            "bpf_probe_read_user_str",
            "bpf_copy_from_user_str",
            "probe_read_user_str",
            "strncpy_from_user",
            "str",
        ],
        READ_USER_TEXT,
    ),
    (
        &[
            "bpf_probe_read",
            "bpf_probe_read_str",
            "bpf_probe_read_kernel",
            "bpf_probe_read_kernel_str",
            "bpf_core_read",
            "BPF_CORE_READ",
            "probe_read",
            "probe_read_str",
            "probe_read_kernel",
            "probe_read_kernel_str",
            "kptr",
        ],
        NO_KERNEL_MEMORY,
    ),
    (&["bpf_map_lookup_elem"], "use the entry itself: `m[KEY]`"),
    (&["bpf_map_update_elem"], "assign to the entry: `m[KEY] = VALUE`"),
    (&["bpf_map_delete_elem", "delete"], "use `erase(MAP, KEY)`"),
    (&["bpf_ringbuf_output", "bpf_perf_event_output"], "use `emit`"),
    (
        &["clear", "zero"],
        "there is no equivalent: `erase(MAP, KEY)` erases one entry, and a plugin that is loaded \
        again begins with empty maps",
    ),
    (&["exit"], "use `return`"),
    (&["getgid"], "use `gid()`"),
    (&["getpid"], "use `pid()`"),
    (&["gettid"], "use `tid()`"),
    (&["getuid"], "use `uid()`"),
    (&["hist", "lhist", "log2", "log2l"], COUNT_BITS),
    (&["ilog2", "__builtin_clz", "__builtin_clzl", "__builtin_clzll", "fls", "fls64"], COUNT_BITS),
    (&["exists", "contains"], "use `has(MAP, KEY)`"),
    (&["len", "size"], "there is no equivalent: count the entries of a map in a variable"),
    (&["min"], "write `a < b ? a : b`"),
    (&["max"], "write `a > b ? a : b`"),
    (&["abs", "labs"], "write `n < 0 ? -n : n`"),
    (
        &["atomic_add", "atomic_inc", "atomic_fetch_add", "__sync_fetch_and_add"],
        "write `n++` or `n += x`, which are atomic as statements",
    ),
    (&["ppid", "getppid"], NO_PARENT),
    (&["kstack", "ustack"], STACKS),
    (&["not"], "write `!`"),
    (&["count"], "count in an entry or a variable: `m[KEY]++`"),
    (&["sum"], "add to an entry or a variable: `m[KEY] += n`"),
    (
        &["override", "bpf_override_return"],
        "there is no equivalent: handlers of `connect`, `bind` and `socket` refuse calls by their \
        return values, and those of `guard` denounce them",
    ),
    (
        &["signal", "bpf_send_signal"],
        "there is no equivalent: a handler of `guard` denounces calls, and `--guard=enforce` \
        responds to them",
    ),
    (
        &[
            "htonl",
            "htons",
            "ntohl",
            "ntohs",
            "bpf_htonl",
            "bpf_htons",
            "bpf_ntohl",
            "bpf_ntohs",
            "be16toh",
            "be32toh",
            "htobe16",
            "htobe32",
            "bswap",
        ],
        "leave it out: ports and addresses have the byte order of the machine",
    ),
    (
        &["inet_addr", "inet_aton", "inet_pton", "pton"],
        "write an address as a number: 127.0.0.1 is 0x7f000001",
    ),
    (&["inet_ntoa", "inet_ntop", "ntop"], "print the address as a number, with %x"),
    (
        &["strcat", "strcpy", "strlcpy", "strncat", "strncpy", "sprintf", "snprintf"],
        "copy the bytes: `memcpy(TO, FROM, BYTES)`",
    ),
    (
        &["strchr", "strrchr", "strstr", "strcontains", "memchr", "memmem"],
        "there is no equivalent: search with a loop over the elements of the array",
    ),
    (&["strcasecmp", "strncasecmp"], "there is no equivalent: `strcmp` distinguishes cases"),
    (&["memmove"], "use `memcpy(TO, FROM, BYTES)`"),
    (&["bzero"], "use `memset(TO, 0, BYTES)`"),
    (&["strerror"], "there is no equivalent: print the number with %d"),
    (&["system", "cat"], "there is no equivalent: a plugin runs no commands and reads no files"),
];

/// Methods of maps.
const METHODS: Hints = &[
    (&["increment", "atomic_increment"], "write `m[KEY]++`"),
    (&["lookup", "lookup_or_init", "lookup_or_try_init", "get"], "write `m[KEY]`"),
    (&["update", "insert", "set"], "write `m[KEY] = VALUE`"),
    (&["erase", "delete", "remove", "pop"], "write `erase(m, KEY)`"),
    (&["has", "contains", "count"], "write `has(m, KEY)`"),
    (&["perf_submit", "ringbuf_output"], "write `emit(STRUCT)`"),
];

/// Limits of C's headers that do not fit into an `int`, and so not into an enum.
const WIDE: &[&str] = &[
    "INT64_MAX",
    "INT64_MIN",
    "LLONG_MAX",
    "LLONG_MIN",
    "LONG_MAX",
    "LONG_MIN",
    "SIZE_MAX",
    "SSIZE_MAX",
    "UINT32_MAX",
    "UINT64_MAX",
    "UINT_MAX",
    "UINTPTR_MAX",
    "ULLONG_MAX",
    "ULONG_MAX",
];

fn hint(hints: Hints, name: &str) -> Option<&'static str> {
    hints.iter().find(|(names, _)| names.contains(&name)).map(|(_, hint)| *hint)
}

/// What E-code has in place of a probe.
pub fn hook(name: &str) -> Option<&'static str> {
    hint(HOOKS, name)
}

/// What E-code has in place of a word outside of functions.
pub fn declaration(name: &str) -> Option<&'static str> {
    hint(DECLARATIONS, name)
}

/// What E-code has in place of a word at the beginning of a statement.
pub fn statement(name: &str) -> Option<&'static str> {
    hint(STATEMENTS, name)
}

/// What E-code has in place of a word between or before operands.
pub fn operator(name: &str) -> Option<&'static str> {
    hint(OPERATORS, name)
}

/// What E-code has in place of a variable.
pub fn variable(name: &str) -> Option<&'static str> {
    hint(VARIABLES, name)
}

/// What E-code has in place of a function.
pub fn function(name: &str) -> Option<&'static str> {
    hint(FUNCTIONS, name)
}

/// The length of the IPv4 address at the beginning of a text, and how a program writes it.
pub fn address(text: &str) -> Option<(usize, String)> {
    let is_of_address = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
    let length = text.bytes().take_while(|byte| is_of_address(byte)).count();
    let address: Ipv4Addr = text[..length].parse().ok()?;
    Some((length, format!("write the address as a number: {:#010x}", u32::from(address))))
}

/// What E-code has in place of a method of a map.
pub fn method(name: &str) -> Option<&'static str> {
    hint(METHODS, name)
}

/// What E-code has in place of a constant of C's headers, if it is not the same constant that a
/// program would declare itself.
pub fn constant(name: &str) -> Option<&'static str> {
    let is_verdict = ["XDP_", "TC_ACT_", "TCX_"].iter().any(|prefix| name.starts_with(prefix))
        || ["NF_ACCEPT", "NF_DROP", "SK_DROP", "SK_PASS"].contains(&name);
    is_verdict.then_some(PACKET_RETURN)
}

/// How a program declares a constant of C's headers.
pub fn header_constant(name: &str) -> String {
    let declared = match WIDE.contains(&name) {
        true if name.ends_with("_MIN") => format!("const i64 {name} = …;"),
        true => format!("const u64 {name} = …;"),
        false => format!("enum {{ {name} = … }};"),
    };
    format!("declare constants of C's headers yourself: `{declared}`")
}
