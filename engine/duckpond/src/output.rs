//! The two streams: standard output carries the answer alone, standard error everything else.

use std::fmt::Display;
use std::io::{self, ErrorKind, StdoutLock, Write};

/// Writes a line to standard error. If nobody listens there any more, nothing is lost that anyone would read.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether more text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Go on.
    Yes,
    /// The reader has closed the pipe: end quietly.
    No,
}

/// Standard output, flushed with every piece.
#[derive(Debug)]
pub struct Output<W: Write = StdoutLock<'static>> {
    stream: W,
    line_open: bool,
    closed: bool,
}

impl Output {
    /// This process's.
    pub fn stdout() -> Output {
        Output::new(io::stdout().lock())
    }
}

impl<W: Write> Output<W> {
    fn new(stream: W) -> Output<W> {
        Output { stream, line_open: false, closed: false }
    }

    /// Writes a piece and makes it visible.
    ///
    /// # Errors
    /// Anything but a closed pipe, such as a full disk.
    pub fn piece(&mut self, text: &str) -> io::Result<Wanted> {
        if self.closed {
            return Ok(Wanted::No);
        }
        if text.is_empty() {
            return Ok(Wanted::Yes);
        }
        self.line_open = !text.ends_with('\n');
        match self.stream.write_all(text.as_bytes()).and_then(|()| self.stream.flush()) {
            Ok(()) => Ok(Wanted::Yes),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(Wanted::No)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the line if one is open.
    ///
    /// # Errors
    /// As [`piece`](Self::piece).
    pub fn end_line(&mut self) -> io::Result<()> {
        if self.line_open {
            self.piece("\n")?;
        }
        Ok(())
    }
}

/// Writes a whole text, such as a table. A closed pipe is no error.
///
/// # Errors
/// As [`Output::piece`].
pub fn print(text: &str) -> io::Result<()> {
    Output::stdout().piece(text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_ended_once_and_only_if_open() {
        let mut output = Output::new(Vec::new());
        output.end_line().expect("memory does not fail");
        for piece in ["a", "", "b\n"] {
            assert_eq!(output.piece(piece).expect("memory does not fail"), Wanted::Yes);
        }
        output.end_line().expect("memory does not fail");
        output.piece("c").expect("memory does not fail");
        output.end_line().expect("memory does not fail");
        output.end_line().expect("memory does not fail");
        assert_eq!(output.stream, b"ab\nc\n");
    }

    #[test]
    fn a_closed_pipe_is_an_answer_and_a_full_disk_an_error() {
        let mut closed = Output::new(Failing(ErrorKind::BrokenPipe));
        assert_eq!(closed.piece("a").expect("no error"), Wanted::No);
        assert_eq!(closed.piece("b").expect("no error"), Wanted::No);
        let mut full = Output::new(Failing(ErrorKind::StorageFull));
        assert_eq!(full.piece("a").expect_err("an error").kind(), ErrorKind::StorageFull);
    }
}
