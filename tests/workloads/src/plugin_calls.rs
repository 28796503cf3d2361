//! Calls a daemon's plugin with the library for Rust.

use std::io::{Read as _, Write as _, stdin, stdout};

use tollgate::Plugin;

use crate::arguments::{Arguments, MAX_REPETITIONS};
use crate::failure::{Failure, Outcome, failed, os_failure};

/// Input and output use the same variables as in `tollgate plugin call`.
pub fn call_plugin(mut arguments: Arguments) -> Outcome {
    let name = arguments.path("NAME")?;
    let times = arguments.number("TIMES", 1..=MAX_REPETITIONS)?;
    arguments.end()?;
    let mut bytes = Vec::new();
    stdin().read_to_end(&mut bytes).map_err(|error| os_failure("read the input", error))?;
    let mut output = Vec::new();
    for _ in 0..times {
        let plugin =
            Plugin::open(&name.to_string_lossy()).map_err(|error| failed(error.to_string()))?;
        output = call(&plugin, &bytes)?;
    }
    // The output may not end with a newline.
    stdout()
        .write_all(&output)
        .and_then(|()| stdout().flush())
        .map_err(|error| os_failure("write the output", error))
}

fn call(plugin: &Plugin, bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let variable =
        |name: &str| plugin.variable(name).ok_or_else(|| failed(format!("it has no {name}")));
    let ((input, room), (input_length, _)) = (variable("input")?, variable("input_length")?);
    let ((output, most), (output_length, _)) = (variable("output")?, variable("output_length")?);
    if bytes.len() > room {
        return Err(failed(format!("there is room for {room} bytes")));
    }
    // SAFETY: as many bytes as both have, in memory that is there as long as the plugin is open;
    // lengths are `u64`.
    unsafe {
        input.copy_from(bytes.as_ptr(), bytes.len());
        input_length.cast::<u64>().write_volatile(bytes.len() as u64);
    }
    let result = plugin.call(&[]).map_err(|error| failed(error.to_string()))?;
    if result < 0 {
        return Err(failed(format!("it returned {result}")));
    }
    // SAFETY: as above.
    let length = unsafe { output_length.cast::<u64>().read_volatile() };
    // SAFETY: as above; nothing else calls the plugin.
    Ok(unsafe { std::slice::from_raw_parts(output, most.min(length as usize)) }.to_vec())
}
