//! The numbers of the kernel helpers that lowered programs call: include/uapi/linux/bpf.h, enum
//! bpf_func_id.

pub const MAP_LOOKUP_ELEM: i32 = 1;
pub const MAP_UPDATE_ELEM: i32 = 2;
pub const MAP_DELETE_ELEM: i32 = 3;
pub const KTIME_GET_NS: i32 = 5;
pub const GET_PRANDOM_U32: i32 = 7;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
pub const GET_CURRENT_PID_TGID: i32 = 14;
pub const GET_CURRENT_UID_GID: i32 = 15;
pub const GET_CURRENT_COMM: i32 = 16;
pub const PROBE_READ_USER: i32 = 112;
pub const PROBE_READ_USER_STR: i32 = 114;
pub const PROBE_READ_KERNEL_STR: i32 = 115;
pub const RINGBUF_OUTPUT: i32 = 130;
pub const GET_CURRENT_TASK_BTF: i32 = 158;
pub const SET_RETVAL: i32 = 187;
