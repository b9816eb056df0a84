//! Memory that ends (or begins) at a page that traps.

/// A mapping between two inaccessible pages.
pub struct Guarded {
    base: *mut u8,
    page: usize,
    inner: usize,
    at_end: bool,
}

impl Guarded {
    /// Room for `bytes` right before the trap, or right after the other one.
    pub fn new(bytes: usize, at_end: bool) -> Guarded {
        // SAFETY: plain queries and an anonymous mapping of our own; results are checked.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let inner = bytes.next_multiple_of(page).max(page);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), inner + 2 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            let rc = libc::mprotect(base.add(page).cast(), inner, libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(rc, 0);
            Guarded { base, page, inner, at_end }
        }
    }

    /// A copy of `values` at the guarded edge.
    pub fn filled<T: Copy>(values: &[T], at_end: bool) -> Guarded {
        let mut memory = Guarded::new(size_of_val(values), at_end);
        memory.slice(values.len()).copy_from_slice(values);
        memory
    }

    /// `len` plain numbers at the guarded edge.
    pub fn slice<T: Copy>(&mut self, len: usize) -> &mut [T] {
        let bytes = len * size_of::<T>();
        assert!(bytes <= self.inner);
        let offset = self.page + if self.at_end { self.inner - bytes } else { 0 };
        // SAFETY: inside the accessible part; any bytes are valid for the plain numbers used here, and page ends are
        // multiples of every alignment that divides `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(offset).cast(), len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no longer borrowed.
        unsafe { libc::munmap(self.base.cast(), self.inner + 2 * self.page) };
    }
}
