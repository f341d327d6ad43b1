//! A small HTTP/1.1 client: what it sends and gets is seen byte by byte.

use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A whole response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.to_owned())
    }

    /// The data of all events but the closing one.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|l| l.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]").map(|d| serde_json::from_str(d).unwrap()).collect()
    }
}

#[derive(Clone)]
pub struct Client {
    address: SocketAddr,
    headers: String,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address, headers: format!("host: {address}\r\n") }
    }

    /// The same client with other headers in place of its own.
    pub fn with_headers(&self, headers: &[(&str, &str)]) -> Self {
        let headers = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
        Self { address: self.address, headers }
    }

    /// Sends a request and leaves the rest to the caller.
    pub async fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.headers,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub async fn send(&self, method: &str, path: &str, body: &str) -> Reply {
        finish(self.open(method, path, body).await).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &body.to_string()).await
    }

    pub async fn start(&self, path: &str, body: &Value) -> TcpStream {
        self.open("POST", path, &body.to_string()).await
    }
}

/// Reads a response to its end.
pub async fn finish(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    tokio::time::timeout(Duration::from_secs(30), read).await.expect("the server answers").unwrap();
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Reply {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("found {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { join_chunks(body) } else { body.to_owned() };
    Reply { status, head: head.to_owned(), body }
}

fn join_chunks(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        out.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    out
}

/// Reads until the response holds this text.
pub async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let read = stream.read(&mut buffer);
        let n = tokio::time::timeout(Duration::from_secs(20), read).await;
        let n = n.unwrap_or_else(|_| panic!("{text:?} never came after {seen:?}")).unwrap();
        assert!(n > 0, "{text:?} never came after {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    seen
}
