//! Opening a file takes memory in proportion to the header that is really there, whatever the header claims.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;

use model::checkpoint::Checkpoint;
use serde_json::json;

/// Counts what the current thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    HELD.set(HELD.get() + bytes);
    MOST.set(MOST.get().max(HELD.get()));
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches thread-local cells that need no
// allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's duties are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Most bytes held while a folder with that weight file is opened; the folder must be refused, or not, as told.
fn most_held(header: &str, claimed: u64, size: u64, opens: bool) -> usize {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), "{}").expect("written");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, [&claimed.to_le_bytes()[..], header.as_bytes()].concat()).expect("written");
    // The rest is a hole: a large file that takes no room on disk.
    fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(size).expect("extended");
    HELD.set(0);
    MOST.set(0);
    let result = Checkpoint::open(folder.path());
    let most = MOST.get();
    assert_eq!(result.is_ok(), opens, "{:?}", result.err());
    most as usize
}

const SLACK: usize = 64 << 10;

#[test]
fn a_claimed_length_allocates_nothing() {
    for claimed in [1 << 20, 99_000_000, 1 << 40, u64::MAX] {
        assert!(most_held("{}", claimed, 10, false) < SLACK);
    }
}

#[test]
fn a_claimed_shape_allocates_nothing() {
    for shape in [json!([1u64 << 40]), json!([1u64 << 61]), json!([u64::MAX])] {
        let header = json!({"a": {"dtype": "F8_E4M3", "shape": shape, "data_offsets": [0, shape[0]]}}).to_string();
        assert!(most_held(&header, header.len() as u64, 4096, false) < SLACK);
    }
}

#[test]
fn large_data_is_mapped_and_not_read() {
    let size = 1u64 << 38;
    let header = json!({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).to_string();
    assert!(most_held(&header, header.len() as u64, 8 + header.len() as u64 + size, true) < SLACK);
}

#[test]
fn a_dense_header_costs_a_bounded_multiple_of_its_size() {
    let zeros = vec![0; 200_000];
    let header = json!({"a": {"dtype": "U8", "shape": zeros, "data_offsets": [0, 0]}}).to_string();
    let most = most_held(&header, header.len() as u64, 8 + header.len() as u64, true);
    assert!(most < 64 * header.len() + SLACK, "{most} bytes for a header of {}", header.len());
}
