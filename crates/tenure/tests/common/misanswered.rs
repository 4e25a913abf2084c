//! A server that answers what it likes: for the bounds on what servers may send.

use std::io::{self, Read as _};
use std::net::TcpStream;

use super::ports;

/// Answers each connection with `answer`, by itself; the port. A connection stays open
/// until the client closes it: what ends a call is not its end.
pub(crate) fn start<F>(answer: F) -> u16
where
    F: Fn(&mut TcpStream) -> io::Result<()> + Clone + Send + 'static,
{
    let listener = ports::listener();
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for taken in listener.incoming() {
            let (mut taken, answer) = (taken.expect("a connection"), answer.clone());
            std::thread::spawn(move || {
                // The client goes when it has had enough.
                let _ = answer(&mut taken).and_then(|()| drain(&mut taken));
            });
        }
    });
    port
}

/// Reads until the client closes.
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 4_096];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}
