//! Sizes for people: `13.2 MB` out, `1GiB` in.

/// Rows as lines whose columns stand below one another.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes with three digits or so, in powers of 1000.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A whole number with commas between groups of three digits.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `n thing` or `n things`.
pub fn count(n: usize, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", grouped(n as u64))
}

/// Reads `512MiB`, `1.5 GB` or a plain number of bytes.
///
/// # Errors
/// Says what is allowed.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(format!("unknown unit {:?}; use kB, MB, GB, KiB, MiB or GiB", unit.trim())),
    };
    let number: f64 = number.parse().map_err(|_| "not a size such as 512MiB".to_owned())?;
    let bytes = number * factor as f64;
    if !(1.0..=1e15).contains(&bytes) {
        return Err("out of range: 1 B to 1 PB".to_owned());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_unit_before_they_need_four_digits() {
        let shown = [0, 999, 1000, 13_190_000, 999_949, 999_950, 688_586_727_753].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "13.2 MB", "999.9 kB", "1.0 MB", "688.6 GB"]);
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!([0, 999, 1000, 163_840, 1_234_567].map(grouped), ["0", "999", "1,000", "163,840", "1,234,567"]);
    }

    #[test]
    fn sizes_are_read_with_either_kind_of_unit() {
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("1.5 kB"), Ok(1500));
        assert_eq!(parse_bytes("17"), Ok(17));
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for text in ["", "GiB", "1.2.3MB", "-1MB", "0", "1e3", "1 duck", "9999999999GB"] {
            assert!(parse_bytes(text).is_err(), "{text:?} was taken");
        }
    }
}
