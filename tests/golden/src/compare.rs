//! Comparing computed tensors and choices with golden ones.
//!
//! Limits are those of the exact path: float32 or better between operations. The coarser modes have no limit that would hold
//! over several layers, since one changed choice moves everything after it; `README.md` gives what was measured.

use std::collections::BTreeSet;

/// Largest allowed error of `hidden`, `attn_out`, `mlp_out`, `final_norm` and `logits`, in units of the tensor's rms.
pub const EXACT_RELATIVE: f64 = 1e-4;
/// Largest allowed error of `index_scores` and `router_logits`.
pub const EXACT_ABSOLUTE: f64 = 1e-4;
/// Choices with less room than this may fall either way.
pub const EXACT_MARGIN: f32 = 1e-4;

/// The largest difference.
#[derive(Clone, Copy, Debug)]
struct Worst {
    at: usize,
    error: f64,
}

/// Finds the largest difference; one NaN, or infinities that differ, count as infinitely far apart.
fn worst(got: &[f32], want: &[f32]) -> Worst {
    let error = |(&got, &want): (&f32, &f32)| {
        if got == want || (got.is_nan() && want.is_nan()) {
            return 0.0;
        }
        let error = (f64::from(got) - f64::from(want)).abs();
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let start = Worst { at: 0, error: 0.0 };
    got.iter()
        .zip(want)
        .map(error)
        .enumerate()
        .fold(start, |worst, (at, error)| if error > worst.error { Worst { at, error } } else { worst })
}

/// Root of the mean square.
fn rms(values: &[f32]) -> f64 {
    let squares: f64 = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

/// max |got - want| / rms(want): the measure that the relative limits are given in. Infinite where a NaN appears on one side
/// only, or where `want` is all zero and `got` is not.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn max_abs_over_rms(got: &[f32], want: &[f32]) -> f64 {
    same_length("tensor", got, want);
    let Worst { error, .. } = worst(got, want);
    if error == 0.0 { 0.0 } else { error / rms(want) }
}

/// Asserts that no element of `got` is further from `want` than `limit` times the rms of `want`.
///
/// # Panics
/// If one is, with the worst element's index, both values, the rms and the limit; or if the lengths differ.
#[track_caller]
pub fn assert_close(name: &str, got: &[f32], want: &[f32], limit: f64) {
    same_length(name, got, want);
    let rms = rms(want);
    fail_beyond(name, got, want, limit * rms, || format!("{limit:e} of the rms {rms:.6e}"));
}

/// Asserts that no element of `got` is further from `want` than `limit`.
///
/// # Panics
/// If one is, with the worst element's index, both values, the rms and the limit; or if the lengths differ.
#[track_caller]
pub fn assert_close_absolute(name: &str, got: &[f32], want: &[f32], limit: f64) {
    same_length(name, got, want);
    let rms = rms(want);
    fail_beyond(name, got, want, limit, || format!("absolute (the rms is {rms:.6e})"));
}

#[track_caller]
fn same_length(name: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{name}: number of elements (got, want)");
}

#[track_caller]
fn fail_beyond(name: &str, got: &[f32], want: &[f32], limit: f64, meaning: impl FnOnce() -> String) {
    let Worst { at, error } = worst(got, want);
    if error > limit {
        panic!(
            "{name}: element {at} of {} is {:e}, expected {:e}: off by {error:.3e}, limit {limit:.3e}, {}",
            got.len(),
            got[at],
            want[at],
            meaning()
        );
    }
}

/// Asserts that one row's choice (kept keys, or experts) is the recorded one, as a set; `want` is a row of [`GoldenIds`],
/// whose -1 are padding. Where the recorded `margin` is below `min_margin`, only the number of chosen ids is compared.
/// Returns whether the sets themselves were compared, so that a caller can assert that enough rows were.
///
/// [`GoldenIds`]: crate::GoldenIds
///
/// # Panics
/// If the choices differ, with the ids that are in one only; if `got` holds an id twice.
#[track_caller]
pub fn assert_same_choices(name: &str, row: usize, got: &[u32], want: &[i32], margin: f32, min_margin: f32) -> bool {
    let chosen: BTreeSet<u32> = got.iter().copied().collect();
    assert_eq!(chosen.len(), got.len(), "{name}, row {row}: an id is chosen twice in {got:?}");
    let expected: BTreeSet<u32> = want.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
    assert_eq!(chosen.len(), expected.len(), "{name}, row {row}: number of ids (got, want)");
    if margin < min_margin {
        return false;
    }
    if chosen != expected {
        let extra: Vec<_> = chosen.difference(&expected).collect();
        let missing: Vec<_> = expected.difference(&chosen).collect();
        panic!("{name}, row {row}: chose {extra:?} instead of {missing:?}, margin {margin:e}");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message with which `check` fails.
    fn failure(check: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let payload = std::panic::catch_unwind(check).expect_err("the check must fail");
        *payload.downcast::<String>().expect("a formatted message")
    }

    #[test]
    fn measure_is_the_worst_error_over_the_rms() {
        let want = [3.0, -4.0, 0.0, 0.0];
        assert_eq!(max_abs_over_rms(&[3.0, -4.5, 0.25, 0.0], &want), 0.5 / 2.5);
        assert_eq!(max_abs_over_rms(&want, &want), 0.0);
        assert_eq!(max_abs_over_rms(&[0.0; 2], &[0.0; 2]), 0.0);
        assert_eq!(max_abs_over_rms(&[1e-30, 0.0], &[0.0; 2]), f64::INFINITY);
        assert_eq!(max_abs_over_rms(&[f32::NAN, -4.0, 0.0, 0.0], &want), f64::INFINITY);
    }

    #[test]
    fn message_shows_the_worst_element_and_the_limit() {
        let (got, want) = ([3.0, -4.5, 0.25, 0.0], [3.0, -4.0, 0.0, 0.0]);
        assert_close("logits", &got, &want, 0.201);
        let message = failure(|| assert_close("logits", &got, &want, 0.1));
        let expected = "logits: element 1 of 4 is -4.5e0, expected -4e0: off by 5.000e-1, limit 2.500e-1, \
                        1e-1 of the rms 2.500000e0";
        assert_eq!(message, expected);
        assert_close_absolute("scores", &got, &want, 0.5);
        let message = failure(|| assert_close_absolute("scores", &got, &want, 0.4));
        assert!(message.contains("element 1") && message.contains("limit 4.000e-1"), "{message}");
    }

    #[test]
    fn a_nan_or_a_missing_element_never_passes() {
        let message = failure(|| assert_close("x", &[1.0, f32::NAN], &[1.0, 1.0], 1e9));
        assert!(message.contains("element 1 of 2 is NaN"), "{message}");
        failure(|| assert_close("x", &[1.0], &[1.0, 1.0], 1e9));
        assert_close("margins", &[1.0, f32::INFINITY], &[1.0, f32::INFINITY], 0.0);
    }

    #[test]
    fn choices_are_sets_and_small_margins_forgive_which_but_not_how_many() {
        assert!(assert_same_choices("experts", 0, &[7, 2], &[2, 7, -1], 0.1, 1e-4));
        assert!(!assert_same_choices("experts", 0, &[7, 3], &[2, 7, -1], 1e-5, 1e-4));
        let message = failure(|| {
            assert_same_choices("experts", 9, &[7, 3], &[2, 7, -1], 0.5, 1e-4);
        });
        assert_eq!(message, "experts, row 9: chose [3] instead of [2], margin 5e-1");
        failure(|| {
            assert_same_choices("experts", 0, &[7], &[2, 7, -1], 1e-5, 1e-4);
        });
        failure(|| {
            assert_same_choices("experts", 0, &[7, 7], &[2, 7, -1], 1e-5, 1e-4);
        });
    }
}
