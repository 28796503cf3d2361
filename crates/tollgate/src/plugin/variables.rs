//! A plugin's global variables, by their names.

use std::fs::{self, File};
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use ecode::{Integer, Type};
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

    fn of_name(&self, name: &str) -> Result<(Type, Range<usize>)> {
        let mut globals = self.built.program.globals.iter().zip(&self.built.object.offsets);
        let (global, offset) = globals
            .find(|(global, _)| global.name == name)
            .with_context(|| format!("the plugin has no global variable `{name}`"))?;
        let offset = *offset as usize;
        Ok((global.of.clone(), offset..offset + global.of.size() as usize))
    }

    fn array(&self, name: &str) -> Result<Range<usize>> {
        let (of, range) = self.of_name(name)?;
        ensure!(of.is_bytes(), "`{name}` is of type {of}, and no array of bytes");
        Ok(range)
    }

    fn number(&self, name: &str) -> Result<(Integer, Range<usize>)> {
        let (of, range) = self.of_name(name)?;
        let number = of.integer().with_context(|| format!("`{name}` is of type {of}, and no number"))?;
        Ok((number, range))
    }

    fn set_number(&mut self, name: &str, value: u64) -> Result<()> {
        let (of, range) = self.number(name)?;
        ensure!(of.extend(value) == value && value <= i64::MAX as u64, "{value} is too large for `{name}`");
        let length = range.len();
        self.bytes[range].copy_from_slice(&value.to_le_bytes()[..length]);
        Ok(())
    }

    /// As they are to be before a call.
    pub fn put(&mut self, with: &With, plugin: &Plugin) -> Result<()> {
        if let Some(path) = &with.input {
            let range = self.array("input")?;
            self.number("input_length")?;
            let mut input = Vec::new();
            let room = range.len() as u64;
            File::open(path)
                .and_then(|file| file.take(room + 1).read_to_end(&mut input))
                .with_context(|| format!("cannot read {}", path.display()))?;
            if input.len() as u64 > room {
                bail!("{} has more bytes than `input` has room for, {room}", path.display());
            }
            self.bytes[range][..input.len()].copy_from_slice(&input);
            self.set_number("input_length", input.len() as u64)?;
        }
        if with.output_data.is_some() {
            // Before anything is done for nothing.
            self.array("output")?;
            self.number("output_length")?;
        }
        if !self.bytes.is_empty() {
            plugin.set_data(&self.bytes)?;
        }
        Ok(())
    }

    /// What a call has left of `output`.
    pub fn take(&mut self, to: &Path, plugin: &Plugin) -> Result<()> {
        self.bytes = plugin.data()?;
        let (range, (of, place)) = (self.array("output")?, self.number("output_length")?);
        let mut word = [0; 8];
        word[..place.len()].copy_from_slice(&self.bytes[place]);
        let length = of.extend(u64::from_le_bytes(word));
        if length > range.len() as u64 {
            let told = if of.is_signed { (length as i64).to_string() } else { length.to_string() };
            bail!("`output_length` is {told}, and `output` has {} bytes", range.len());
        }
        fs::write(to, &self.bytes[range][..length as usize])
            .with_context(|| format!("cannot write {}", to.display()))
    }
}
