//! Links the firmware at its fixed address, without a C library.

include!("../bare/build/link.rs");

fn main() {
    link("link.ld");
}
