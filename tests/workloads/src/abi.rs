//! The two other system call tables of an x86-64 kernel: 32-bit and x32.

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Outcome, failed, os_failure};
use crate::{process, raw};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

pub fn int80(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let pid = process::own_pid();
    for _ in 0..times {
        let result = raw::int80_getpid();
        if result != pid {
            let message = format!("the 32-bit getpid returned {result}, not {pid}");
            return Err(failed(message));
        }
        raw::getppid();
    }
    Ok(())
}

pub fn x32(mut arguments: Arguments) -> Outcome {
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    let pid = i64::from(process::own_pid());
    for _ in 0..times {
        let result = raw::x32_getpid();
        if result != pid && result != -i64::from(libc::ENOSYS) {
            let message = format!("the x32 getpid returned {result}, neither {pid} nor -ENOSYS");
            return Err(failed(message));
        }
    }
    Ok(())
}

pub fn elf32(mut arguments: Arguments) -> Outcome {
    let path = arguments.path("FILE")?;
    let times = arguments.number("N", 0..=MAX_REPETITIONS)?;
    arguments.end()?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(&path)
        .and_then(|mut file| file.write_all(&i386_executable(times as u32)))
        .map_err(|error| os_failure(format!("write {}", path.display()), error))
}

/// The customary load address of i386 programs.
const LOAD_ADDRESS: u32 = 0x0804_8000;
const HEADER_BYTES: u16 = 52;
const SEGMENT_BYTES: u16 = 32;

/// Creates a static i386 executable that calls getpid `times` times and exits with status 0.
fn i386_executable(times: u32) -> Vec<u8> {
    let mut code = vec![0xbe]; //                             mov esi, times
    code.extend(times.to_le_bytes());
    code.extend([
        0x85, 0xf6, //                                        test esi, esi
        0x74, 0x0a, //                                        jz end
        0xb8, 20, 0, 0, 0, //                           next: mov eax, 20 (getpid)
        0xcd, 0x80, //                                        int 0x80
        0x4e, //                                              dec esi
        0x75, 0xf6, //                                        jnz next
        0xb8, 1, 0, 0, 0, //                             end: mov eax, 1 (exit)
        0x31, 0xdb, //                                        xor ebx, ebx
        0xcd, 0x80, //                                        int 0x80
    ]);

    let code_offset = u32::from(HEADER_BYTES + SEGMENT_BYTES);
    let file_bytes = code_offset + code.len() as u32;
    let mut file = Vec::new();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());

    // e_ident: 32-bit, little-endian, version 1, System V
    file.extend(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    half(&mut file, 2); // e_type: ET_EXEC
    half(&mut file, 3); // e_machine: EM_386
    word(&mut file, 1); // e_version
    word(&mut file, LOAD_ADDRESS + code_offset); // e_entry
    word(&mut file, HEADER_BYTES.into()); // e_phoff
    word(&mut file, 0); // e_shoff: no sections
    word(&mut file, 0); // e_flags
    half(&mut file, HEADER_BYTES); // e_ehsize
    half(&mut file, SEGMENT_BYTES); // e_phentsize
    half(&mut file, 1); // e_phnum
    half(&mut file, 0); // e_shentsize
    half(&mut file, 0); // e_shnum
    half(&mut file, 0); // e_shstrndx

    word(&mut file, 1); // p_type: PT_LOAD
    word(&mut file, 0); // p_offset: the headers are loaded too
    word(&mut file, LOAD_ADDRESS); // p_vaddr
    word(&mut file, LOAD_ADDRESS); // p_paddr
    word(&mut file, file_bytes); // p_filesz
    word(&mut file, file_bytes); // p_memsz
    word(&mut file, 5); // p_flags: readable, executable
    word(&mut file, 0x1000); // p_align

    file.extend(code);
    file
}
