//! How two servers exchange greetings.
//!
//! ```text
//!   dialler                          acceptor
//!      │ ── 32 random bytes ───────────▶ │
//!      │ ◀── 32 random bytes, number ─── │
//!      │ ── greeting, proof ───────────▶ │
//!      │ ◀── greeting or refusal, proof ─│
//! ```
//!
//! Each *piece* has a header: eight bytes of magic (`tenure-2`), the length of
//! the body and its CRC-32C. Both sides draw random bytes for each connection,
//! and a [`Proof`] is computed over all that was said so far ([`Transcript`]):
//! so a proof that was overheard is of no use on another connection, and what
//! was said cannot be changed on its way without the secret.
//!
//! The acceptor's number is part of it, and the dialler goes on only if that is
//! the server that it meant. Without the number, a stranger at the address of a
//! server that is down could pass the dialler's proof on to another server, and
//! speak to that one under the dialler's name.
//!
//! The form before this one has no random bytes and no proofs: a greeting and
//! an answer under the magic `tenure-1`. An acceptor tells the two apart by
//! the magic. A release that knows only the old form closes a connection that
//! begins with another magic; the dialler then says the same in the old form
//! ([`Link`](super::Link)), unless its log says that all members of its
//! cluster speak the new one.

use std::io;
use std::sync::Arc;

use tenure_alpo::ServerId;
use tenure_alpo::codec::{DecodeError, Reader, crc32c, put_bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::greeting::{Greeting, GreetingAnswer, GreetingError};

/// The longest body of a piece.
const MAX_BYTES: u32 = 64 * 1024;
/// How many bytes each side draws for a connection.
const NONCE_BYTES: usize = 32;

/// Random bytes of one side, for one connection.
type Nonce = [u8; NONCE_BYTES];

/// What shows that a side knows a secret of the cluster.
pub type Proof = [u8; 32];

/// How greetings are exchanged. The digit of the magic is the version of
/// everything that is said on the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// As releases do that speak cluster version 1.
    First,
    /// With random bytes, proofs, and a start counter.
    Second,
}

impl Form {
    pub(super) const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::First => b"tenure-1",
            Self::Second => b"tenure-2",
        }
    }
}

/// Which side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one that connects.
    Dialler,
    /// The one that listens.
    Acceptor,
}

/// What both sides have said on one connection; a proof is computed over it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transcript {
    dialler: Nonce,
    acceptor: Nonce,
    /// The number that the acceptor says it has; 0 before it has.
    to: u64,
    greeting: Vec<u8>,
    answer: Vec<u8>,
}

impl Transcript {
    /// What the proof of `side` is computed over: who proves, the random bytes
    /// of both sides, the acceptor's number, the dialler's greeting, and, for
    /// the acceptor, the answer. Every part has a fixed length or its length
    /// before it, so that no two transcripts have the same bytes; and no proof
    /// of one side is one of the other.
    pub fn bytes(&self, side: Side) -> Vec<u8> {
        let mut bytes = Form::Second.magic().to_vec();
        bytes.push(match side {
            Side::Dialler => 0,
            Side::Acceptor => 1,
        });
        bytes.extend_from_slice(&self.dialler);
        bytes.extend_from_slice(&self.acceptor);
        bytes.extend_from_slice(&self.to.to_le_bytes());
        put_bytes(&mut bytes, &self.greeting);
        if side == Side::Acceptor {
            put_bytes(&mut bytes, &self.answer);
        }
        bytes
    }
}

type Sign = dyn Fn(&[u8]) -> Proof + Send + Sync;

/// Computes the proofs of this server; by itself it proves nothing.
#[derive(Clone, Default)]
pub struct Prover(Option<Arc<Sign>>);

impl std::fmt::Debug for Prover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Prover" } else { "None" })
    }
}

impl Prover {
    /// One that proves by `sign`, which is given the bytes of a transcript.
    pub fn new(sign: impl Fn(&[u8]) -> Proof + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sign)))
    }

    /// The proof of `side`, if this server has something to prove with.
    pub fn prove(&self, transcript: &Transcript, side: Side) -> Option<Proof> {
        let sign = self.0.as_ref()?;
        Some(sign(&transcript.bytes(side)))
    }
}

/// The other side, as it has introduced itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Introduced {
    /// What it says of itself.
    pub greeting: Greeting,
    /// How it was said.
    pub form: Form,
    /// What it proves itself with; never anything in the first form.
    pub proof: Option<Proof>,
    /// Over which the proof must be.
    pub transcript: Transcript,
}

/// What was answered to a dialler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GreetingReply {
    /// The answer.
    pub answer: GreetingAnswer,
    /// What the acceptor proves itself with.
    pub proof: Option<Proof>,
    /// Over which the proof must be.
    pub transcript: Transcript,
}

/// Greets and waits for the answer, in `form`. `meant` is the server that the
/// dialler would reach; none if any will do.
///
/// # Errors
/// [`GreetingError::Elsewhere`] if another server says that it is there.
/// [`GreetingError::Unanswered`] if the other side ended the connection
/// without a word: then it may know the first form alone. Otherwise if the
/// connection breaks, or what comes is no answer.
pub async fn greet(
    line: &mut (impl AsyncRead + AsyncWrite + Unpin),
    form: Form,
    meant: Option<ServerId>,
    greeting: &Greeting,
    prover: &Prover,
) -> Result<GreetingReply, GreetingError> {
    if form == Form::First {
        Piece::greeting(greeting).write(line).await?;
        let piece = Piece::read(line).await?;
        return Ok(GreetingReply {
            answer: piece.answer()?,
            proof: None,
            transcript: Transcript::default(),
        });
    }
    let mut transcript = Transcript {
        dialler: draw()?,
        ..Transcript::default()
    };
    let opening = Piece::opening(&transcript.dialler).write(line).await;
    opening.map_err(unanswered)?;
    let opened = Piece::read(line).await;
    let opened = opened.map_err(|error| match error {
        GreetingError::Io(error) => unanswered(error),
        other => other,
    })?;
    if opened.form == Form::First {
        // Only a refusal comes unasked, of one that does not even listen.
        let answer = opened.answer()?;
        let refused = matches!(answer, GreetingAnswer::Refused(_));
        return if refused {
            Ok(GreetingReply {
                answer,
                proof: None,
                transcript,
            })
        } else {
            Err(GreetingError::Body("it was said in another form"))
        };
    }
    let (nonce, server) = opened.opened()?;
    if meant.is_some_and(|meant| meant != server) {
        return Err(GreetingError::Elsewhere(server));
    }
    (transcript.acceptor, transcript.to) = (nonce, server.get());
    transcript.greeting = greeting.encode();
    let proof = prover.prove(&transcript, Side::Dialler);
    Piece::proven(&transcript.greeting, proof)
        .write(line)
        .await?;
    let piece = Piece::read(line).await?;
    if piece.form != Form::Second {
        return Err(GreetingError::Body("it was said in another form"));
    }
    let (body, proof) = piece.parts()?;
    let answer = GreetingAnswer::decode(body)?;
    transcript.answer = body.to_vec();
    Ok(GreetingReply {
        answer,
        proof,
        transcript,
    })
}

/// The other side ended the connection, or it broke, before anything came.
fn unanswered(error: io::Error) -> GreetingError {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
            GreetingError::Unanswered(error)
        }
        _ => GreetingError::Io(error),
    }
}

/// Waits until a dialler has introduced itself, in whatever form, to this
/// server, whose number is `own`.
///
/// # Errors
/// If that is no greeting, or the connection breaks.
pub async fn introduced(
    line: &mut (impl AsyncRead + AsyncWrite + Unpin),
    own: ServerId,
) -> Result<Introduced, GreetingError> {
    let first = Piece::read(line).await?;
    if first.form == Form::First {
        return Ok(Introduced {
            greeting: first.greeted()?,
            form: Form::First,
            proof: None,
            transcript: Transcript::default(),
        });
    }
    let mut transcript = Transcript {
        dialler: first.nonce()?,
        acceptor: draw()?,
        to: own.get(),
        ..Transcript::default()
    };
    let opening = Piece::opening_of(&transcript.acceptor, own);
    opening.write(line).await?;
    let piece = Piece::read(line).await?;
    if piece.form != Form::Second {
        return Err(GreetingError::Body("it was said in another form"));
    }
    let (body, proof) = piece.parts()?;
    transcript.greeting = body.to_vec();
    Ok(Introduced {
        greeting: piece.greeted()?,
        form: Form::Second,
        proof,
        transcript,
    })
}

impl Introduced {
    /// Answers the dialler, in the form in which it greeted. One that has not
    /// proven itself gets no proof: it could try secrets against it.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn answer(
        &mut self,
        line: &mut (impl AsyncWrite + Unpin),
        answer: &GreetingAnswer,
        prover: &Prover,
    ) -> io::Result<()> {
        match self.form {
            Form::First => Piece::answered(answer).write(line).await,
            Form::Second => {
                self.transcript.answer = answer.encode();
                let proof = prover.prove(&self.transcript, Side::Acceptor);
                Piece::proven(&self.transcript.answer, proof)
                    .write(line)
                    .await
            }
        }
    }
}

/// One piece of an exchange as it is on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// What its magic says.
    pub form: Form,
    body: Vec<u8>,
}

impl Piece {
    fn opening(nonce: &Nonce) -> Self {
        Self {
            form: Form::Second,
            body: nonce.to_vec(),
        }
    }

    /// The acceptor's, which says who it is.
    fn opening_of(nonce: &Nonce, own: ServerId) -> Self {
        let mut body = nonce.to_vec();
        body.extend_from_slice(&own.get().to_le_bytes());
        Self {
            form: Form::Second,
            body,
        }
    }

    /// A greeting or an answer of the second form, with its proof.
    fn proven(body: &[u8], proof: Option<Proof>) -> Self {
        let mut bytes = Vec::with_capacity(body.len() + 48);
        put_bytes(&mut bytes, body);
        put_bytes(&mut bytes, proof.as_ref().map_or(&[], |proof| proof));
        Self {
            form: Form::Second,
            body: bytes,
        }
    }

    /// A greeting of the first form.
    fn greeting(greeting: &Greeting) -> Self {
        Self {
            form: Form::First,
            body: greeting.encode_first(),
        }
    }

    /// An answer of the first form.
    pub(super) fn answered(answer: &GreetingAnswer) -> Self {
        Self {
            form: Form::First,
            body: answer.encode_first(),
        }
    }

    pub(super) fn answer(&self) -> Result<GreetingAnswer, GreetingError> {
        match self.form {
            Form::First => GreetingAnswer::decode_first(&self.body),
            Form::Second => GreetingAnswer::decode(self.parts()?.0),
        }
    }

    /// The greeting in it.
    ///
    /// # Errors
    /// If there is none.
    pub fn greeted(&self) -> Result<Greeting, GreetingError> {
        match self.form {
            Form::First => Greeting::decode_first(&self.body),
            Form::Second => Greeting::decode(self.parts()?.0),
        }
    }

    pub(super) fn nonce(&self) -> Result<Nonce, GreetingError> {
        let nonce = Nonce::try_from(&*self.body);
        nonce.map_err(|_| GreetingError::Body("it does not begin with 32 random bytes"))
    }

    pub(super) fn opened(&self) -> Result<(Nonce, ServerId), GreetingError> {
        let (nonce, number) =
            self.body
                .split_at_checked(NONCE_BYTES)
                .ok_or(GreetingError::Body(
                    "it does not begin with 32 random bytes",
                ))?;
        let nonce = Nonce::try_from(nonce).map_err(|_| DecodeError::Truncated)?;
        let number = <[u8; 8]>::try_from(number).map_err(|_| DecodeError::Truncated)?;
        let server = ServerId::new(u64::from_le_bytes(number)).ok_or(DecodeError::Number)?;
        Ok((nonce, server))
    }

    pub(super) fn parts(&self) -> Result<(&[u8], Option<Proof>), GreetingError> {
        let mut reader = Reader::new(&self.body);
        let (body, proof) = (reader.bytes()?, reader.bytes()?);
        reader.end()?;
        let proof = match proof {
            [] => None,
            some => Some(Proof::try_from(some).map_err(|_| DecodeError::Truncated)?),
        };
        Ok((body, proof))
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// If something else comes, or the connection breaks.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self, GreetingError> {
        let mut magic = [0; 8];
        from.read_exact(&mut magic).await?;
        let form = [Form::First, Form::Second]
            .into_iter()
            .find(|form| *form.magic() == magic)
            .ok_or(GreetingError::Magic)?;
        let length = from.read_u32_le().await?;
        let crc = from.read_u32_le().await?;
        if length > MAX_BYTES {
            return Err(GreetingError::Body("it is too long"));
        }
        let mut body = vec![0; length as usize];
        from.read_exact(&mut body).await?;
        if crc32c(&body) != crc {
            return Err(GreetingError::Body("it was damaged on its way"));
        }
        Ok(Self { form, body })
    }

    /// Writes it.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let length = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(self.body.len() + 16);
        bytes.extend_from_slice(self.form.magic());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&self.body).to_le_bytes());
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes).await?;
        to.flush().await
    }
}

fn draw() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::super::greeting::tests::greeting;
    use super::*;

    fn server(number: u64) -> ServerId {
        ServerId::new(number).expect("a number")
    }

    /// A stranger at the address of server 3 passes on what it hears between
    /// a dialler that means server 3 and server 1.
    #[tokio::test]
    async fn a_proof_for_one_server_is_none_for_another() {
        for says in [1, 3] {
            let (mut dials, mut stranger) = tokio::io::duplex(1 << 20);
            let (mut passes, mut listens) = tokio::io::duplex(1 << 20);
            let (greeting, secret, meant) = (greeting(), sum(1), Some(server(3)));
            // Its end is closed when it is through.
            let dialling =
                async move { greet(&mut dials, Form::Second, meant, &greeting, &secret).await };
            let between = async {
                let opening = Piece::read(&mut stranger).await.expect("an opening");
                opening.write(&mut passes).await.expect("it is read");
                let opened = Piece::read(&mut passes).await.expect("an opening");
                let (nonce, _) = opened.opened().expect("whole");
                let told = Piece::opening_of(&nonce, server(says));
                told.write(&mut stranger).await.expect("it is read");
                if let Ok(greeting) = Piece::read(&mut stranger).await {
                    greeting.write(&mut passes).await.expect("it is read");
                }
                drop((stranger, passes));
            };
            let accepting = introduced(&mut listens, server(1));
            let (dialled, (), accepted) = tokio::join!(dialling, between, accepting);
            if says == 1 {
                let elsewhere =
                    matches!(dialled, Err(GreetingError::Elsewhere(it)) if it == server(1));
                assert!(elsewhere, "{dialled:?}");
                continue;
            }
            let accepted = accepted.expect("a greeting");
            let expected = sum(1).prove(&accepted.transcript, Side::Dialler);
            assert_ne!(accepted.proof, expected, "the proof was passed on");
        }
    }

    /// What the two sides hear of each other.
    async fn exchange(
        form: Form,
        provers: [&Prover; 2],
        answer: &GreetingAnswer,
    ) -> (Introduced, GreetingReply) {
        let (mut dials, mut listens) = tokio::io::duplex(1 << 20);
        let accepting = async {
            let mut introduced = introduced(&mut listens, server(1))
                .await
                .expect("a greeting");
            let answered = introduced.answer(&mut listens, answer, provers[1]).await;
            answered.expect("written");
            introduced
        };
        let greeting = greeting();
        let dialling = greet(&mut dials, form, Some(server(1)), &greeting, provers[0]);
        let (introduced, answered) = tokio::join!(accepting, dialling);
        (introduced, answered.expect("an answer"))
    }

    fn sum(key: u8) -> Prover {
        Prover::new(move |bytes| [crc32c(bytes).to_le_bytes()[0] ^ key; 32])
    }

    #[tokio::test]
    async fn both_sides_prove_themselves_over_what_both_have_seen() {
        let answer = GreetingAnswer::Welcome(Box::new(greeting()));
        let (dialler, acceptor) = exchange(Form::Second, [&sum(1), &sum(2)], &answer).await;
        assert_eq!(
            (dialler.form, &dialler.greeting),
            (Form::Second, &greeting())
        );
        assert_eq!(acceptor.answer, answer);
        assert_eq!(dialler.transcript, acceptor.transcript);
        let proof = sum(1).prove(&acceptor.transcript, Side::Dialler);
        assert_eq!(dialler.proof, proof);
        let proof = sum(2).prove(&dialler.transcript, Side::Acceptor);
        assert_eq!(acceptor.proof, proof);
        // The same words on another connection are another transcript.
        let (again, _) = exchange(Form::Second, [&sum(1), &sum(2)], &answer).await;
        let side = Side::Dialler;
        assert_ne!(again.transcript.bytes(side), dialler.transcript.bytes(side));
    }

    #[tokio::test]
    async fn the_first_form_says_no_more_than_it_did() {
        let refused = GreetingAnswer::Refused("no".into());
        let none = Prover::default();
        let (dialler, acceptor) = exchange(Form::First, [&none, &none], &refused).await;
        assert_eq!((dialler.form, dialler.proof), (Form::First, None));
        assert_eq!(dialler.greeting.details, None);
        assert_eq!(acceptor.answer, refused);
        // What only the second form has is put into the words of the first.
        let back = GreetingAnswer::SetBack(tenure_alpo::StorageId::from_u128(7), "no".into());
        for answer in [GreetingAnswer::Later("no".into()), back] {
            let (_, acceptor) = exchange(Form::First, [&none, &none], &answer).await;
            assert_eq!(acceptor.answer, refused);
            let (_, acceptor) = exchange(Form::Second, [&none, &none], &answer).await;
            assert_eq!(acceptor.answer, answer);
        }
    }

    /// A release that knows the first form alone reads eight bytes and goes.
    #[tokio::test]
    async fn who_is_not_answered_can_tell_that_from_an_answer() {
        let (mut dials, mut listens) = tokio::io::duplex(1 << 20);
        let (greeting, prover) = (greeting(), Prover::default());
        let old = async move {
            let mut magic = [0; 8];
            listens.read_exact(&mut magic).await.expect("a magic");
            assert_eq!(magic, *b"tenure-2");
        };
        let greeted = greet(&mut dials, Form::Second, None, &greeting, &prover);
        let (_, answered) = tokio::join!(old, greeted);
        let unanswered = matches!(answered, Err(GreetingError::Unanswered(_)));
        assert!(unanswered, "{answered:?}");
    }

    #[tokio::test]
    async fn it_reads_what_it_wrote_and_no_flipped_bit() {
        let mut bytes = Vec::new();
        let wanted = Piece::proven(&greeting().encode(), Some([7; 32]));
        wanted.write(&mut bytes).await.expect("written");
        assert_eq!(Piece::read(&mut &bytes[..]).await.expect("read"), wanted);
        assert_eq!(wanted.greeted().expect("a greeting"), greeting());
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A digit of the magic may become that of the other form.
            let read = Piece::read(&mut &bad[..]).await.and_then(|it| it.greeted());
            assert!(read.is_err(), "bit {bit}");
        }
    }

    #[tokio::test]
    async fn another_protocol_is_told_from_damage() {
        let error = Piece::read(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).await;
        assert!(matches!(error, Err(GreetingError::Magic)));
    }
}
