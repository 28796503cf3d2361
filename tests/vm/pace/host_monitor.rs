//! QEMU's monitor, which reads the emulated machine from outside. The third serial port leads to it
//! (scripts/vm).

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

/// The register of the first processor (vm/pstates.asl). Those of the others follow.
const FIRST_PORT: u32 = 0xe0;
/// The speeds of vm/pstates.asl by the content of the register, in kHz.
const KHZ: [u64; 6] = [0, 3_000_000, 2_400_000, 1_800_000, 1_200_000, 800_000];

pub struct HostMonitor {
    serial: File,
}

impl HostMonitor {
    pub fn open() -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let mut serial = options.open("/dev/ttyS2").expect("the third serial port");
        let mut modes = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr fills the modes of an open terminal, and the others change them.
        let failed = unsafe {
            libc::tcgetattr(serial.as_raw_fd(), modes.as_mut_ptr()) != 0 || {
                libc::cfmakeraw(modes.as_mut_ptr());
                libc::tcsetattr(serial.as_raw_fd(), libc::TCSANOW, modes.as_ptr()) != 0
            }
        };
        assert!(!failed, "{}", std::io::Error::last_os_error());
        // Until now, the terminal has echoed what the monitor said, which the monitor took for the
        // beginning of a command.
        writeln!(serial).expect("an empty command");
        Self { serial }
    }

    /// The speed in the register of a frequency domain, which is that of its first processor, in
    /// kHz. It is 0 until a speed has been set.
    pub fn khz(&mut self, domain: u32) -> u64 {
        let port = FIRST_PORT + domain;
        // The answer is a line like "portb[0x00e0] = 0x05".
        let said = self.execute(&format!("i /b {port:#x}"));
        let state = said.rsplit_once("] = 0x").and_then(|(_, end)| end.split_once('\r'));
        let (state, _) = state.unwrap_or_else(|| panic!("{said:?}"));
        KHZ[usize::from_str_radix(state, 16).expect("a number")]
    }

    /// Presses a key of the machine's keyboard and releases it.
    pub fn press(&mut self, key: &str) {
        self.execute(&format!("sendkey {key}"));
    }

    /// Moves the machine's mouse.
    pub fn move_mouse(&mut self) {
        self.execute("mouse_move 5 5");
    }

    /// Presses the first button of the machine's mouse and releases it.
    pub fn click(&mut self) {
        self.execute("mouse_button 1");
        self.execute("mouse_button 0");
    }

    /// Executes a command. Returns what the monitor says, with escape sequences, up to its prompt.
    fn execute(&mut self, command: &str) -> String {
        writeln!(self.serial, "{command}").expect("a command for the monitor");
        // The monitor repeats the command before it executes it.
        let mut said = String::new();
        loop {
            let mut part = [0; 64];
            let read = self.serial.read(&mut part).expect("an answer of the monitor");
            said.push_str(&String::from_utf8_lossy(&part[..read]));
            let answer = said.rsplit_once(command).map_or("", |(_, answer)| answer);
            if answer.contains("(qemu)") {
                return answer.to_owned();
            }
        }
    }
}
