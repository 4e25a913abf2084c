//! What those hear who speak no TLS where TLS is spoken.
//!
//! A record of TLS begins with a byte that nothing else of ours begins with. A
//! client that begins otherwise could only be told by an alert of TLS, which it
//! cannot read, and would complain of garbage. So it is told in its own
//! language: HTTP/2, HTTP/1 or a greeting between servers.
//!
//! The other way round, a server that speaks TLS to one that does not is
//! answered something that is certainly no TLS, and finds that.

use std::io;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::greeting::GreetingAnswer;
use super::handshake::Piece;
use tenure_runtime::tls::Mismatch;

/// What a handshake of TLS begins with.
const HANDSHAKE: u8 = 22;
/// And what follows in all versions of it.
const VERSION: u8 = 3;
/// Settings of HTTP/2, none of them; it begins with them whatever comes.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The end of an HTTP/2 connection, by its type, and "inadequate security".
const GO_AWAY: u8 = 7;
const INADEQUATE: u8 = 12;

const CLIENT: &str = "this server speaks TLS; name its authority (ca=FILE in the URL)";
const SERVER: &str = "this server speaks TLS with others; give all servers of a cluster \
                      --tls-cert, --tls-key and --tls-ca";

const FOUND_PLAIN: Mismatch = Mismatch(
    "expected TLS, found a server that speaks without; give all servers of a cluster --tls-cert, \
     --tls-key and --tls-ca",
);
const FOUND_TLS: Mismatch = Mismatch(
    "expected a server without TLS, as this one is, found TLS; give all servers of a cluster \
     --tls-cert, --tls-key and --tls-ca, or none of them",
);

/// What a server finds that speaks TLS to one that does not.
pub(super) const FOUND_NO_TLS: Mismatch = Mismatch(
    "expected TLS, found something else; if that is a server of this cluster, give it --tls-cert, \
     --tls-key and --tls-ca too",
);

/// Waits for the first bytes. If they are those of TLS, answers what is none,
/// and gives what to tell people.
pub(super) async fn refuse_tls(stream: &mut TcpStream) -> io::Result<Option<io::Error>> {
    let mut first = [0; 2];
    let read = stream.peek(&mut first).await?;
    if read < first.len() || first != [HANDSHAKE, VERSION] {
        return Ok(None);
    }
    let answer = Piece::answered(&GreetingAnswer::Refused(FOUND_TLS.0.into()));
    answer.write(stream).await?;
    let error = io::Error::new(io::ErrorKind::InvalidData, FOUND_TLS);
    Ok(Some(error))
}

/// Waits for the first bytes. If they are none of TLS, says so, and gives what
/// to tell people.
pub(super) async fn refuse_plaintext(stream: &mut TcpStream) -> io::Result<Option<io::Error>> {
    let error = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut first = [0; 3];
    let read = stream.peek(&mut first).await?;
    // The end of a connection is for TLS to complain of.
    if read == 0 || first[0] == HANDSHAKE {
        return Ok(None);
    }
    match &first[..read] {
        b"PRI" => stream.write_all(&go_away()).await?,
        [b't', ..] => {
            let answer = Piece::answered(&GreetingAnswer::Refused(SERVER.into()));
            answer.write(stream).await?;
            let error = io::Error::new(io::ErrorKind::InvalidData, FOUND_PLAIN);
            return Ok(Some(error));
        }
        _ => {
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\
                 Content-Length: {}\r\n\r\n{CLIENT}\n",
                CLIENT.len() + 1
            );
            stream.write_all(answer.as_bytes()).await?;
        }
    }
    Ok(Some(error("expected TLS, found something else")))
}

fn go_away() -> Vec<u8> {
    let mut bytes = SETTINGS.to_vec();
    // Eight bytes for the last stream and the code, and then the text.
    let length = u8::try_from(8 + CLIENT.len()).unwrap_or(u8::MAX);
    bytes.extend([0, 0, length, GO_AWAY, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, 0, 0, 0, 0, 0, INADEQUATE]);
    bytes.extend(CLIENT.as_bytes());
    bytes
}
