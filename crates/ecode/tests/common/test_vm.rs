//! A BPF machine in user space for compiled programs: rbpf with the maps and helpers of the kernel
//! that programs use. The helpers return the same values as `common::Same`.

mod expand;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use ecode::Faults;
use ecode::{Builtin, MapShape, Memory, Object, Program};
use rbpf::EbpfVmRaw;
use rbpf::ebpf::{Insn, LD_DW_IMM, to_insn_vec};

use super::final_state::{Entries, FinalState};

/// The limit on all loops of one call together. The kernel allows more iterations and is faster.
const MAX_ITERATIONS: u32 = 1 << 16;
const MAX_CALL_DEPTH: usize = 8;
const FRAME: u8 = 10;

/// A kernel helper (include/uapi/linux/bpf.h, enum bpf_func_id).
type Helper = fn(u64, u64, u64, u64, u64) -> u64;
const HELPERS: [(u32, Helper); 13] = [
    (1, look_up),
    (2, update),
    (3, delete),
    (5, |_, _, _, _, _| Builtin::Now as u64),
    (7, |_, _, _, _, _| Builtin::Random as u64),
    (8, |_, _, _, _, _| Builtin::Cpu as u64),
    (14, |_, _, _, _, _| (Builtin::Pid as u64) << 32 | Builtin::Tid as u64),
    (15, |_, _, _, _, _| (Builtin::Gid as u64) << 32 | Builtin::Uid as u64),
    (16, comm),
    (112, read_user),
    (114, read_user_text),
    (130, tell),
    (expand::GO_ON, go_on),
];
const ENOENT: i64 = 2;
const E2BIG: i64 = 7;
const EFAULT: i64 = 14;
const EEXIST: i64 = 17;

thread_local! {
    /// Thread-local, because helpers get only registers.
    static ROUNDS: Cell<u32> = const { Cell::new(0) };
}

/// Runs the first handler of a program and returns its result and the state after it. `None` if the
/// program is too long for rbpf.
pub fn run(program: &Program, object: &Object, arguments: &[u64]) -> Option<(i64, FinalState)> {
    let mut machine = TestVm::new(object);
    let result = machine.call(0, arguments)? as i64;
    let faults = Faults::of(&machine.control);
    let maps = machine.maps.iter().map(Table::entries).collect();
    Some((
        result,
        FinalState::by_what_is_compiled(program, machine.data, faults, maps, &machine.records),
    ))
}

struct TestVm<'a> {
    object: &'a Object,
    data: Vec<u8>,
    control: Vec<u8>,
    maps: Vec<Table>,
    records: Vec<Vec<u8>>,
}

/// A hash table whose values do not move.
struct Table {
    shape: MapShape,
    values: Vec<u8>,
    /// The offset of each key's value in `values`.
    offsets: HashMap<Vec<u8>, usize>,
    free: Vec<usize>,
}

impl Table {
    fn new(shape: &MapShape) -> Self {
        let size = shape.value_bytes as usize;
        let values = vec![0; shape.entries as usize * size];
        let free = (0..shape.entries as usize).rev().map(|number| number * size).collect();
        Self { shape: shape.clone(), values, offsets: HashMap::new(), free }
    }

    fn entries(&self) -> Entries {
        let value = |at: usize| self.values[at..at + self.shape.value_bytes as usize].to_vec();
        self.offsets.iter().map(|(key, at)| (key.clone(), value(*at))).collect()
    }
}

impl<'a> TestVm<'a> {
    fn new(object: &'a Object) -> Self {
        Self {
            object,
            data: object.data.clone(),
            control: vec![0; object.control_bytes as usize],
            maps: object.maps.iter().map(Table::new).collect(),
            records: Vec::new(),
        }
    }

    /// Runs a handler and returns its result.
    fn call(&mut self, handler: usize, arguments: &[u64]) -> Option<u64> {
        // Uninitialized stack must not be 0 by chance.
        let mut stack = vec![0xa5_u8; MAX_CALL_DEPTH * usize::from(expand::FRAME_BYTES)];
        let mut context =
            arguments.iter().flat_map(|argument| argument.to_le_bytes()).collect::<Vec<_>>();
        // rbpf has no address for an empty context.
        context.resize(context.len() + 8, 0);
        let mut program = number(FRAME, stack.as_mut_ptr_range().end as u64).to_vec();
        program.extend(expand::expanded(&self.instructions(handler))?);
        let program: Vec<u8> = program.iter().flat_map(Insn::to_array).collect();

        let mut machine = EbpfVmRaw::new(None).expect("there is nothing in it");
        // The programs are made for the kernel's verifier, not for rbpf's.
        machine.set_verifier(|_| Ok(())).expect("there is nothing in it");
        let frame_bytes = |_: &[u8], _, _: &mut dyn std::any::Any| expand::FRAME_BYTES;
        machine
            .set_stack_usage_calculator(frame_bytes, Box::new(()))
            .expect("there is nothing in it");
        for (number, helper) in HELPERS {
            machine.register_helper(number, helper).expect("each has its own number");
        }
        let values = self.maps.iter_mut().map(|map| &mut map.values);
        for memory in [&mut stack, &mut self.data, &mut self.control].into_iter().chain(values) {
            let range = memory.as_mut_ptr_range();
            machine.register_allowed_memory(range.start as u64..range.end as u64);
        }
        machine.set_program(&program).expect("nothing is refused");
        ROUNDS.set(MAX_ITERATIONS);
        Some(machine.execute_program(&mut context).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The instructions of a handler, with addresses in place of descriptors.
    fn instructions(&mut self, handler: usize) -> Vec<Insn> {
        let compiled = &self.object.programs[handler];
        let mut instructions = to_insn_vec(compiled.instructions.as_flattened());
        for (at, memory) in &compiled.memory {
            let address = match memory {
                Memory::Data => self.data.as_mut_ptr() as u64,
                Memory::Control => self.control.as_mut_ptr() as u64,
                Memory::Map(map) => &raw mut self.maps[*map] as u64,
                Memory::Records => &raw mut self.records as u64,
                Memory::TailCall | Memory::Slots | Memory::Verdicts => {
                    unreachable!("of hooks other than `call`")
                }
            };
            let offset = instructions[at + 1].imm as u32;
            let loaded = number(instructions[*at].dst, address + u64::from(offset));
            instructions[*at..at + 2].clone_from_slice(&loaded);
        }
        instructions
    }
}

fn number(to: u8, number: u64) -> [Insn; 2] {
    let half = |opc, dst, imm| Insn { opc, dst, src: 0, off: 0, imm };
    [half(LD_DW_IMM, to, number as i32), half(0, 0, (number >> 32) as i32)]
}

fn failed(by: i64) -> u64 {
    -by as u64
}

fn table(address: u64) -> &'static mut Table {
    // SAFETY: `instructions` has inserted this address. The test machine owns the table, and does
    // not access it itself until the call returns.
    unsafe { &mut *(address as *mut Table) }
}

fn bytes(address: u64, count: u64) -> Vec<u8> {
    // SAFETY: compiled programs pass addresses in their own memory, with this number of bytes.
    unsafe { std::slice::from_raw_parts(address as *const u8, count as usize) }.to_vec()
}

fn write(address: u64, bytes: &[u8]) {
    // SAFETY: a program passes a buffer that is at least this large.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
}

fn look_up(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    let table = table(map);
    let offset = table.offsets.get(&bytes(key, table.shape.key_bytes.into()));
    offset.map_or(0, |at| table.values.as_mut_ptr() as u64 + *at as u64)
}

/// Programs only insert missing entries.
fn update(map: u64, key: u64, value: u64, flags: u64, _: u64) -> u64 {
    const BPF_NOEXIST: u64 = 1;
    assert_eq!(flags, BPF_NOEXIST);
    let table = table(map);
    let key = bytes(key, table.shape.key_bytes.into());
    if table.offsets.contains_key(&key) {
        return failed(EEXIST);
    }
    let Some(at) = table.free.pop() else { return failed(E2BIG) };
    let value = bytes(value, table.shape.value_bytes.into());
    table.values[at..at + value.len()].copy_from_slice(&value);
    table.offsets.insert(key, at);
    0
}

fn delete(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    let table = table(map);
    let Some(at) = table.offsets.remove(&bytes(key, table.shape.key_bytes.into())) else {
        return failed(ENOENT);
    };
    table.free.push(at);
    0
}

fn comm(to: u64, size: u64, _: u64, _: u64, _: u64) -> u64 {
    let mut name = *b"same\0\0\0\0\0\0\0\0\0\0\0\0";
    name[size as usize - 1] = 0;
    write(to, &name[..size as usize]);
    0
}

/// Reads memory of this process, or returns `None` if not all bytes are accessible.
fn own_memory(at: u64, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn read_user(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let found = own_memory(from, size as usize);
    write(to, &found.clone().unwrap_or_else(|| vec![0; size as usize]));
    if found.is_some() { 0 } else { failed(EFAULT) }
}

fn read_user_text(to: u64, size: u64, from: u64, _: u64, _: u64) -> u64 {
    let mut text = Vec::new();
    while text.len() as u64 + 1 < size {
        match own_memory(from + text.len() as u64, 1).as_deref() {
            Some([0]) => break,
            Some(byte) => text.extend(byte),
            None => return failed(EFAULT),
        }
    }
    text.push(0);
    write(to, &text);
    text.len() as u64
}

fn tell(records: u64, record: u64, size: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as in `table`.
    let records = unsafe { &mut *(records as *mut Vec<Vec<u8>>) };
    records.push(bytes(record, size));
    0
}

fn go_on(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let left = ROUNDS.get();
    ROUNDS.set(left.saturating_sub(1));
    left.into()
}
