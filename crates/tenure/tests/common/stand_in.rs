//! What servers that stand in for real ones share: they listen, speak HTTP/1.1 with or
//! without TLS, come and go with what they have, keep silent and lose answers.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::ports;

/// What a server serves.
pub(crate) trait Service: Default + Send + 'static {
    /// The header with a request's token, in lower case, and what stands before the
    /// token in it.
    const TOKEN: (&str, &str);

    /// Answers a request on its connection. An error ends the connection.
    fn answer(shared: &Shared<Self>, request: &Request, stream: &mut impl Write) -> io::Result<()>;
}

/// A server on a port of its own.
pub(crate) struct StandIn<S: Service> {
    pub(crate) shared: Arc<Shared<S>>,
    port: u16,
    tls: Option<Arc<ServerConfig>>,
}

/// What the threads of a server share.
pub(crate) struct Shared<S> {
    state: Mutex<State<S>>,
    /// Told of each change of the state.
    pub(crate) changed: Condvar,
}

/// What is served, and how the server is.
#[derive(Default)]
pub(crate) struct State<S> {
    service: S,
    /// Requests are taken, and nothing is answered.
    is_mute: bool,
    /// Writes are carried out, and nothing is answered.
    pub(crate) loses_answers: bool,
    /// Whether it serves; by which number of its starts.
    pub(crate) run: Option<u64>,
    runs: u64,
    connections: Vec<TcpStream>,
}

impl<S> Deref for State<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.service
    }
}

impl<S> DerefMut for State<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.service
    }
}

/// What a request says.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) token: String,
    pub(crate) body: Vec<u8>,
}

impl<S: Service> StandIn<S> {
    /// One that serves.
    pub(crate) fn start() -> Self {
        let server = Self::prepared(None);
        server.launch();
        server
    }

    /// One that serves by TLS alone, with this certificate and key.
    pub(crate) fn start_encrypted(certificate: &str, key: &str) -> Self {
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.expect("a certificate")], key);
        let server = Self::prepared(Some(Arc::new(config.expect("a certificate and its key"))));
        server.launch();
        server
    }

    /// One that does not serve yet.
    pub(crate) fn prepared(tls: Option<Arc<ServerConfig>>) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            port: ports::free(),
            tls,
        }
    }

    /// Begins to serve what it has.
    pub(crate) fn launch(&self) {
        let listener = ports::listen(self.port);
        let run = self.change(|state| {
            state.runs += 1;
            state.run = Some(state.runs);
            state.runs
        });
        let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let mut state = shared.lock();
                if state.run != Some(run) {
                    return;
                }
                let handle = stream.try_clone().expect("a handle");
                state.connections.push(handle);
                drop(state);
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                thread::spawn(move || shared.serve(stream, tls));
            }
        });
    }

    /// Stops serving, and keeps what it has.
    pub(crate) fn stop(&self) {
        self.change(|state| {
            state.run = None;
            for connection in state.connections.drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        });
        // Wakes the thread that waits for connections, which closes the port.
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
            thread::yield_now();
        }
    }

    pub(crate) fn keep_silent(&self, is_mute: bool) {
        self.change(|state| state.is_mute = is_mute);
    }

    pub(crate) fn lose_answers(&self, loses: bool) {
        self.change(|state| state.loses_answers = loses);
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State<S>) -> T) -> T {
        let done = change(&mut self.shared.lock());
        self.shared.changed.notify_all();
        done
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl<S: Service> Drop for StandIn<S> {
    fn drop(&mut self) {
        if self.shared.lock().run.is_some() {
            self.stop();
        }
    }
}

impl<S: Service> Shared<S> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().expect("no thread has panicked")
    }

    fn serve(&self, stream: TcpStream, tls: Option<Arc<ServerConfig>>) {
        let _ = stream.set_nodelay(true);
        let ended = stream.try_clone().expect("a handle");
        match tls {
            None => self.serve_requests(stream),
            Some(config) => {
                let connection = ServerConnection::new(config).expect("a configuration");
                self.serve_requests(StreamOwned::new(connection, stream));
            }
        }
        // Another handle of it is kept.
        let _ = ended.shutdown(Shutdown::Both);
    }

    /// Answers requests until the connection ends.
    fn serve_requests(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        while let Some(request) = Request::read(&mut stream, S::TOKEN) {
            if self.is_mute_and_stops() || S::answer(self, &request, stream.get_mut()).is_err() {
                return;
            }
        }
    }

    /// Waits while the server keeps silent; whether it was stopped meanwhile.
    fn is_mute_and_stops(&self) -> bool {
        let mut state = self.lock();
        while state.is_mute {
            state = self.changed.wait(state).expect("no thread has panicked");
            if state.run.is_none() {
                return true;
            }
        }
        false
    }
}

impl Request {
    fn read(stream: &mut BufReader<impl Read + Write>, token_in: (&str, &str)) -> Option<Self> {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(':') else {
                break;
            };
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            if name == "content-length" {
                length = value.parse().ok()?;
            } else if name == token_in.0 {
                let value = value.strip_prefix(token_in.1).unwrap_or_default();
                value.clone_into(&mut token);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let options = query.split('&').filter(|option| !option.is_empty());
        let options = options.map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            (name.to_owned(), unescaped(value))
        });
        Some(Self {
            method,
            path: path.to_owned(),
            options: options.collect(),
            token,
            body,
        })
    }
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits: Vec<u8> = rest.by_ref().take(2).collect();
        let digits = String::from_utf8(digits).expect("digits");
        bytes.push(u8::from_str_radix(&digits, 16).expect("digits"));
    }
    String::from_utf8(bytes).expect("text")
}
