//! The program of the kernels as a Linux process runs it: the same bits as the library that it is made of, on several cores.

use duck_tests::{LIMITS, Model, StepData, slice_nodes};
use firmware_tests::firmware::firmware;
use firmware_tests::native::Native;
use wire::limits::Limits;

#[test]
fn the_program_computes_the_librarys_bits() {
    let mut native = Native::start(&firmware().kernels(), 3).expect("it is mapped");
    for format in [0, 1] {
        let model = Model::random(Limits { format, ..LIMITS }, 11);
        let plan = slice_nodes(&LIMITS, 0..2);
        for seed in 0..10 {
            let data = StepData::random(&model.limits, 1 + seed as usize % 5, &plan, &[], seed);
            let sums = model.sums_by(&data, 3, |step| assert!(native.run(step), "every core has done its part"));
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&sums), bits(&model.sums(&data)), "format {format}, step {seed}");
        }
    }
    assert!(Native::start(&firmware().kernels()[..1_000], 1).is_err_and(|said| said.starts_with("program: ")));
}
