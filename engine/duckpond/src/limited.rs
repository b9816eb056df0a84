//! Reading no more than is wanted, from files and from streams: nothing that is read can fill the memory or wait for ever.

use std::fs::{self, File};
use std::io::{self, BufRead, ErrorKind, Read};
use std::path::Path;

/// The text of a regular file of at most `limit` bytes.
///
/// # Errors
/// Also for another kind of file, a longer one, and bytes that are no UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8");
    String::from_utf8(read_bytes(path, limit)?).map_err(not_text)
}

/// The bytes of such a file.
///
/// # Errors
/// As [`read_text`], but for what is in it.
pub fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    check_regular(path, limit)?;
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    // It may have grown.
    if read as u64 > limit { Err(too_long(limit)) } else { Ok(bytes) }
}

/// Refuses what is no regular file, or one of more than `limit` bytes.
///
/// # Errors
/// That, and what the system says.
pub fn check_regular(path: &Path, limit: u64) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    if metadata.len() > limit { Err(too_long(limit)) } else { Ok(()) }
}

fn too_long(limit: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {limit} bytes, the most that is read"))
}

/// A line of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Without its end.
    Whole(Vec<u8>),
    /// More than the limit. It was passed over.
    TooLong,
    /// The stream has ended.
    End,
}

/// The next line, of at most `limit` bytes.
///
/// # Errors
/// The stream's.
pub fn read_line(stream: &mut impl BufRead, limit: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let mut read_any = false;
    let mut too_long = false;
    loop {
        let bytes = match stream.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (part, used) = end.map_or((bytes, bytes.len()), |end| (&bytes[..end], end + 1));
        read_any |= used > 0;
        if line.len() + part.len() > limit {
            too_long = true;
            line = Vec::new();
        }
        if !too_long {
            line.extend_from_slice(part);
        }
        let done = used == 0 || end.is_some();
        stream.consume(used);
        if done {
            return Ok(match (too_long, read_any) {
                (true, _) => Line::TooLong,
                (false, true) => Line::Whole(line),
                (false, false) => Line::End,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_that_are_too_long_are_passed_over_as_a_whole() {
        let mut stream = BufReader::with_capacity(3, &b"abcd\n\nabcdefghijk\nxy"[..]);
        let lines: Vec<Line> = (0..5).map(|_| read_line(&mut stream, 4).expect("memory does not fail")).collect();
        let whole = |text: &str| Line::Whole(text.into());
        assert_eq!(lines, [whole("abcd"), whole(""), Line::TooLong, whole("xy"), Line::End]);
    }

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder for a test");
        let path = folder.path().join("text");
        fs::write(&path, "four").expect("the folder is new");
        assert_eq!(read_text(&path, 4).expect("it fits"), "four");
        assert_eq!(read_text(&path, 3).expect_err("it does not").kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_text(Path::new("/dev/zero"), 4).expect_err("endless").kind(), ErrorKind::InvalidInput);
    }
}
