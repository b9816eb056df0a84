//! Sockets that do not wait for ever, and how many of them a process may have.
//!
//! A client that stops reading but keeps its connection would hold a place, and the answer in its buffers, for as long as it likes; one
//! whose machine lost its power says nothing at all.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// Probes of a silent connection that go unanswered before it counts as dead.
const PROBES: u32 = 3;

/// Has the system find out, within about `patience`, that the other machine is gone, whether something is to be sent or not. What the
/// system cannot do is left out.
pub(crate) fn watch(stream: &TcpStream, patience: Duration) {
    let wish = || -> rustix::io::Result<()> {
        sockopt::set_tcp_user_timeout(stream, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))?;
        sockopt::set_tcp_keepidle(stream, patience / 2)?;
        sockopt::set_tcp_keepintvl(stream, patience / (2 * PROBES))?;
        sockopt::set_tcp_keepcnt(stream, PROBES)?;
        sockopt::set_socket_keepalive(stream, true)
    };
    if let Err(error) = wish() {
        tracing::debug!("a connection is not watched: {error}");
    }
}

/// Whether there is no connection because too many files are open.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Raises the number of files that this process may open as far as it may itself: a thousand is the usual beginning, and each
/// connection is one.
pub(crate) fn allow_many_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!("the limit of open files stays at {current:?}: {error}");
    }
}

/// A stream whose writes fail when the other end takes nothing for a while.
pub(crate) struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// Runs while something waits to be written.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Impatient<S> {
    /// With so much patience.
    pub(crate) fn new(stream: S, patience: Duration) -> Impatient<S> {
        Impatient { stream, patience, waiting: None }
    }

    fn progress<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = poll(Pin::new(&mut self.stream), context) {
            self.waiting = None;
            return Poll::Ready(result);
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(context));
        let message = format!("the client took nothing for {} s", patience.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.progress(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.progress(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_write_fails_once_nothing_was_taken_for_long_enough() {
        let (near, mut far) = duplex(10);
        let patience = Duration::from_millis(300);
        let mut near = Impatient::new(near, patience);
        // Slow, but it goes on: each piece within the time, all of them not.
        let reading = tokio::spawn(async move {
            for _ in 0..4 {
                tokio::time::sleep(patience / 2).await;
                far.read_exact(&mut [0; 10]).await.expect("it comes");
            }
            far
        });
        near.write_all(&[0; 50]).await.expect("there is progress");
        let _far = reading.await.expect("no panic");
        let begun = Instant::now();
        let error = near.write_all(&[0; 10]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= patience);
    }

    #[test]
    fn as_many_files_as_may_be() {
        allow_many_files();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert!(is_out_of_files(&io::Error::from_raw_os_error(Errno::MFILE.raw_os_error())));
        assert!(!is_out_of_files(&io::Error::other("something else")));
    }

    #[tokio::test]
    async fn a_connection_is_watched() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("it listens");
        watch(&stream, Duration::from_secs(60));
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
        assert_eq!(sockopt::tcp_user_timeout(&stream), Ok(60_000));
    }
}
