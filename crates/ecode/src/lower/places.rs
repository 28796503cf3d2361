//! Places in memory: checked, read, written.

use super::{Home, Lowered, Lowerer, number, width};
use crate::ast::Operator;
use crate::ir::{Address, Argument, Base, BlockId, End, Register, Step, Value, Width};
use crate::layout::{FULL, OUTSIDE};
use crate::program::{Expression, ExpressionKind, Place, PlaceKind};
use crate::types::Type;

// include/uapi/linux/bpf.h, enum bpf_func_id
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
pub const MAP_DELETE_ELEM: i32 = 3;
/// Of a map's entry that is to be made, and nobody else has made meanwhile: BPF_NOEXIST.
const ONLY_NEW: i64 = 1;

/// Where something is, and the blocks that are reached where there is nothing, with what that counts as.
pub struct Found {
    pub address: Address,
    missing: Vec<(BlockId, Option<u32>)>,
}

impl Lowerer<'_> {
    pub(super) fn find(&mut self, place: &Place, is_written: bool) -> Lowered<Found> {
        let (mut place, mut offset, mut index) = (place, 0_u32, None);
        let mut missing = Vec::new();
        let base = loop {
            match &place.kind {
                PlaceKind::Member(outer, by) => {
                    offset += *by as u32;
                    place = outer;
                }
                PlaceKind::Element(array, at, length) => {
                    let size = place.of.size();
                    if let ExpressionKind::Constant(at) = at.kind {
                        offset += (at * size) as u32;
                    } else {
                        let scaled = self.checked_index(at, *length, size, &mut missing)?;
                        index = Some(match index {
                            None => scaled,
                            Some(before) => self.sum(before, scaled),
                        });
                    }
                    place = array;
                }
                PlaceKind::Local(local) => match self.homes[*local] {
                    Home::Frame(at) => break Base::Frame(at + offset),
                    Home::Register(_) => unreachable!("a number has no members and elements"),
                },
                PlaceKind::Global(global) => match self.data(*global) {
                    Base::Data(at) => break Base::Data(at + offset),
                    other => break other,
                },
                PlaceKind::Entry(map, key) => {
                    let entry = self.entry(*map, key, is_written, &mut missing)?;
                    break Base::Pointer(entry, offset);
                }
            }
        };
        Ok(Found { address: Address { base, index }, missing })
    }

    pub(super) fn sum(&mut self, one: Register, other: Register) -> Register {
        let to = self.register();
        let (left, right) = (Value::Register(one), Value::Register(other));
        self.step(Step::Operate {
            to,
            operator: Operator::Add,
            width: Width::W64,
            is_signed: false,
            left,
            right,
        });
        to
    }

    fn checked_index(
        &mut self,
        at: &Expression,
        length: u64,
        size: u64,
        missing: &mut Vec<(BlockId, Option<u32>)>,
    ) -> Lowered<Register> {
        let index = self.index(at)?;
        let (to, within, outside) = (self.register(), self.new_block(), self.new_block());
        self.end(End::Index { to, index, length, size, within, outside });
        missing.push((outside, Some(OUTSIDE)));
        self.enter(within);
        Ok(to)
    }

    /// A pointer to a map's value. One that is to be written is made where it is not there.
    fn entry(
        &mut self,
        map: usize,
        key: &Expression,
        is_written: bool,
        missing: &mut Vec<(BlockId, Option<u32>)>,
    ) -> Lowered<Register> {
        let key = self.key(map, key)?;
        let entry = self.register();
        let (there, absent) = (self.new_block(), self.new_block());
        self.look_up(entry, map, key, there, absent);
        if !is_written {
            missing.push((absent, None));
            self.enter(there);
            return Ok(entry);
        }
        self.enter(absent);
        let size = self.program.maps[map].value.size();
        let value = self.value_place(size);
        self.clear(value, size);
        let (key, value) = (Argument::Address(key), Argument::Address(Address::of(Base::Frame(value))));
        let flags = Argument::Value(Value::Constant(ONLY_NEW));
        let arguments = vec![Argument::Map(map), key, value, flags];
        self.step(Step::Helper { to: None, number: MAP_UPDATE_ELEM, arguments });
        let full = self.new_block();
        let Argument::Address(key) = key else { unreachable!("it was made above") };
        self.look_up(entry, map, key, there, full);
        missing.push((full, Some(FULL)));
        self.enter(there);
        Ok(entry)
    }

    pub(super) fn look_up(
        &mut self,
        to: Register,
        map: usize,
        key: Address,
        there: BlockId,
        absent: BlockId,
    ) {
        let arguments = vec![Argument::Map(map), Argument::Address(key)];
        self.step(Step::Helper { to: Some(to), number: MAP_LOOKUP_ELEM, arguments });
        self.end(End::Found { pointer: to, yes: there, no: absent });
    }

    /// In the frame, where the kernel reads it.
    pub(super) fn key(&mut self, map: usize, key: &Expression) -> Lowered<Address> {
        let of = &self.program.maps[map].key;
        let most = self.program.maps.iter().map(|map| map.key.size()).max().unwrap_or(0);
        let at = match self.key_at {
            Some(at) => at,
            None => self.frame(most),
        };
        let address = Address::of(Base::Frame(at));
        if key.of.is_struct() {
            self.copy_whole(address, key)?;
        } else {
            let value = self.value(key)?;
            self.write(address, of, value);
        }
        self.key_at = Some(at);
        Ok(address)
    }

    fn value_place(&mut self, size: u64) -> u32 {
        let most = self.program.maps.iter().map(|map| map.value.size()).max().unwrap_or(0).max(size);
        let at = match self.value_at {
            Some(at) => at,
            None => self.frame(most),
        };
        self.value_at = Some(at);
        at
    }

    pub(super) fn read(&mut self, to: Register, from: Address, of: &Type) {
        let number = number(of);
        let bytes = number.bytes() as u8;
        self.step(Step::Load { to, from, bytes });
        // Of a `bool`, whatever was copied into its byte.
        if number.is_signed && number.bits < 32 || number.bits < 8 {
            self.step(Step::Extend {
                to,
                from: to,
                bits: number.bits,
                is_signed: number.is_signed,
                width: width(number),
            });
        }
    }

    pub(super) fn write(&mut self, to: Address, of: &Type, value: Value) {
        self.store(to, of.size() as u8, value, width(number(of)));
    }

    pub(super) fn store(&mut self, to: Address, bytes: u8, value: Value, width: Width) {
        let is_followed = matches!(to.base, Base::Frame(_)) && self.uses.has_loops;
        let value = if is_followed { self.unknown(value, width) } else { value };
        self.step(Step::Store { to, bytes, value });
    }

    /// What the verifier is not to know, as it follows numbers through the frame: an element that a loop counts up would have
    /// another range in each round.
    fn unknown(&mut self, value: Value, width: Width) -> Value {
        let register = self.register();
        self.set(register, value, width);
        if value.register().is_some() {
            self.step(Step::Widen { register, width });
        }
        Value::Register(register)
    }

    /// Comes together again with the ways on which nothing was found.
    pub(super) fn join(
        &mut self,
        found: Found,
        mut otherwise: impl FnMut(&mut Self) -> Lowered<()>,
    ) -> Lowered<()> {
        if found.missing.is_empty() {
            return Ok(());
        }
        let join = self.new_block();
        self.end(End::Jump(join));
        for (block, counts_as) in found.missing {
            self.enter(block);
            if let Some(what) = counts_as {
                self.add_to_control(what);
            }
            otherwise(self)?;
            self.end(End::Jump(join));
        }
        self.enter(join);
        Ok(())
    }

    /// All that is there, or nothing but 0.
    pub(super) fn copy_to(&mut self, to: Address, from: &Place) -> Lowered<()> {
        let (size, unit) = (from.of.size(), from.of.alignment());
        let found = self.find(from, false)?;
        self.copy(to, found.address, size, unit);
        self.join(found, |lowerer| {
            // A 0 that the verifier knows would be told apart from what is there, one for each byte of each key.
            let zero = lowerer.register();
            lowerer.set(zero, Value::Constant(0), Width::W64);
            for at in (0..size).step_by(unit as usize) {
                let to = at_offset(to, at);
                lowerer.step(Step::Store { to, bytes: unit as u8, value: Value::Register(zero) });
            }
            Ok(())
        })
    }

    fn copy(&mut self, to: Address, from: Address, size: u64, unit: u64) {
        for at in (0..size).step_by(unit as usize) {
            let word = self.register();
            self.step(Step::Load { to: word, from: at_offset(from, at), bytes: unit as u8 });
            self.step(Step::Store { to: at_offset(to, at), bytes: unit as u8, value: Value::Register(word) });
        }
    }

    /// The bytes of a struct, to somewhere in the frame.
    fn copy_whole(&mut self, to: Address, value: &Expression) -> Lowered<()> {
        match &value.kind {
            ExpressionKind::Load(from) => self.copy_to(to, from),
            ExpressionKind::Assign(place, by) => {
                let between = self.copy_struct(place, by)?;
                if between != to {
                    self.copy(to, between, value.of.size(), value.of.alignment());
                }
                Ok(())
            }
            ExpressionKind::Conditional(parts) => {
                self.choose(parts, |lowerer, chosen| lowerer.copy_whole(to, chosen))
            }
            ExpressionKind::Comma(left, right) => {
                self.effect(left)?;
                self.copy_whole(to, right)
            }
            _ => unreachable!("a struct is nobody's result"),
        }
    }

    /// The bytes are between both places once all of them are read, and the place that is to be changed is found; it is told
    /// where.
    pub(super) fn copy_struct(&mut self, place: &Place, value: &Expression) -> Lowered<Address> {
        let between = self.between();
        self.copy_whole(between, value)?;
        self.copies_held += 1;
        let found = self.find(place, true)?;
        self.copies_held -= 1;
        self.copy(found.address, between, place.of.size(), place.of.alignment());
        self.join(found, |_| Ok(()))?;
        Ok(between)
    }

    /// A struct or an array of which nobody makes anything.
    pub(super) fn ignore(&mut self, value: &Expression) -> Lowered<()> {
        match &value.kind {
            ExpressionKind::Load(from) => {
                let found = self.find(from, false)?;
                self.join(found, |_| Ok(()))
            }
            ExpressionKind::Conditional(parts) => self.choose(parts, Self::ignore),
            _ => self.effect(value),
        }
    }

    /// In the frame, for any struct of this function; not where another one is held meanwhile.
    fn between(&mut self) -> Address {
        if self.copies_held == self.copies.len() {
            let at = self.frame(self.uses.struct_bytes);
            self.copies.push(at);
        }
        Address::of(Base::Frame(self.copies[self.copies_held]))
    }
}

fn at_offset(address: Address, by: u64) -> Address {
    let by = by as u32;
    let base = match address.base {
        Base::Frame(at) => Base::Frame(at + by),
        Base::Data(at) => Base::Data(at + by),
        Base::Control(at) => Base::Control(at + by),
        Base::Verdicts(at) => Base::Verdicts(at + by),
        Base::Pointer(register, at) => Base::Pointer(register, at + by),
    };
    Address { base, ..address }
}
