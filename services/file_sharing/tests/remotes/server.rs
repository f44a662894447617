//! A web server with `git http-backend` behind it, which can be told to misbehave.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::lab::git_command;

/// What the server does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Behaviour {
    /// Only with this `Authorization`.
    pub authorization: Option<String>,
    /// As if it knew the first version of the protocol only.
    pub old_protocol: bool,
    /// Never answers to what begins so.
    pub silent_about: Option<&'static str>,
    /// Closes packs after so many bytes.
    pub pack_bytes: Option<usize>,
    /// Sends nothing more then, but leaves the connection open.
    pub stalls: bool,
    /// Sends everybody to this other URL first.
    pub redirect: Option<String>,
    /// Says that it is a page.
    pub page: bool,
}

/// A running server. It ends with the test's process.
pub struct Server {
    pub url: String,
    behaviour: Arc<Mutex<Behaviour>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves the repositories in a folder over http.
    pub fn http(root: &Path) -> Self {
        Self::start(root, None)
    }

    /// Over https, with the certificate of `localhost` of the test's own authority.
    pub fn https(root: &Path) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls");
        let certificate = CertificateDer::from_pem_file(data.join("server.pem")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(data.join("server.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
        let config = config.with_no_client_auth().with_single_cert(vec![certificate], key).expect("a pair");
        Self::start(root, Some(Arc::new(config)))
    }

    fn start(root: &Path, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let server = Self {
            url: format!("{scheme}://localhost:{port}/origin.git"),
            behaviour: Arc::default(),
            requests: Arc::default(),
        };
        let (behaviour, requests) = (Arc::clone(&server.behaviour), Arc::clone(&server.requests));
        let root = root.to_owned();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (behaviour, requests) = (Arc::clone(&behaviour), Arc::clone(&requests));
                let (root, tls) = (root.clone(), tls.clone());
                thread::spawn(move || {
                    let given = || behaviour.lock().expect("no panic").clone();
                    // A client that goes away is none of the server's business.
                    drop(match tls {
                        None => answer(stream, &root, given, &requests),
                        Some(config) => {
                            let connection = ServerConnection::new(config).expect("a connection");
                            answer(StreamOwned::new(connection, stream), &root, given, &requests)
                        }
                    });
                });
            }
        });
        server
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("no panic") = behaviour;
    }

    /// Method and path of all requests until now, and `gone` for each client that went without an answer.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

trait Both: Read + Write {}

impl Both for TcpStream {}

impl Both for StreamOwned<ServerConnection, TcpStream> {}

fn answer(
    stream: impl Both,
    root: &PathBuf,
    behaviour: impl Fn() -> Behaviour,
    requests: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    requests.lock().expect("no panic").push(format!("{method} {target}"));
    let behaviour = behaviour();
    let stream = stream.get_mut();
    if behaviour.silent_about.is_some_and(|start| format!("{method} {target}").starts_with(start)) {
        // Until the other side goes.
        let read = stream.read_to_end(&mut Vec::new());
        requests.lock().expect("no panic").push("gone".to_owned());
        return read.map(drop);
    }
    if let Some(other) = &behaviour.redirect
        && !target.starts_with("/moved/")
    {
        return write!(
            stream,
            "HTTP/1.1 302 Found\r\nlocation: {other}{}\r\ncontent-length: 0\r\n\r\n",
            &target["/origin.git".len()..]
        );
    }
    if behaviour.authorization.is_some() && behaviour.authorization.as_ref() != headers.get("authorization") {
        return write!(
            stream,
            "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\r\n"
        );
    }
    if behaviour.page {
        return write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>");
    }
    let target = target.strip_prefix("/moved").unwrap_or(&target);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut backend = git_command(root);
    backend.arg("http-backend").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    backend.env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1").env("REQUEST_METHOD", &method);
    backend.env("PATH_INFO", path).env("QUERY_STRING", query).env("REMOTE_ADDR", "127.0.0.1");
    if let Some(kind) = headers.get("content-type") {
        backend.env("CONTENT_TYPE", kind).env("CONTENT_LENGTH", length.to_string());
    }
    if let Some(protocol) = headers.get("git-protocol").filter(|_| !behaviour.old_protocol) {
        backend.env("HTTP_GIT_PROTOCOL", protocol);
    }
    let mut running = backend.spawn()?;
    let mut stdin = running.stdin.take().expect("a pipe");
    stdin.write_all(&body)?;
    drop(stdin);
    let output = running.wait_with_output()?.stdout;
    let end = output.windows(4).position(|window| window == b"\r\n\r\n").expect("headers");
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let content = &output[end + 4..];
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    write!(stream, "HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", content.len())?;
    let sent = match behaviour.pack_bytes {
        Some(bytes) if content.windows(4).any(|window| window == b"PACK") => &content[..bytes.min(content.len())],
        _ => content,
    };
    stream.write_all(sent)?;
    stream.flush()?;
    if behaviour.stalls && sent.len() < content.len() {
        stream.read_to_end(&mut Vec::new())?;
    }
    Ok(())
}
