//! A running `duckpond serve`, and requests written out byte by byte.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Scratch, signal};

/// No step of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that ends with the test.
pub struct Served {
    pub child: Child,
    pub address: SocketAddr,
    stderr: BufReader<ChildStderr>,
    /// Warnings between the two lines that every server writes.
    pub said_before_ready: String,
    pub scratch: Scratch,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The events of a stream, without comments and the end mark, which must be there.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{self:?}");
        events.into_iter().map(|event| serde_json::from_str(event).expect("an event is JSON")).collect()
    }
}

impl Served {
    /// Starts one with these flags on a free port, and waits until it is ready.
    pub fn start(flags: &[&str]) -> Served {
        Served::start_in(Scratch::new(), flags)
    }

    pub fn start_in(scratch: Scratch, flags: &[&str]) -> Served {
        Served::start_with(scratch, flags, &[])
    }

    /// With more in its environment.
    pub fn start_with(scratch: Scratch, flags: &[&str], environment: &[(&str, &str)]) -> Served {
        let arguments: Vec<&str> = ["serve", "--port", "0"].iter().chain(flags).copied().collect();
        let mut command = scratch.command(&arguments);
        command.envs(environment.iter().copied());
        let mut child = command.spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = |begin: &str| {
            let mut line = String::new();
            stderr.read_line(&mut line).expect("the program writes UTF-8");
            assert!(line.starts_with(begin), "{line:?}");
            line
        };
        let listening = line("listening on ");
        let (_, address) = listening.trim().rsplit_once('/').expect("an address");
        let address = address.parse().expect("an address");
        let mut said_before_ready = String::new();
        loop {
            let more = line("");
            assert!(!more.is_empty(), "it ended: {said_before_ready}");
            if more.starts_with("ready: ") {
                break;
            }
            said_before_ready += &more;
        }
        Served { child, address, stderr, said_before_ready, scratch }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a valid time");
        stream
    }

    /// Sends bytes and returns the answer.
    #[track_caller]
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(bytes).expect("it reads");
        read_answer(&mut stream)
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.raw(head("GET", path, "", self.address).as_bytes())
    }

    #[track_caller]
    pub fn get_with(&self, path: &str, headers: &str) -> Answer {
        self.raw(head("GET", path, headers, self.address).as_bytes())
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.raw(self.request(path, body).as_bytes())
    }

    /// A chat that has to succeed.
    #[track_caller]
    pub fn chat(&self, body: &Value) -> Value {
        let answer = self.post("/v1/chat/completions", body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn request(&self, path: &str, body: &Value) -> String {
        let body = body.to_string();
        let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        head("POST", path, &headers, self.address) + &body
    }

    /// The value of a metric without labels, or with exactly these.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until something holds.
    #[track_caller]
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Served) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < end, "still not so: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal, and returns the exit code and what was still said.
    pub fn end(mut self, name: &str) -> (Option<i32>, String) {
        signal(&self.child, name);
        let code = self.child.wait().expect("it ends").code();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("the program writes UTF-8");
        (code, said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn head(method: &str, path: &str, headers: &str, address: SocketAddr) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n")
}

/// Reads to the end of the connection.
#[track_caller]
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A server that closes at once may do so with a reset; what it sent counts.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("the server writes UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        body += &after[..size];
        rest = &after[size + 2..];
    }
    body
}
