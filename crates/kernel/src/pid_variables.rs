//! Variables of the environment with the number of the process that they are meant for. What
//! Tollgate gets is meant for the command.

use std::ffi::CString;

/// Those of sockets that are passed to a service (sd_listen_fds(3)), and of its watchdog
/// (sd_watchdog_enabled(3)).
const PID_VARIABLES: [&str; 2] = ["LISTEN_PID=", "WATCHDOG_PID="];

/// A variable of the environment that gets the command's number. It is allocated before the fork.
pub(crate) struct PidVariable {
    /// Its position in the environment.
    pub index: usize,
    /// The name with the `=`, and then zeros.
    pub text: Vec<u8>,
    name_len: usize,
}

impl PidVariable {
    fn new(index: usize, name: &str) -> Self {
        /// The decimal digits of any u32, and a NUL.
        const MAX_NUMBER_LEN: usize = 11;
        let mut text = name.as_bytes().to_vec();
        text.resize(name.len() + MAX_NUMBER_LEN, 0);
        Self { index, text, name_len: name.len() }
    }

    /// Sets the number; async-signal-safe.
    pub fn set(&mut self, number: u32) {
        let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
        let mut rest = number;
        for digit in self.text[self.name_len..][..digits].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// The variables of the environment that name this process and are to name the command.
pub(crate) fn pid_variables(environment: &[CString]) -> Vec<PidVariable> {
    let own = std::process::id().to_string();
    let variables = environment.iter().enumerate().filter_map(|(index, variable)| {
        let text = variable.to_bytes();
        let name = PID_VARIABLES.into_iter().find(|name| text.starts_with(name.as_bytes()))?;
        (text[name.len()..] == *own.as_bytes()).then(|| PidVariable::new(index, name))
    });
    variables.collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn variables_with_a_number_name_the_command() {
        let own = std::process::id().to_string();
        let texts = ["A=1".into(), format!("LISTEN_PID={own}"), format!("WATCHDOG_PID={own}0")];
        let environment = texts.map(|text| CString::new(text).expect("no NUL"));
        let mut variables = pid_variables(&environment);
        // The other one is meant for another process.
        let [variable] = &mut variables[..] else { panic!("one variable") };
        assert_eq!(variable.index, 1);
        for (number, text) in [(7, c"LISTEN_PID=7"), (u32::MAX, c"LISTEN_PID=4294967295")] {
            variable.set(number);
            assert_eq!(CStr::from_bytes_until_nul(&variable.text), Ok(text));
        }
    }
}
