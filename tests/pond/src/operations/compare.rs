//! How far a computed value lies from the exact one, and what was found of many.
//!
//! A stage computes in f32 and rounds to bf16 where its mode says so. What its sums' order may change is [`LIMIT`] of the row's size before that
//! rounding, so a rounded value is right if some number within the limit of the exact one rounds to it.

use std::collections::BTreeMap;
use std::fmt;

use model::numerics::round_to_bf16;

/// What f32 sums may differ from exact ones by, in units of a row's size.
pub const LIMIT: f64 = 1e-5;

/// How far the exact value `want` lies from the nearest number that is, or rounds to, `got`; infinite for what rounding never gives.
pub fn off_by(got: f32, want: f64, rounded: bool) -> f64 {
    // `f64::max` would drop a NaN.
    if !got.is_finite() || !want.is_finite() {
        return f64::INFINITY;
    }
    match rounded {
        false => (f64::from(got) - want).abs(),
        true if got.to_bits() & 0xffff != 0 => f64::INFINITY,
        true => {
            let step = |bits: u32| (f64::from(f32::from_bits(bits)) + f64::from(got)) / 2.0;
            // Half-way to the neighbours away from zero and towards it.
            let bits = got.to_bits();
            let (outer, inner) = match got == 0.0 {
                true => (step(0x1_0000).abs(), -step(0x1_0000).abs()),
                false => (step(bits.wrapping_add(0x1_0000)), step(bits.wrapping_sub(0x1_0000))),
            };
            let (low, high) = (outer.min(inner), outer.max(inner));
            (low - want).max(want - high).max(0.0)
        }
    }
}

/// Exact values, and what is said of them.
#[derive(Debug)]
pub struct Exact {
    /// The values.
    pub values: Vec<f64>,
    /// Results are bf16.
    pub rounded: bool,
    /// A size that errors are relative to at least, where a row's own says too little.
    pub size: f64,
}

impl Exact {
    /// Values of a row that is long enough.
    pub fn new(values: Vec<f64>, rounded: bool) -> Exact {
        Exact { values, rounded, size: 0.0 }
    }

    /// Root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.values.iter().map(|v| v * v).sum::<f64>() / self.values.len().max(1) as f64).sqrt()
    }

    /// What an element's rounding errors are relative to: the row's rms, or the element itself where it is larger.
    fn scale(&self) -> impl Fn(usize) -> f64 {
        let rms = self.rms();
        move |i| self.size.max(rms).max(self.values[i].abs()).max(1e-30)
    }
}

/// Where a row of results comes from, for messages.
#[derive(Clone, Debug)]
pub struct Place {
    /// Model and mode.
    pub subject: String,
    /// The model's layer that the segment ends in.
    pub layer: u16,
    /// The op's name, and its weight's.
    pub op: String,
    /// The lane, how many there are, and its position.
    pub lane: [usize; 3],
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [lane, lanes, position] = self.lane;
        write!(f, "{}, to layer {}, {}: lane {lane} of {lanes} at {position}", self.subject, self.layer, self.op)
    }
}

/// What was seen of one kind of op.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    elements: usize,
    /// Elements that are not the exact value's own rounding, yet near enough.
    otherwise: usize,
    /// In units of the limit.
    worst: f64,
}

/// Faults, and how close everything else came to the limit.
#[derive(Default)]
pub struct Findings {
    /// One line each.
    pub faults: Vec<String>,
    /// By kind of op.
    pub seen: BTreeMap<String, Seen>,
}

impl Findings {
    /// Notes a fault that is no number.
    pub fn fault(&mut self, place: &Place, what: impl fmt::Display) {
        self.faults.push(format!("{place}: {what}"));
    }

    /// Compares a row.
    pub fn row(&mut self, place: &Place, got: &[f32], want: &Exact) {
        self.row_with(place, got, want, &want.scale());
    }

    /// Compares a row whose elements have sizes of their own.
    pub fn row_with(&mut self, place: &Place, got: &[f32], want: &Exact, scale: &dyn Fn(usize) -> f64) {
        let (want, rounded) = (&want.values, want.rounded);
        if got.len() != want.len() {
            return self.fault(place, format_args!("{} elements instead of {}", got.len(), want.len()));
        }
        let kind = place.op.split(' ').next().unwrap_or_default().to_owned();
        let seen = self.seen.entry(kind).or_default();
        let (mut beyond, mut worst) = (Vec::new(), (0.0, 0));
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let off = off_by(g, w, rounded) / (LIMIT * scale(i));
            seen.elements += 1;
            seen.otherwise += usize::from(rounded && g != round_to_bf16(w as f32));
            if off > 1.0 {
                beyond.push(i);
            } else {
                seen.worst = seen.worst.max(off);
            }
            if off > worst.0 {
                worst = (off, i);
            }
        }
        if !beyond.is_empty() {
            let (off, i) = worst;
            let around = i.saturating_sub(2)..(i + 3).min(got.len());
            let fault = format!(
                "{} of {} elements beyond the limit (the first {:?}); element {i} is {:e} instead of {:e}, {off:.1} limits \
                 of {:.3e} off; around it {:e} instead of {:e}",
                beyond.len(),
                got.len(),
                &beyond[..beyond.len().min(8)],
                got[i],
                want[i],
                LIMIT * scale(i),
                Short(&got[around.clone()]),
                Short(&want[around]),
            );
            self.fault(place, fault);
        }
    }

    /// A line for each kind of op: elements, those that round otherwise, and the largest part of the limit that one needed.
    pub fn summary(&self) -> String {
        let line = |(kind, seen): (&String, &Seen)| {
            let Seen { elements, otherwise, worst } = seen;
            format!(
                "    {kind:13} {elements:9} elements, {otherwise:6} round otherwise, at most {worst:.3} of the limit\n"
            )
        };
        self.seen.iter().map(line).collect()
    }
}

/// Numbers in a short form.
struct Short<'a, T>(&'a [T]);

impl<T: fmt::LowerExp> fmt::LowerExp for Short<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, value) in self.0.iter().enumerate() {
            write!(f, "{}{value:.6e}", if i > 0 { " " } else { "" })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_value_is_right_where_it_is_the_nearest_one() {
        // The step at 1 is 1/128 above and 1/256 below.
        assert_eq!(off_by(1.0, 1.0, true), 0.0);
        assert_eq!(off_by(1.0, 1.0 + 1.0 / 256.0, true), 0.0);
        assert_eq!(off_by(1.0, 1.0 + 3.0 / 512.0, true), 1.0 / 512.0);
        assert_eq!(off_by(1.0, 1.0 - 1.0 / 256.0, true), 1.0 / 512.0);
        assert_eq!(off_by(-1.0, -1.0 - 3.0 / 512.0, true), 1.0 / 512.0);
        assert_eq!(off_by(1.000_001, 1.0, true), f64::INFINITY);
        assert_eq!(off_by(0.0, 0.0, true), 0.0);
        assert!(off_by(0.0, 1.0, true) > 0.99);
    }

    #[test]
    fn nothing_that_is_no_number_is_right() {
        for rounded in [false, true] {
            assert_eq!(off_by(f32::NAN, 1.0, rounded), f64::INFINITY);
            assert_eq!(off_by(1.0, f64::NAN, rounded), f64::INFINITY);
            assert_eq!(off_by(f32::INFINITY, 1.0, rounded), f64::INFINITY);
        }
    }

    #[test]
    fn one_wrong_step_in_a_row_is_named_with_its_numbers() {
        let place = Place { subject: "made up".into(), layer: 3, op: "Gated".into(), lane: [1, 4, 9] };
        let mut findings = Findings::default();
        let want = Exact::new(vec![1.0, 0.5, -2.0], true);
        findings.row(&place, &[1.0, 0.5, -2.0], &want);
        assert!(findings.faults.is_empty());
        findings.row(&place, &[1.0, 0.501_953_1, -2.0], &want);
        let fault = findings.faults.join("");
        let expected = "made up, to layer 3, Gated: lane 1 of 4 at 9: 1 of 3 elements beyond the limit (the first [1]); element 1 is";
        assert!(fault.starts_with(expected), "{fault}");
        findings.row(&place, &[1.0], &want);
        assert!(findings.faults[1].ends_with("1 elements instead of 3"));
        assert!(findings.summary().contains("Gated"));
    }
}
