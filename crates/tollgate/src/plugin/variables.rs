//! Access to a plugin's global variables by name.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use ecode::Integer;
use kernel::plugin::Data;
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::arguments::{CallInput, bits};
use super::compile::CompiledPlugin;
use crate::format::{number_of, shown_path};
use crate::output::{Output, is_stdio};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VariableInfo {
    pub name: String,
    /// The type as in the source.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The offset in the memory of all variables.
    pub offset: u32,
    pub bytes: u32,
    /// The width of a number; `None` for other types.
    pub bits: Option<u8>,
    pub is_signed: bool,
    /// Whether the variable is an array of bytes.
    pub is_bytes: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Variables(pub Vec<VariableInfo>);

impl Variables {
    pub fn of(built: &CompiledPlugin) -> Self {
        let globals = built.program.globals.iter().zip(&built.object.offsets);
        let variable = |(global, offset): (&ecode::Global, &u32)| {
            let number = global.ty.integer();
            VariableInfo {
                name: global.name.clone(),
                type_name: global.ty.to_string(),
                offset: *offset,
                bytes: global.ty.size() as u32,
                bits: number.map(|number| number.bits),
                is_signed: number.is_some_and(|number| number.is_signed),
                is_bytes: global.ty.is_bytes(),
            }
        };
        Self(globals.map(variable).collect())
    }

    fn of_name(&self, name: &str) -> Result<&VariableInfo> {
        let found = self.0.iter().find(|variable| variable.name == name);
        found.with_context(|| {
            format!("the plugin has no global variable `{name}` (maps cannot be set)")
        })
    }

    fn array(&self, name: &str) -> Result<&VariableInfo> {
        let variable = self.of_name(name)?;
        ensure!(
            variable.is_bytes,
            "`{name}` has type {}; it must be an array of bytes",
            variable.type_name
        );
        Ok(variable)
    }

    fn number(&self, name: &str) -> Result<(&VariableInfo, Integer)> {
        let variable = self.of_name(name)?;
        let bits = variable.bits.with_context(|| {
            format!("`{name}` has type {}; it must be a number", variable.type_name)
        })?;
        Ok((variable, Integer::short(bits, variable.is_signed)))
    }

    /// The bits of a value. Fails if the value is not in the range of the variable's type: C would
    /// convert it, but it is probably a typing error.
    pub fn parse_value(&self, name: &str, value: &Number) -> Result<u64> {
        let (variable, of) = self.number(name)?;
        let bits = bits(value).with_context(|| format!("{value} is not an integer"))?;
        let is_negative = value.as_i64().is_some_and(i64::is_negative);
        let direction = if is_negative { "small" } else { "large" };
        ensure!(
            of.holds(bits, is_negative),
            "{value} is too {direction} for `{name}`, of type {}",
            variable.type_name
        );
        Ok(bits)
    }

    pub fn set(&self, name: &str, value: &Number, data: &Data) -> Result<()> {
        let (bits, variable) = (self.parse_value(name, value)?, self.of_name(name)?);
        data.write(variable.offset as usize, &bits.to_le_bytes()[..variable.bytes as usize]);
        Ok(())
    }

    /// Prepares the variables for a call.
    pub fn write_input(&self, with: &CallInput, data: &Data) -> Result<()> {
        if let Some(path) = &with.input {
            let array = self.array("input")?;
            self.number("input_length")?;
            let room = u64::from(array.bytes);
            let input = read_limited(room + 1, path)
                .with_context(|| format!("cannot read {}", shown_path(path)))?;
            if input.len() as u64 > room {
                bail!("{} has more than the {room} bytes of `input`", shown_path(path));
            }
            data.write(array.offset as usize, &input);
            self.set("input_length", &input.len().into(), data)?;
        }
        if with.output_data.is_some() {
            // Check this before the call, so that no work is wasted.
            self.array("output")?;
            self.number("output_length")?;
        }
        Ok(())
    }

    /// Writes the contents of `output` after a call.
    pub fn read_output(&self, to: &Path, data: &Data) -> Result<()> {
        let (array, (length_variable, of)) = (self.array("output")?, self.number("output_length")?);
        let mut word = [0; 8];
        word[..length_variable.bytes as usize].copy_from_slice(
            &data.read(length_variable.offset as usize, length_variable.bytes as usize),
        );
        let length = of.extend(u64::from_le_bytes(word));
        if length > u64::from(array.bytes) {
            let shown = if of.is_signed { (length as i64).to_string() } else { length.to_string() };
            let bytes = number_of(array.bytes as usize, "byte");
            bail!("`output_length` is {shown}, but `output` has {bytes}");
        }
        Output::open(Some(to), Output::Stdout)?
            .write_bytes(&data.read(array.offset as usize, length as usize))
    }
}

fn read_limited(bytes: u64, path: &Path) -> io::Result<Vec<u8>> {
    let mut input = Vec::new();
    if is_stdio(path) {
        io::stdin().take(bytes).read_to_end(&mut input)?;
    } else {
        File::open(path)?.take(bytes).read_to_end(&mut input)?;
    }
    Ok(input)
}
