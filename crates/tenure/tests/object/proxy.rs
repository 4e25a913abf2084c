//! A proxy before a server, that counts what is asked and can be told to lose
//! answers or to answer by itself. One request on each connection.

use std::io::{Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ports;

/// How many parts of 64 KiB an answer without an end has: 256 MiB.
const ENDLESS_PARTS: u32 = 4_096;

/// What becomes of requests whose method it is.
#[derive(Clone, Copy, Default)]
pub(crate) enum Rule {
    /// They get their answer.
    #[default]
    Pass,
    /// They are carried out, and not answered.
    LoseAnswers(&'static str),
    /// They are not carried out, and this is the answer.
    Answer(&'static str, &'static str),
    /// They are not carried out, and the answer has this head and no end.
    Endless(&'static str, &'static str),
    /// They are carried out without the conditions that they have.
    ForgetConditions,
}

#[derive(Default)]
struct State {
    rule: Rule,
    asked: Vec<String>,
    tokens: Vec<String>,
}

/// See the [module](self).
pub(crate) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    pub(crate) fn before(port: u16) -> Self {
        let listener = ports::listener();
        let proxy = Self {
            port: listener.local_addr().expect("bound").port(),
            state: Arc::default(),
        };
        let state = Arc::clone(&proxy.state);
        std::thread::spawn(move || serve(&listener, port, &state));
        proxy
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, rule: Rule) {
        self.state.lock().expect("no panic").rule = rule;
    }

    /// The requests since this was asked last: method and path.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("no panic").asked)
    }

    /// The tokens that requests were signed with, since this was asked last.
    pub(crate) fn tokens(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("no panic").tokens)
    }
}

fn serve(listener: &TcpListener, port: u16, state: &Arc<Mutex<State>>) {
    for client in listener.incoming().map_while(Result::ok) {
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            // A client or a server that has gone is what some tests want.
            let _ = pass(client, port, &state);
        });
    }
}

fn pass(mut client: TcpStream, port: u16, state: &Mutex<State>) -> std::io::Result<()> {
    let Some((head, body)) = request(&mut client)? else {
        return Ok(());
    };
    let (line, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
    let rule = {
        let mut state = state.lock().expect("no panic");
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        state.asked.push(format!("{method} {path}"));
        let token = headers.lines().find_map(|line| {
            let (name, value) = line.split_once(": Bearer ")?;
            name.eq_ignore_ascii_case("authorization")
                .then(|| value.to_owned())
        });
        state.tokens.extend(token);
        state.rule
    };
    if let Rule::Answer(method, answer) = rule
        && line.starts_with(method)
    {
        return client.write_all(answer.as_bytes());
    }
    if let Rule::Endless(method, head) = rule
        && line.starts_with(method)
    {
        client.write_all(head.as_bytes())?;
        // Until the client ends it, or has taken far too much.
        let part = [b'<'; 64 * 1_024];
        return (0..ENDLESS_PARTS).try_for_each(|_| client.write_all(&part));
    }
    let kept = |line: &&str| {
        let name = line.split(':').next().unwrap_or("").to_ascii_lowercase();
        !(matches!(rule, Rule::ForgetConditions) && name.starts_with("if-"))
    };
    let line = match (rule, line.split_once("&ifGenerationMatch=")) {
        (Rule::ForgetConditions, Some((line, _))) => &format!("{line} HTTP/1.1"),
        _ => line,
    };
    let headers: Vec<_> = headers.lines().filter(kept).collect();
    let headers = headers.join("\r\n");
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    server.set_read_timeout(Some(Duration::from_secs(30)))?;
    server.write_all(format!("{line}\r\nConnection: close\r\n{headers}\r\n\r\n").as_bytes())?;
    server.write_all(&body)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    if let Rule::LoseAnswers(method) = rule
        && line.starts_with(method)
    {
        return Ok(());
    }
    client.write_all(&answer)
}

/// Head and body; `None` if the client has nothing to ask.
fn request(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let (mut bytes, mut part) = (Vec::new(), [0; 16 * 1_024]);
    let ends = |bytes: &[u8]| bytes.windows(4).position(|it| it == b"\r\n\r\n");
    let end = loop {
        if let Some(end) = ends(&bytes) {
            break end;
        }
        match client.read(&mut part)? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&part[..read]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().expect("a length"))
    });
    let mut body = bytes.split_off(end + 4);
    let mut rest = vec![0; length.unwrap_or(0) - body.len()];
    client.read_exact(&mut rest)?;
    body.extend(rest);
    Ok(Some((head, body)))
}
