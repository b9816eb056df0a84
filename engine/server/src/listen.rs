//! Connections: accepted up to a number, each with limits on headers and time, closed in order when the server stops.
//!
//! HTTP/1.1 only: it is what event streams, proxies and the usual clients speak, and has the smallest surface.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

use crate::api::Peer;
use crate::socket::{self, Impatient};
use crate::tls::Tls;

/// Headers of a request must be complete within this time, and a connection may be idle so long.
const HEADER_TIME: Duration = Duration::from_secs(60);
/// A TLS handshake may take so long.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Connections may take so long to close when the server stops.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// A client that takes nothing of what it is sent for so long is gone, or holds a place for nothing.
const STALLED_TIME: Duration = Duration::from_secs(60);
/// For connections beyond the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\
    retry-after: 5\r\ncontent-length: 133\r\n\r\n\
    {\"error\":{\"message\":\"too many connections; try again in a while\",\"type\":\"server_error\",\"param\":null,\"code\":\"too_many_connections\"}}  ";

/// Accepts connections until `closing` becomes true, then closes them all.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    routes: Router,
    connections: usize,
    mut closing: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(connections));
    let mut has_warned = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closed(&mut closing) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, or a connection that was gone at once: the next one may do better.
                if socket::is_out_of_files(&error) && !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(
                        "connections wait, for this process may open no more files: raise its limit (LimitNOFILE=, ulimit -n)"
                    );
                }
                tracing::debug!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tokio::spawn(turn_away(stream));
            continue;
        };
        let (tls, routes, closing) = (tls.clone(), routes.clone(), closing.clone());
        tokio::spawn(async move {
            // Small pieces go out at once.
            let _ = stream.set_nodelay(true);
            socket::watch(&stream, STALLED_TIME);
            let stream = Impatient::new(stream, STALLED_TIME);
            match tls {
                None => connection(stream, peer, routes, closing).await,
                Some(tls) => match timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, peer, routes, closing).await,
                    Ok(Err(error)) => tracing::debug!(%peer, "TLS: {error}"),
                    Err(_) => tracing::debug!(%peer, "TLS: no handshake in time"),
                },
            }
            drop(permit);
        });
    }
    drop(listener);
    let all = u32::try_from(connections).unwrap_or(u32::MAX);
    let _ = timeout(CLOSE_TIME, permits.acquire_many(all)).await;
}

/// Waits until the server closes its connections.
async fn closed(closing: &mut watch::Receiver<bool>) {
    while !*closing.borrow_and_update() {
        if closing.changed().await.is_err() {
            return;
        }
    }
}

async fn turn_away(mut stream: TcpStream) {
    let _ = timeout(Duration::from_secs(1), async {
        stream.write_all(FULL).await?;
        stream.shutdown().await
    })
    .await;
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: SocketAddr,
    routes: Router,
    mut closing: watch::Receiver<bool>,
) {
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        routes.clone().oneshot(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).max_buf_size(64 << 10);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Whoever scans ports or goes away early does no harm.
        tracing::debug!(%peer, "connection: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::FULL;

    #[test]
    fn the_answer_to_one_connection_too_many_is_as_long_as_it_says() {
        let text = std::str::from_utf8(FULL).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).expect("JSON");
    }
}
