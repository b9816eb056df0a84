//! From the processor's counters to microseconds.

/// Frequencies that CPUID tells, in hertz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Of the time stamp counter.
    pub counter: Option<u64>,
    /// Of the crystal, which on such processors is also the local interrupt controller's timer's.
    pub crystal: Option<u64>,
}

/// What leaf 15h says (Intel SDM, CPUID "Time Stamp Counter and Nominal Core Crystal Clock"): counter = crystal · ebx / eax. Processors of the
/// N100's kind may leave the crystal out; it is 24 MHz there.
pub fn told(eax: u32, ebx: u32, ecx: u32) -> Told {
    if eax == 0 || ebx == 0 {
        return Told::default();
    }
    let crystal = if ecx == 0 { 24_000_000 } else { u64::from(ecx) };
    let counter = (u128::from(crystal) * u128::from(ebx) / u128::from(eax)) as u64;
    Told { counter: Some(counter), crystal: Some(crystal) }
}

/// A counter's time.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    hertz: u64,
    /// Microseconds of a tick, in 2^-32.
    tick: u64,
}

impl Scale {
    /// Of a counter of `hertz`, at least 1 MHz.
    pub fn new(hertz: u64) -> Scale {
        let hertz = hertz.max(1_000_000);
        Scale { hertz, tick: (1_000_000u128 << 32).div_euclid(u128::from(hertz)) as u64 }
    }

    /// Its frequency.
    pub fn hertz(&self) -> u64 {
        self.hertz
    }

    /// Microseconds of so many ticks.
    pub fn micros(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.tick)) >> 32) as u64
    }

    /// Ticks of so many microseconds.
    pub fn ticks(&self, micros: u64) -> u64 {
        (u128::from(micros) * u128::from(self.hertz) / 1_000_000).min(u128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_ducks_processor_is_read_right() {
        // N100: crystal 0 (24 MHz), ratio 67.25 / 2.
        assert_eq!(told(2, 67, 0).counter, Some(804_000_000));
        assert_eq!(told(2, 168, 38_400_000), Told { counter: Some(3_225_600_000), crystal: Some(38_400_000) });
        assert_eq!(told(0, 0, 0), Told::default());
    }

    #[test]
    fn a_year_of_ticks_is_a_year() {
        let scale = Scale::new(3_225_600_000);
        let year = 365 * 86_400 * 1_000_000u64;
        let error = scale.micros(scale.ticks(year)).abs_diff(year);
        assert!(error < 365 * 86_400, "{error} microseconds off: more than one in a million");
        assert_eq!(Scale::new(0).ticks(5), 5);
        assert_eq!(scale.ticks(u64::MAX), u64::MAX);
    }
}
