//! The other end: talks to a server's API, for `duckpond chat --url`.
//!
//! One connection for each request, HTTP or HTTPS; answers come as an event stream. Blocking, since its caller is a terminal; between
//! events it asks whether to go on, so that Ctrl-C works while nothing comes.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::tls::TlsError;

/// How often the caller is asked whether to go on.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// A connection must be there within this time.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// Bytes of an answer that is no stream.
const LARGEST_ANSWER: usize = 64 << 20;
/// Bytes of one event at most.
const LONGEST_EVENT: usize = 16 << 20;

/// Why a server did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address makes no sense.
    #[error("{url:?} is no address of a server; expected http://host:port or https://host:port")]
    Url {
        /// What was given.
        url: String,
    },
    /// Nobody there.
    #[error("cannot reach {url}")]
    Connect {
        /// The address.
        url: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The connection broke, or HTTP did.
    #[error("the connection to {url} failed")]
    Http {
        /// The address.
        url: String,
        /// hyper's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refused the request or failed.
    #[error("{url} says: {message} ({status})")]
    Refused {
        /// The address.
        url: String,
        /// The HTTP status; 200 for a failure in the middle of an answer.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// What came is no answer of such a server.
    #[error("{url} does not answer like an OpenAI-compatible server: {reason}")]
    Strange {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// No threads.
    #[error("cannot start a client")]
    Start(#[source] std::io::Error),
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Yes.
    GoOn,
    /// The answer is not wanted any more.
    Stop,
}

/// Talks to one server.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    url: String,
    uri: Uri,
    key: Option<String>,
    authorities: Option<PathBuf>,
}

impl Client {
    /// For a server at `url`; a path in it (such as `/v1`, which other clients want) comes before the API's own unless it is that.
    ///
    /// # Errors
    /// An address that is none.
    pub fn new(url: &str, key: Option<String>, authorities: Option<PathBuf>) -> Result<Client, ClientError> {
        let wrong = || ClientError::Url { url: url.chars().take(300).collect() };
        let trimmed = url.trim_end_matches('/');
        let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        let uri: Uri = trimmed.parse().map_err(|_| wrong())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ClientError::Start)?;
        Ok(Client { runtime, url: trimmed.to_owned(), uri, key, authorities })
    }

    /// The address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The answer to a GET.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.runtime.block_on(async {
            let bytes = self.whole(self.send(path, None).await?).await?;
            serde_json::from_slice(&bytes).map_err(|error| self.strange(format!("{path} is no JSON: {error}")))
        })
    }

    /// Posts `body` and hands over each event of the answer. `wish` is asked after each and several times a second.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stream(
        &self,
        path: &str,
        body: &Value,
        mut on_event: impl FnMut(&Value) -> Wish,
        mut wish: impl FnMut() -> Wish,
    ) -> Result<(), ClientError> {
        self.runtime.block_on(async {
            let mut sending = pin!(self.send(path, Some(body)));
            let Exchange { response, mut connection } = loop {
                match timeout(LOOK_AROUND, sending.as_mut()).await {
                    Ok(response) => break response?,
                    Err(_) if wish() == Wish::Stop => return Ok(()),
                    Err(_) => {}
                }
            };
            let mut events = Events::default();
            let mut body = response.into_body();
            loop {
                let frame = match timeout(LOOK_AROUND, connection.beside(body.frame())).await {
                    Err(_) if wish() == Wish::Stop => return Ok(()),
                    Err(_) => continue,
                    Ok(None) => return Err(self.strange("the answer ended without [DONE]".to_owned())),
                    Ok(Some(frame)) => frame.map_err(|error| self.broken(error))?,
                };
                let Some(bytes) = frame.data_ref() else { continue };
                for event in events.push(bytes).map_err(|reason| self.strange(reason))? {
                    if event == "[DONE]" {
                        return Ok(());
                    }
                    let value: Value = serde_json::from_str(&event)
                        .map_err(|error| self.strange(format!("an event is no JSON: {error}")))?;
                    if let Some(message) = value.pointer("/error/message").and_then(Value::as_str) {
                        return Err(self.refused(200, message.to_owned()));
                    }
                    if on_event(&value) == Wish::Stop {
                        return Ok(());
                    }
                }
            }
        })
    }

    fn broken(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Http { url: self.url.clone(), source: error.into() }
    }

    fn strange(&self, reason: String) -> ClientError {
        ClientError::Strange { url: self.url.clone(), reason }
    }

    fn refused(&self, status: u16, message: String) -> ClientError {
        ClientError::Refused { url: self.url.clone(), status, message }
    }

    /// Sends a request and returns the answer if its status is good.
    async fn send(&self, path: &str, body: Option<&Value>) -> Result<Exchange, ClientError> {
        let host = self.uri.host().unwrap_or_default();
        let https = self.uri.scheme_str() == Some("https");
        let port = self.uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let name = host.trim_matches(['[', ']']);
        let connecting = timeout(CONNECT_TIME, TcpStream::connect((name, port)));
        let connect = |source| ClientError::Connect { url: self.url.clone(), source };
        let stream = connecting.await.map_err(|error| connect(error.into()))?.map_err(connect)?;
        let _ = stream.set_nodelay(true);
        let before = self.uri.path().trim_end_matches('/');
        let mut request = Request::builder()
            .uri(format!("{before}{path}"))
            .header(header::HOST, self.uri.authority().map_or("", |authority| authority.as_str()))
            .header(header::USER_AGENT, concat!("duckpond/", env!("CARGO_PKG_VERSION")));
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = match body {
            None => request.body(Full::new(Bytes::new())),
            Some(body) => request
                .method("POST")
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body.to_string()))),
        };
        let request = request.map_err(|error| self.broken(error))?;
        let exchange =
            if https { self.over_tls(stream, name, request).await? } else { self.over(stream, request).await? };
        let status = exchange.response.status();
        if status.is_success() {
            return Ok(exchange);
        }
        let bytes = self.whole(exchange).await?;
        let message = serde_json::from_slice::<Value>(&bytes)
            .ok()
            .and_then(|body| Some(body.pointer("/error/message")?.as_str()?.to_owned()))
            .unwrap_or_else(|| String::from_utf8_lossy(&bytes).chars().take(300).collect());
        Err(self.refused(status.as_u16(), message))
    }

    #[cfg(feature = "tls")]
    async fn over_tls(
        &self,
        stream: TcpStream,
        name: &str,
        request: Request<Full<Bytes>>,
    ) -> Result<Exchange, ClientError> {
        let (connector, server) = crate::tls::client(self.authorities.as_deref(), name)?;
        let connect = |source| ClientError::Connect { url: self.url.clone(), source };
        let stream = connector.connect(server, stream).await.map_err(connect)?;
        self.over(stream, request).await
    }

    #[cfg(not(feature = "tls"))]
    async fn over_tls(&self, _: TcpStream, _: &str, _: Request<Full<Bytes>>) -> Result<Exchange, ClientError> {
        let _ = &self.authorities;
        Err(TlsError::NotBuilt.into())
    }

    async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Exchange, ClientError> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(error))?;
        let mut connection = Connection(Some(Box::pin(async move {
            if let Err(error) = connection.await {
                tracing::debug!("connection: {error}");
            }
        })));
        let response = connection.beside(sender.send_request(request)).await.map_err(|error| self.broken(error))?;
        Ok(Exchange { response, connection })
    }

    async fn whole(&self, Exchange { response, mut connection }: Exchange) -> Result<Bytes, ClientError> {
        let body = connection.beside(Limited::new(response.into_body(), LARGEST_ANSWER).collect()).await;
        Ok(body.map_err(|error| self.broken(error))?.to_bytes())
    }
}

/// A response and the connection that its body comes over.
struct Exchange {
    response: Response<Incoming>,
    connection: Connection,
}

/// The work on a connection until it ends. No task of its own: its caller's runtime has no threads, so dropping this must close the
/// socket at once, which is how a server learns that the answer is not wanted any more.
struct Connection(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Connection {
    /// Does the connection's work until `other` is done.
    async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        poll_fn(|context| {
            if let Some(work) = &mut self.0
                && work.as_mut().poll(context).is_ready()
            {
                self.0 = None;
            }
            other.as_mut().poll(context)
        })
        .await
    }
}

/// Takes an event stream apart: the data of each event, comments left out.
#[derive(Debug, Default)]
struct Events {
    line: Vec<u8>,
    data: Option<String>,
}

impl Events {
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<String>, String> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
                if self.line.len() > LONGEST_EVENT {
                    return Err(format!("an event has more than {LONGEST_EVENT} bytes"));
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                events.extend(self.data.take());
            } else if let Some(more) = line.strip_prefix("data:") {
                let more = more.strip_prefix(' ').unwrap_or(more);
                match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(more);
                    }
                    None => self.data = Some(more.to_owned()),
                }
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn events_come_out_the_same_split_at_every_byte() {
        let text = ": hello\n\ndata: {\"a\":\ndata:1}\r\n\r\ndata: é\nid: 3\n\n: bye\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\":\n1}", "é", "[DONE]"];
        for at in 0..=text.len() {
            let (first, second) = text.as_bytes().split_at(at);
            let mut events = Events::default();
            let mut found = events.push(first).expect("short");
            found.extend(events.push(second).expect("short"));
            assert_eq!(found, expected, "split at {at}");
        }
    }

    #[test]
    fn an_answer_that_is_not_wanted_any_more_closes_the_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client comes");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a valid time");
            // An answer before its question would be refused.
            let mut question = Vec::new();
            while !question.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("the request comes");
                question.push(byte[0]);
            }
            let event = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
            stream.write_all(event.as_bytes()).expect("it reads");
            // What is left of the request, and then the end.
            stream.read_to_end(&mut Vec::new()).map(|_| true)
        });
        let client = Client::new(&format!("http://{address}"), None, None).expect("good");
        client.stream("/", &Value::Null, |_| Wish::Stop, || Wish::GoOn).expect("an event came");
        assert!(server.join().expect("no panic").expect("the connection is closed, though the client is still there"));
        drop(client);
    }

    #[test]
    fn addresses() {
        for good in ["http://localhost:8080", "https://pond.example/", "http://[::1]:8080/v1", "http://a/b/v1/"] {
            assert!(Client::new(good, None, None).is_ok(), "{good}");
        }
        for bad in ["localhost:8080", "ftp://a", "", "http://", "http:// a"] {
            assert!(matches!(Client::new(bad, None, None), Err(ClientError::Url { .. })), "{bad}");
        }
        assert_eq!(Client::new("http://a:1/v1/", None, None).expect("good").url(), "http://a:1");
    }
}
