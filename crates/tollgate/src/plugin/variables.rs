//! A plugin's global variables, by their names.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use kernel::plugins::Plugin;

use super::arguments::With;
use super::build::Built;

pub struct Variables<'a> {
    built: &'a Built,
    bytes: Vec<u8>,
}

impl<'a> Variables<'a> {
    pub fn of(built: &'a Built) -> Self {
        Self { built, bytes: built.object.data.clone() }
    }

    fn range(&self, name: &str) -> Result<std::ops::Range<usize>> {
        let globals = self.built.program.globals.iter().zip(&self.built.object.offsets);
        let (global, offset) = globals
            .into_iter()
            .find(|(global, _)| global.name == name)
            .with_context(|| format!("the plugin has no global variable `{name}`"))?;
        let offset = *offset as usize;
        Ok(offset..offset + global.of.size() as usize)
    }

    fn number(&self, name: &str) -> Result<u64> {
        let bytes = &self.bytes[self.range(name)?];
        let mut word = [0; 8];
        ensure!(bytes.len() <= word.len(), "`{name}` is no number");
        word[..bytes.len()].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(word))
    }

    fn set_number(&mut self, name: &str, value: u64) -> Result<()> {
        let range = self.range(name)?;
        let length = range.len();
        ensure!(length <= 8, "`{name}` is no number");
        ensure!(length == 8 || value >> (8 * length) == 0, "{value} is too large for `{name}`");
        self.bytes[range].copy_from_slice(&value.to_le_bytes()[..length]);
        Ok(())
    }

    /// As they are to be before a call.
    pub fn put(&mut self, with: &With, plugin: &Plugin) -> Result<()> {
        if let Some(path) = &with.input {
            let input = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let range = self.range("input")?;
            if input.len() > range.len() {
                bail!("{} has {} bytes, and `input` room for {}", path.display(), input.len(), range.len());
            }
            self.bytes[range][..input.len()].copy_from_slice(&input);
            self.set_number("input_length", input.len() as u64)?;
        }
        if with.output_data.is_some() {
            // Before anything is done for nothing.
            self.range("output")?;
            self.range("output_length")?;
        }
        if !self.bytes.is_empty() {
            plugin.set_data(&self.bytes)?;
        }
        Ok(())
    }

    /// What a call has left of `output`.
    pub fn take(&mut self, to: &Path, plugin: &Plugin) -> Result<()> {
        self.bytes = plugin.data()?;
        let (range, length) = (self.range("output")?, self.number("output_length")?);
        if length > range.len() as u64 {
            bail!("`output_length` is {length}, and `output` has {} bytes", range.len());
        }
        fs::write(to, &self.bytes[range][..length as usize])
            .with_context(|| format!("cannot write {}", to.display()))
    }
}
