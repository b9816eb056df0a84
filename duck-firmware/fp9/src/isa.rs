//! Which instruction set a kernel may use, as a value that only exists where the machine has it.

/// Proof that this machine executes AVX2 and FMA and that the operating system (or firmware) saves ymm registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the processor. CPUID is slow under a hypervisor (microseconds): keep the token.
    ///
    /// On bare metal CPUID alone is not enough: ymm instructions trap until the supervisor has set CR4.OSXSAVE and
    /// enabled the state in XCR0, so both are checked.
    pub fn detect() -> Option<Avx2> {
        #[cfg(target_arch = "x86_64")]
        {
            detect_x86().then_some(Avx2(()))
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            None
        }
    }
}

/// What [`multiply`](crate::multiply()) runs on; both give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Portable Rust: the reference, slow.
    Scalar,
    /// AVX2 and FMA.
    Avx2(Avx2),
}

impl Isa {
    /// The fastest that this machine has. Keep the value; log [`name`](Isa::name).
    pub fn detect() -> Isa {
        Avx2::detect().map_or(Isa::Scalar, Isa::Avx2)
    }

    /// For logs.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2(_) => "avx2+fma",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_x86() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    const FMA: u32 = 1 << 12;
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const AVX2: u32 = 1 << 5;
    /// XCR0: SSE and AVX state.
    const YMM_STATE: u64 = 0b110;

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller has seen OSXSAVE, so XGETBV is enabled; register 0 always exists.
        unsafe { _xgetbv(0) }
    }

    if __cpuid(0).eax < 7 {
        return false;
    }
    let leaf1 = __cpuid(1).ecx;
    if leaf1 & (FMA | OSXSAVE | AVX) != FMA | OSXSAVE | AVX {
        return false;
    }
    // SAFETY: OSXSAVE was just seen, which implies XSAVE.
    let state = unsafe { xcr0() };
    state & YMM_STATE == YMM_STATE && __cpuid_count(7, 0).ebx & AVX2 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_agrees_with_std() {
        #[cfg(target_arch = "x86_64")]
        assert_eq!(
            Avx2::detect().is_some(),
            std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")
        );
        #[cfg(not(target_arch = "x86_64"))]
        assert_eq!(Isa::detect(), Isa::Scalar);
    }
}
