//! Fixed layouts: a macro that makes a small struct out of a table of fields with their offsets, checked when it is compiled.

/// What a field can be.
pub trait Field: Copy {
    /// Bytes on the wire.
    const LEN: usize;
    /// From exactly that many bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Into exactly that many bytes.
    fn put(self, bytes: &mut [u8]);
}

macro_rules! number {
    ($($t:ty)*) => {$(
        impl Field for $t {
            const LEN: usize = size_of::<$t>();
            fn get(bytes: &[u8]) -> $t {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(bytes);
                <$t>::from_le_bytes(raw)
            }
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
number!(u8 u16 u32 u64);

impl<const N: usize> Field for [u8; N] {
    const LEN: usize = N;
    fn get(bytes: &[u8]) -> [u8; N] {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self);
    }
}

/// `Name[bytes] { field: type = offset, }`: little-endian, without gaps.
macro_rules! layout {
    ($(#[$about:meta])* $name:ident[$len:expr] { $($(#[$doc:meta])* $field:ident: $ty:ty = $at:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $ty,)* }

        impl $name {
            /// Bytes of the fixed part.
            pub const LEN: usize = $len;
            /// Name, offset and bytes of each field.
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $at, <$ty as $crate::field::Field>::LEN)),*];

            /// From the first bytes; what follows is left alone. `None` when there are too few.
            pub fn parse(bytes: &[u8]) -> Option<$name> {
                let bytes: &[u8; $len] = bytes.first_chunk()?;
                Some($name { $($field: $crate::field::Field::get(&bytes[$at..$at + <$ty as $crate::field::Field>::LEN]),)* })
            }

            /// As bytes.
            pub fn emit(&self) -> [u8; $len] {
                let mut out = [0; $len];
                $($crate::field::Field::put(self.$field, &mut out[$at..$at + <$ty as $crate::field::Field>::LEN]);)*
                out
            }
        }

        const _: () = {
            let mut at = 0;
            $(assert!(at == $at, concat!(stringify!($field), " is not where the field before it ends"));
              at += <$ty as $crate::field::Field>::LEN;)*
            assert!(at == $len, concat!(stringify!($name), " does not end where its last field does"));
        };
    };
}
pub(crate) use layout;
