//! The values of types, and the arithmetic of constants and of the interpreter. docs/ecode.md
//! defines the results that C leaves open.

use crate::ast::Operator;
use crate::types::{Integer, Type, U64};

/// The result of a binary operator. Both operands have the given type, except for the second
/// operand of a shift, which may have any type. All values are extended to 64 bits.
pub fn binary(operator: Operator, of: Integer, left: u64, right: u64) -> u64 {
    use Operator::*;
    let (signed_left, signed_right) = (left as i64, right as i64);
    let less = if of.is_signed { signed_left < signed_right } else { left < right };
    match operator {
        Add => of.extend(left.wrapping_add(right)),
        Subtract => of.extend(left.wrapping_sub(right)),
        Multiply => of.extend(left.wrapping_mul(right)),
        // As BPF instructions define a division by 0.
        Divide if right == 0 => 0,
        Remainder if right == 0 => left,
        Divide if of.is_signed => of.extend(signed_left.wrapping_div(signed_right) as u64),
        Divide => left / right,
        Remainder if of.is_signed => of.extend(signed_left.wrapping_rem(signed_right) as u64),
        Remainder => left % right,
        ShiftLeft => of.extend(left << (right & shift_mask(of))),
        ShiftRight if of.is_signed => (signed_left >> (right & shift_mask(of))) as u64,
        ShiftRight => left >> (right & shift_mask(of)),
        And => left & right,
        Or => left | right,
        Xor => left ^ right,
        Equal => (left == right).into(),
        NotEqual => (left != right).into(),
        Less => less.into(),
        LessEqual => (less || left == right).into(),
        Greater => (!less && left != right).into(),
        GreaterEqual => (!less).into(),
    }
}

/// The mask for the distance of a shift: the number of bits of the type minus 1.
fn shift_mask(of: Integer) -> u64 {
    u64::from(of.bits) - 1
}

/// The integer type in which the values of a type are computed.
pub fn number(of: &Type) -> Integer {
    of.integer().unwrap_or(U64)
}

/// The value of these bytes as a number of this type, extended to 64 bits.
pub fn value_of(bytes: &[u8], of: &Type) -> u64 {
    let mut all = [0; 8];
    let size = bytes.len().min(8);
    all[..size].copy_from_slice(&bytes[..size]);
    number(of).extend(u64::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{INT, LONG, U32, U64};

    fn int(operator: Operator, left: i32, right: i32) -> i32 {
        binary(operator, INT, left as i64 as u64, right as i64 as u64) as i32
    }

    #[test]
    fn undefined_behaviour_is_defined() {
        use Operator::*;
        assert_eq!(int(Add, i32::MAX, 1), i32::MIN);
        assert_eq!(int(Multiply, i32::MIN, -1), i32::MIN);
        assert_eq!(int(Divide, i32::MIN, -1), i32::MIN);
        assert_eq!(int(Remainder, i32::MIN, -1), 0);
        assert_eq!((int(Divide, 7, 0), int(Remainder, -7, 0)), (0, -7));
        assert_eq!((int(ShiftLeft, 1, 33), int(ShiftLeft, 1, 31)), (2, i32::MIN));
        assert_eq!((int(ShiftRight, -8, 1), int(ShiftRight, -8, -31)), (-4, -4));
    }

    #[test]
    fn division_truncates() {
        use Operator::*;
        assert_eq!((int(Divide, -7, 2), int(Remainder, -7, 2)), (-3, -1));
        assert_eq!((int(Divide, 7, -2), int(Remainder, 7, -2)), (-3, 1));
        assert_eq!(binary(Divide, U64, u64::MAX, 2), u64::MAX / 2);
    }

    #[test]
    fn comparison_by_signedness() {
        let minus_one = u64::MAX;
        assert_eq!(binary(Operator::Less, LONG, minus_one, 0), 1);
        assert_eq!(binary(Operator::Less, U64, minus_one, 0), 0);
        assert_eq!(binary(Operator::Greater, U32, U32.extend(minus_one), 0), 1);
    }
}
