//! JSON as the release's encoder writes it: Python's `json.dumps(value, ensure_ascii=False)`.
//!
//! The model has seen tools and arguments in this form only, so it is part of the prompt format: a space after `,` and `:`, members
//! in their given order, numbers as Python prints them. Integers beyond 64 bits and more digits than a double has are rounded when
//! they are parsed, before they come here.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// The text of `value`.
pub(super) fn to_json(value: &Value) -> String {
    let mut bytes = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut bytes, Python))
        .expect("a Value has string keys and a Vec takes every byte");
    String::from_utf8(bytes).expect("serde_json writes UTF-8")
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }
}

/// Python's `repr` of a float: the shortest digits that read back equal, with an exponent below 1e-4 and from 1e16 on.
///
/// The digits are serde_json's: of two equally short and equally near numbers it takes the even one, as Python does and Rust's own
/// formatting does not. Only where the point and the exponent go differs.
fn python_float(value: f64) -> String {
    let text = serde_json::to_string(&value).expect("a float is JSON");
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.as_str()),
    };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let leading_zeros = all.len() - digits.len();
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return format!("{sign}0.0");
    }
    let exponent: i32 = exponent.parse().expect("serde_json writes an integer");
    // The value is 0.digits × 10^point.
    let point = whole.len() as i32 - leading_zeros as i32 + exponent;
    let (first, rest) = digits.split_at(1);
    match point {
        -3..=0 => format!("{sign}0.{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
        1..=16 => {
            let length = point as usize;
            match digits.split_at_checked(length) {
                Some((whole, "")) => format!("{sign}{whole}.0"),
                Some((whole, fraction)) => format!("{sign}{whole}.{fraction}"),
                None => format!("{sign}{digits}{}.0", "0".repeat(length - digits.len())),
            }
        }
        _ => {
            let dot = if rest.is_empty() { "" } else { "." };
            let exponent = point - 1;
            let exponent_sign = if exponent < 0 { '-' } else { '+' };
            format!("{sign}{first}{dot}{rest}e{exponent_sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_and_escapes_are_pythons() {
        let value: Value =
            serde_json::from_str(r#"{"b":[1,-2,{"x":null}],"a":"é🦆\"\\\n\t\b\f\r\u0001\u007f/","e":{},"l":[]}"#)
                .expect("valid");
        assert_eq!(
            to_json(&value),
            "{\"b\": [1, -2, {\"x\": null}], \"a\": \"é🦆\\\"\\\\\\n\\t\\b\\f\\r\\u0001\u{7f}/\", \"e\": {}, \"l\": []}"
        );
    }

    #[test]
    fn floats_are_pythons() {
        // Each right side was printed by Python 3.
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.125, "123456789.125"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.25e300, "-1.25e+300"),
            (5e-324, "5e-324"),
            (12_345_678.0, "12345678.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            // Halfway between ….2 and ….3.
            (5_080_859_733_100_482.0 / 8.0, "635107466637560.2"),
        ] {
            assert_eq!(python_float(value), text);
        }
    }
}
