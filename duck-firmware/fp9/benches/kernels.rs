//! `cargo bench -p fp9 --features bench-support`: criterion on the kernels in cache, then the whole measured suite
//! (ratios, batches, memory) unless a filter is given.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use fp9::{Format, Inputs, Isa, Job, Matrix, ROW_TILE, Scratch, multiply};

fn kernels(criterion: &mut Criterion) {
    let (isa, k) = (Isa::detect(), 7168);
    let mut group = criterion.benchmark_group("tile of 32 x 7168");
    for format in [Format::E4m3, Format::Fp9, Format::Bf16] {
        let data = vec![0x35; fp9::packed_len(format, ROW_TILE, k).expect("a valid shape")];
        let scales = vec![1.0; fp9::scales_len(format, ROW_TILE, k, 0)];
        let matrix = Matrix::new(format, ROW_TILE, k, &data, &scales, 0).expect("a valid matrix");
        for count in [1, 2, 16] {
            let mut x = vec![0.5; count * k];
            fp9::prepare(format, &mut x);
            let job = Job::new(&matrix, Inputs::strided(&x, k, count));
            let (mut out, mut scratch) = (vec![0.0; count * ROW_TILE], Scratch::new());
            group.throughput(Throughput::Elements((count * ROW_TILE * k) as u64));
            group.bench_function(format!("{format:?}, {count} vectors, {}", isa.name()), |bencher| {
                bencher.iter(|| {
                    multiply(isa, black_box(&job), &mut out, ROW_TILE, &mut scratch).expect("a valid job");
                });
            });
        }
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    kernels(&mut criterion);
    criterion.final_summary();
    // cargo passes `--bench`; anything else is a filter or a mode of criterion's.
    if std::env::args().skip(1).all(|argument| argument == "--bench") {
        let print = &mut |m: &fp9::bench::Measurement| println!("{:<60} {:>9.3} {}", m.name, m.value, m.unit);
        if let Err(error) = fp9::bench::run(fp9::bench::Options::default(), print) {
            eprintln!("kernel measurements: {error}");
            std::process::exit(1);
        }
    }
}
