//! Measures whole steps against plain reads: `cargo run --release -p kernels --features bench-support --example step_speed`.
//!
//! Arguments, all optional: working set in MiB, steps of each kind, threads.

use kernels::bench::{Options, step_speed};

fn main() -> std::io::Result<()> {
    let mut numbers = std::env::args().skip(1).map_while(|a| a.parse::<usize>().ok());
    let default = Options::default();
    let options = Options {
        bytes: numbers.next().map_or(default.bytes, |mib| mib << 20),
        steps: numbers.next().unwrap_or(default.steps),
        threads: numbers.next().unwrap_or(default.threads),
    };
    println!("format threads  read GB/s  step GB/s  (4 KiB)  step us  to read   reads: 4K, 4K+pf, 2M, 2M+pf");
    step_speed(options, &mut |s| {
        let [a, b, c, d] = s.reads_gbps;
        println!(
            "{:6} {:7} {:10.2} {:10.2} {:8.2} {:8.0} {:8.3}   {a:.2} {b:.2} {c:.2} {d:.2}",
            s.format, s.threads, s.read_gbps, s.gemv_gbps, s.gemv_gbps_small_pages, s.step_us, s.gemv_to_read
        );
    })
}
