//! A stage without ducks, to be measured.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use host::cuda::Measurement;
use host::stage::Layers;
use model::Numerics;
use pond_tests::subjects;

use crate::{gpu_stage, has_gpu, options};

#[test]
fn a_stage_without_ducks_can_be_measured() {
    if !has_gpu() {
        return;
    }
    let model = Arc::new(subjects::published().model);
    for (numerics, lanes) in [(Numerics::Bf16, 1), (Numerics::Bf16, 2), (Numerics::Fp8, 1), (Numerics::Bf16, 512)] {
        let mut options = options(&model, numerics, 0);
        (options.bound, options.random, options.poison) = (Duration::ZERO, Some(7), false);
        let mut stage = gpu_stage(model.clone(), options);
        let floor = stage.measure_bandwidth().unwrap_or_else(|error| panic!("{error}"));
        let what = Measurement { layers: Layers::Main, lanes, position: 1000, logits: 1, repeats: 20 };
        let pass = stage.measure_pass(&what).unwrap_or_else(|error| panic!("{error}"));
        let kernels = stage.measure_kernels(&what).unwrap_or_else(|error| panic!("{error}"));
        let launches: usize = kernels.iter().map(|time| time.launches).sum();
        let _ = writeln!(
            std::io::stderr(),
            "{numerics:?}, {lanes} lanes: {:.1} GB/s, a pass {:.1} us, its bytes {:.1} us, {launches} launches",
            floor / 1e9,
            pass * 1e6,
            stage.pass_bytes(Layers::Main) as f64 / floor * 1e6
        );
        for time in &kernels {
            let _ = writeln!(
                std::io::stderr(),
                "    {:20} {:4} launches {:8.1} us, bytes {:8.1} us",
                time.kernel.name(),
                time.launches,
                time.seconds * 1e6,
                time.bytes as f64 / floor * 1e6
            );
        }
        assert!(floor > 1e10 && pass > 0.0 && launches > 40, "{floor} {pass} {launches}");
        let bytes: u64 = kernels.iter().map(|time| time.bytes).sum();
        assert_eq!(bytes, stage.pass_bytes(Layers::Main), "every weight is read once");
    }
}
