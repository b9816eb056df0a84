//! Links the programs as the kernels are.

include!("../../../duck-firmware/bare/build/link.rs");

fn main() {
    link("../../../duck-firmware/fp9_kernels/link.ld");
}
