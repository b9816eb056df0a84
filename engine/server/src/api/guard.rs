//! Who may ask: the Host header, other pages' scripts, API keys. And a line of the log for each request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::App;
use super::error::ApiError;

/// The other end of a connection; put into each request by whoever accepts connections.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// For whom a request is: a key's name, else an address. Clients take turns.
#[derive(Clone, Debug)]
pub struct Client(pub Arc<str>);

/// What may ask.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Names under which this server may be addressed, beside `localhost` and addresses; `*`: all.
    pub hosts: Vec<String>,
    /// Pages elsewhere whose scripts may ask, such as `https://chat.example`; `*`: all.
    pub origins: Vec<String>,
}

impl Guard {
    /// Answers for the scripts of other pages: none unless some are listed.
    pub fn cors(&self) -> CorsLayer {
        if self.origins.is_empty() {
            return CorsLayer::new();
        }
        let origins = match self.origins.iter().any(|origin| origin == "*") {
            true => AllowOrigin::any(),
            false => AllowOrigin::list(self.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
        };
        // Those asked for, by name: browsers do not count Authorization among `*`.
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([header::RETRY_AFTER])
    }

    /// Refuses requests that a page of a stranger could have a visitor's browser make: under a name of the stranger's that leads here
    /// (DNS rebinding), or from the stranger's own page.
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        let host = match (header_text(request.headers(), header::HOST), request.uri().authority()) {
            (_, Some(authority)) => authority.as_str(),
            (Some(host), None) => host,
            (None, None) if request.version() == axum::http::Version::HTTP_10 => return Ok(()),
            (None, None) => return Err(ApiError::new(StatusCode::BAD_REQUEST, "the Host header is missing")),
        };
        if !self.allows_host(name_of(host)) {
            let message = format!(
                "the Host header names {:?}, which is not this server; allow it with --allow-host",
                host.chars().take(200).collect::<String>()
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, message).code("host_not_allowed"));
        }
        let Some(origin) = header_text(request.headers(), header::ORIGIN) else { return Ok(()) };
        let own = origin.split_once("://").is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(host));
        if own || self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return Ok(());
        }
        let message = format!(
            "the page {:?} may not use this server; allow it with --allow-origin",
            origin.chars().take(200).collect::<String>()
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_not_allowed"))
    }

    fn allows_host(&self, name: &str) -> bool {
        let own = name.eq_ignore_ascii_case("localhost") || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        own || self.hosts.iter().any(|host| host == "*" || host.eq_ignore_ascii_case(name))
    }
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// A host without its port. An IPv6 address is in brackets, so its own colons are not mistaken for the port's.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(']') => name,
        _ => host,
    };
    name.trim_end_matches('.')
}

/// Outermost: checks the host, counts, logs.
pub async fn outside(State(app): State<App>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    // The route, not the path: strangers can think of any number of paths.
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let response = match app.guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let status = response.status().as_u16();
    app.metrics.request(&route, status);
    let ms = begun.elapsed().as_millis() as u64;
    // 503 is how whoever asks again and again learns when to begin.
    if response.status().is_server_error() && response.status() != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(%method, path = path.chars().take(200).collect::<String>(), status, ms, "request");
    } else {
        tracing::info!(%method, path = path.chars().take(200).collect::<String>(), status, ms, "request");
    }
    response
}

/// Before everything that needs a key, where there are keys.
pub async fn with_key(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let address =
        request.extensions().get::<Peer>().map_or_else(|| "unknown".to_owned(), |peer| peer.0.ip().to_string());
    let client = match &app.keys {
        None => address.into(),
        Some(keys) => match presented(request.headers()).map(|key| keys.owner(key)) {
            Some(Some(owner)) => owner,
            found => {
                let message = match found {
                    Some(_) => "the API key is not known here",
                    None => "an API key is needed: send `Authorization: Bearer` and the key",
                };
                return ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key").into_response();
            }
        },
    };
    request.extensions_mut().insert(Client(client));
    next.run(request).await
}

/// Whether a request may see what only those with a key may: all where there are no keys.
pub fn is_trusted(app: &App, headers: &HeaderMap) -> bool {
    let Some(keys) = &app.keys else { return true };
    presented(headers).is_some_and(|key| keys.owner(key).is_some())
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = header_text(headers, header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(guard: &Guard, headers: &[(&str, &str)]) -> Result<(), StatusCode> {
        let mut request = Request::builder().uri("/v1/models");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        guard.check(&request.body(Body::empty()).expect("sound")).map_err(|error| error.status)
    }

    #[test]
    fn addresses_and_localhost_are_this_server_and_names_are_not() {
        let guard = Guard { hosts: vec!["pond.example".into()], ..Guard::default() };
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "[::1]:8080", "[::1]", "10.0.0.7", "Pond.Example.:443"]
        {
            assert_eq!(check(&guard, &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "pond.example.org"] {
            assert_eq!(check(&guard, &[("host", host)]), Err(StatusCode::FORBIDDEN), "{host}");
        }
        assert_eq!(check(&guard, &[]), Err(StatusCode::BAD_REQUEST));
        let all = Guard { hosts: vec!["*".into()], ..Guard::default() };
        assert_eq!(check(&all, &[("host", "anything")]), Ok(()));
    }

    #[test]
    fn scripts_of_other_pages_are_refused_unless_listed() {
        let guard = Guard { origins: vec!["https://chat.example".into()], ..Guard::default() };
        let from = |origin| check(&guard, &[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(from("http://localhost:8080"), Ok(()));
        assert_eq!(from("https://chat.example"), Ok(()));
        for other in ["http://localhost:9090", "null", "https://evil.example", "https://chat.example.evil"] {
            assert_eq!(from(other), Err(StatusCode::FORBIDDEN), "{other}");
        }
    }

    #[tokio::test]
    async fn a_listed_pages_script_may_send_its_key_and_hear_when_to_come_again() {
        for origins in [vec!["https://chat.example".to_owned()], vec!["*".to_owned()]] {
            let guard = Guard { origins, ..Guard::default() };
            let routes = axum::Router::new().route("/", axum::routing::post(async || "")).layer(guard.cors());
            let ask = |method: &str| {
                let request = Request::builder().method(method).uri("/").header("origin", "https://chat.example");
                let request = request.header("access-control-request-method", "POST");
                let request = request.header("access-control-request-headers", "authorization,content-type");
                tower::ServiceExt::oneshot(routes.clone(), request.body(Body::empty()).expect("sound"))
            };
            let allowed = ask("OPTIONS").await.expect("infallible");
            assert_eq!(
                header_text(allowed.headers(), header::ACCESS_CONTROL_ALLOW_HEADERS),
                Some("authorization,content-type")
            );
            let answer = ask("POST").await.expect("infallible");
            assert_eq!(header_text(answer.headers(), header::ACCESS_CONTROL_EXPOSE_HEADERS), Some("retry-after"));
        }
    }

    #[test]
    fn keys_come_in_either_header() {
        let headers = |name: &'static str, value| {
            HeaderMap::from_iter([(header::HeaderName::from_static(name), HeaderValue::from_static(value))])
        };
        assert_eq!(presented(&headers("authorization", "bearer  abc ")), Some("abc"));
        assert_eq!(presented(&headers("x-api-key", "abc")), Some("abc"));
        assert_eq!(presented(&headers("authorization", "Basic abc")), None);
    }
}
