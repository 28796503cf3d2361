//! Lowers lvalues: checks, reads and writes.

use super::helpers::{MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM};
use super::lowerer::{LocalStorage, Lowered, Lowerer, width};
use crate::arithmetic::number;
use crate::ast::Operator;
use crate::data_layout::{FULL, OUTSIDE};
use crate::ir::{
    Address, AddressBase, BlockId, HelperArgument, Inst, Register, Terminator, Value, Width,
};
use crate::typed::{Expression, ExpressionKind, Lvalue, LvalueKind};
use crate::types::Type;

/// BPF_NOEXIST: inserts an entry only if another processor has not inserted it meanwhile.
const ONLY_NEW: i64 = 1;

/// The address of an lvalue, and the blocks that are reached if it does not exist, each with the
/// fault to count.
pub struct LvalueAddress {
    pub address: Address,
    absent_exits: Vec<(BlockId, Option<u32>)>,
}

impl Lowerer<'_> {
    pub(super) fn lower_lvalue(
        &mut self,
        lvalue: &Lvalue,
        is_written: bool,
    ) -> Lowered<LvalueAddress> {
        let (mut lvalue, mut offset, mut index) = (lvalue, 0_u32, None);
        let mut missing = Vec::new();
        let base = loop {
            match &lvalue.kind {
                LvalueKind::Member(outer, by) => {
                    offset += *by as u32;
                    lvalue = outer;
                }
                LvalueKind::Element(array, at, length) => {
                    let size = lvalue.of.size();
                    if let ExpressionKind::Constant(at) = at.kind {
                        offset += (at * size) as u32;
                    } else {
                        let scaled = self.checked_index(at, *length, size, &mut missing)?;
                        index = Some(match index {
                            None => scaled,
                            Some(before) => self.sum(before, scaled),
                        });
                    }
                    lvalue = array;
                }
                LvalueKind::Local(local) => match self.storage[*local] {
                    LocalStorage::Frame(at) => break AddressBase::Frame(at + offset),
                    LocalStorage::Register(_) => {
                        unreachable!("a number has no members and elements")
                    }
                },
                LvalueKind::Global(global) => match self.data(*global) {
                    AddressBase::Data(at) => break AddressBase::Data(at + offset),
                    other => break other,
                },
                LvalueKind::Entry(map, key) => {
                    let entry = self.entry(*map, key, is_written, &mut missing)?;
                    break AddressBase::Pointer(entry, offset);
                }
            }
        };
        Ok(LvalueAddress { address: Address { base, index }, absent_exits: missing })
    }

    pub(super) fn sum(&mut self, one: Register, other: Register) -> Register {
        let to = self.register();
        let (left, right) = (Value::Register(one), Value::Register(other));
        self.step(Inst::BinaryOp {
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
        self.end(Terminator::BoundsCheck { to, index, length, size, within, outside });
        missing.push((outside, Some(OUTSIDE)));
        self.enter(within);
        Ok(to)
    }

    /// A pointer to a value of a map. For a write, a missing entry is inserted.
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
        let value = self.map_value_slot(size);
        self.clear(value, size);
        let (key, value) = (
            HelperArgument::Address(key),
            HelperArgument::Address(Address::of(AddressBase::Frame(value))),
        );
        let flags = HelperArgument::Value(Value::Constant(ONLY_NEW));
        let arguments = vec![HelperArgument::Map(map), key, value, flags];
        self.step(Inst::Helper { to: None, number: MAP_UPDATE_ELEM, arguments });
        let full = self.new_block();
        let HelperArgument::Address(key) = key else { unreachable!("it was made above") };
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
        let arguments = vec![HelperArgument::Map(map), HelperArgument::Address(key)];
        self.step(Inst::Helper { to: Some(to), number: MAP_LOOKUP_ELEM, arguments });
        self.end(Terminator::NullCheck { pointer: to, yes: there, no: absent });
    }

    /// Stores a key in the frame, from which the kernel reads it.
    pub(super) fn key(&mut self, map: usize, key: &Expression) -> Lowered<Address> {
        let of = &self.program.maps[map].key;
        let most = self.program.maps.iter().map(|map| map.key.size()).max().unwrap_or(0);
        let at = match self.key_at {
            Some(at) => at,
            None => self.frame(most),
        };
        let address = Address::of(AddressBase::Frame(at));
        if key.ty.is_struct() {
            self.copy_whole(address, key)?;
        } else {
            let value = self.value(key)?;
            self.write(address, of, value);
        }
        self.key_at = Some(at);
        Ok(address)
    }

    fn map_value_slot(&mut self, size: u64) -> u32 {
        let most =
            self.program.maps.iter().map(|map| map.value.size()).max().unwrap_or(0).max(size);
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
        self.step(Inst::Load { to, from, bytes });
        // Any number may have been copied into the byte of a `bool`.
        if number.is_signed && number.bits < 32 || number.bits < 8 {
            self.step(Inst::Extend {
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
        let is_followed = matches!(to.base, AddressBase::Frame(_)) && self.uses.has_loops;
        let value = if is_followed { self.opaque(value, width) } else { value };
        self.step(Inst::Store { to, bytes, value });
    }

    /// Hides the range of a value from the verifier, which tracks numbers through the frame.
    /// Otherwise, an element that a loop increments would have another range in each iteration.
    fn opaque(&mut self, value: Value, width: Width) -> Value {
        let register = self.register();
        self.set(register, value, width);
        if value.register().is_some() {
            self.step(Inst::Opaque { register, width });
        }
        Value::Register(register)
    }

    /// Joins the paths on which an lvalue does not exist with the current path.
    pub(super) fn merge_absent(
        &mut self,
        found: LvalueAddress,
        mut otherwise: impl FnMut(&mut Self) -> Lowered<()>,
    ) -> Lowered<()> {
        if found.absent_exits.is_empty() {
            return Ok(());
        }
        let join = self.new_block();
        self.end(Terminator::Jump(join));
        for (block, counts_as) in found.absent_exits {
            self.enter(block);
            if let Some(what) = counts_as {
                self.add_to_control(what);
            }
            otherwise(self)?;
            self.end(Terminator::Jump(join));
        }
        self.enter(join);
        Ok(())
    }

    /// Copies an lvalue, or zeros if it does not exist.
    pub(super) fn copy_to(&mut self, to: Address, from: &Lvalue) -> Lowered<()> {
        let (size, unit) = (from.of.size(), from.of.alignment());
        let found = self.lower_lvalue(from, false)?;
        self.copy(to, found.address, size, unit);
        self.merge_absent(found, |lowerer| {
            // Hide the 0 from the verifier, which would otherwise distinguish it from an existing
            // value for each byte of each key.
            let zero = lowerer.register();
            lowerer.set(zero, Value::Constant(0), Width::W64);
            for at in (0..size).step_by(unit as usize) {
                let to = at_offset(to, at);
                lowerer.step(Inst::Store { to, bytes: unit as u8, value: Value::Register(zero) });
            }
            Ok(())
        })
    }

    fn copy(&mut self, to: Address, from: Address, size: u64, unit: u64) {
        for at in (0..size).step_by(unit as usize) {
            let word = self.register();
            self.step(Inst::Load { to: word, from: at_offset(from, at), bytes: unit as u8 });
            self.step(Inst::Store {
                to: at_offset(to, at),
                bytes: unit as u8,
                value: Value::Register(word),
            });
        }
    }

    /// Copies the bytes of a struct value to the frame.
    fn copy_whole(&mut self, to: Address, value: &Expression) -> Lowered<()> {
        match &value.kind {
            ExpressionKind::Load(from) => self.copy_to(to, from),
            ExpressionKind::Assign(lvalue, by) => {
                let between = self.copy_struct(lvalue, by)?;
                if between != to {
                    self.copy(to, between, value.ty.size(), value.ty.alignment());
                }
                Ok(())
            }
            ExpressionKind::Conditional(parts) => {
                self.lower_conditional(parts, |lowerer, chosen| lowerer.copy_whole(to, chosen))
            }
            ExpressionKind::Comma(left, right) => {
                self.lower_effect(left)?;
                self.copy_whole(to, right)
            }
            _ => unreachable!("a struct is nobody's result"),
        }
    }

    /// Assigns a struct through a temporary copy, because the value must be read completely before
    /// the destination is resolved and written. Returns the address of the copy.
    pub(super) fn copy_struct(&mut self, lvalue: &Lvalue, value: &Expression) -> Lowered<Address> {
        let between = self.struct_scratch();
        self.copy_whole(between, value)?;
        self.copies_held += 1;
        let found = self.lower_lvalue(lvalue, true)?;
        self.copies_held -= 1;
        self.copy(found.address, between, lvalue.of.size(), lvalue.of.alignment());
        self.merge_absent(found, |_| Ok(()))?;
        Ok(between)
    }

    /// Lowers a struct or an array whose value is not used.
    pub(super) fn lower_unused(&mut self, value: &Expression) -> Lowered<()> {
        match &value.kind {
            ExpressionKind::Load(from) => {
                let found = self.lower_lvalue(from, false)?;
                self.merge_absent(found, |_| Ok(()))
            }
            ExpressionKind::Conditional(parts) => self.lower_conditional(parts, Self::lower_unused),
            _ => self.lower_effect(value),
        }
    }

    /// A frame slot that is large enough for any struct of this function and not in use for another
    /// copy.
    fn struct_scratch(&mut self) -> Address {
        if self.copies_held == self.copies.len() {
            let at = self.frame(self.uses.struct_bytes);
            self.copies.push(at);
        }
        Address::of(AddressBase::Frame(self.copies[self.copies_held]))
    }
}

fn at_offset(address: Address, by: u64) -> Address {
    let by = by as u32;
    let base = match address.base {
        AddressBase::Frame(at) => AddressBase::Frame(at + by),
        AddressBase::Data(at) => AddressBase::Data(at + by),
        AddressBase::Control(at) => AddressBase::Control(at + by),
        AddressBase::Verdicts(at) => AddressBase::Verdicts(at + by),
        AddressBase::Pointer(register, at) => AddressBase::Pointer(register, at + by),
    };
    Address { base, ..address }
}
