//! Who may ask.
//!
//! Owns: host, origin, keys. Never: what is asked.
//! Invariants: on a loopback address a page of another site can neither read nor cause anything; the
//! time of a key's comparison says nothing about the keys.

use super::Shared;
use crate::error::{Error, Result};
use crate::wire::fault::Dialect;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Paths that need no key: what a load balancer asks.
const OPEN: &[&str] = &["/health"];

pub(super) async fn guard(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let origin = request.headers().get(header::ORIGIN).cloned();
    let checked = check(&app, &request, origin.as_ref(), &path);
    let mut response = match checked {
        Err(error) => app.failure(Dialect::of(&path), &error),
        Ok(()) if request.method() == Method::OPTIONS && origin.is_some() => preflight(&request),
        Ok(()) => next.run(request).await,
    };
    let allowed = |origin: &HeaderValue| allows(&app.desk.options.cors, origin);
    if let Some(origin) = origin.filter(allowed) {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    response
}

fn check(app: &Shared, request: &Request, origin: Option<&HeaderValue>, path: &str) -> Result<()> {
    let options = &app.desk.options;
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    if app.loopback && !is_local(name_of(host)) && !options.hosts.iter().any(|h| h == name_of(host))
    {
        return Err(Error::Host { found: host.to_owned() });
    }
    if let Some(origin) = origin {
        let text = origin.to_str().unwrap_or_default();
        let own = text.split_once("://").is_some_and(|(_, rest)| rest == host);
        if !own && !allows(&options.cors, origin) {
            return Err(Error::Origin { found: text.to_owned() });
        }
    }
    let asks_first = request.method() == Method::OPTIONS;
    if options.api_keys.is_empty() || asks_first || OPEN.contains(&path) {
        return Ok(());
    }
    match shown(headers) {
        Some(key) if knows(&options.api_keys, key) => Ok(()),
        _ => Err(Error::Unauthorised),
    }
}

/// The name in a host header, without the port.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

fn is_local(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn allows(allowed: &[String], origin: &HeaderValue) -> bool {
    allowed.iter().any(|a| a == "*" || a.as_bytes() == origin.as_bytes())
}

fn preflight(request: &Request) -> Response {
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let headers = wanted.unwrap_or_else(|| HeaderValue::from_static("authorization, content-type"));
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    let age = HeaderValue::from_static("600");
    let pairs = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, methods),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, headers),
        (header::ACCESS_CONTROL_MAX_AGE, age),
    ];
    (StatusCode::NO_CONTENT, pairs).into_response()
}

/// The key that a request shows.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Whether the key is one of these. All are compared, each over its whole length.
fn knows(keys: &[String], shown: &[u8]) -> bool {
    let mut known = 0u8;
    for key in keys {
        known |= u8::from(std::hint::black_box(difference(key.as_bytes(), shown)) == 0);
    }
    known == 1
}

fn difference(key: &[u8], shown: &[u8]) -> u8 {
    let mut difference = u8::from(key.len() != shown.len());
    for (at, byte) in key.iter().enumerate() {
        difference |= byte ^ shown.get(at).copied().unwrap_or(!byte);
    }
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_compare_whole() {
        let keys = vec!["alpha".to_owned(), "beta".to_owned()];
        assert!(knows(&keys, b"alpha") && knows(&keys, b"beta"));
        for wrong in [&b""[..], b"alph", b"alphaa", b"Alpha", b"alpha\0", b"betb"] {
            assert!(!knows(&keys, wrong));
        }
    }

    #[test]
    fn host_names_lose_their_ports() {
        assert_eq!(name_of("localhost:80"), "localhost");
        assert_eq!(name_of("[::1]:80"), "::1");
        assert_eq!(name_of("example.org"), "example.org");
        assert!(is_local("127.0.0.1") && is_local("::1") && is_local("LOCALHOST"));
        assert!(is_local("127.8.8.8") && is_local("a.localhost"));
        assert!(!is_local("localhost.example.org") && !is_local("") && !is_local("10.0.0.1"));
    }
}
