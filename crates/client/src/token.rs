//! The token that every call carries, and that identifies the client.
//!
//! A client that was given none, and dials this machine, shows that it has the
//! token of its user (`own_token_channel.rs`). A token in a file is read again when the file changes, so that it can be
//! replaced without a restart. It is a secret: it is printed nowhere, and it
//! should travel over TLS, or stay on the machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_runtime::tls::Reloaded;
use tonic::codegen::http::{HeaderValue, Request, header::AUTHORIZATION};

use super::Error;

/// The longest token, in bytes.
const BYTES_MAX: usize = 1_024;

/// A token, or where to find it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Token {
    /// The token itself.
    Text(String),
    /// A file with nothing else in it but white space around it; read again
    /// when it changes.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// The value of the header `authorization`.
pub(super) type Header = HeaderValue;

/// Puts the token into calls.
#[derive(Clone)]
pub(super) struct Bearer(Option<Source>);

#[derive(Clone)]
enum Source {
    Text(Header),
    File(Arc<Reloaded<Header>>),
}

impl Bearer {
    /// Reads the file, if the token is in one.
    pub(super) fn new(token: Option<&Token>) -> Result<Self, Error> {
        let source = match token {
            None => None,
            Some(Token::Text(text)) => {
                let header = header(text).map_err(|why| Error::invalid(format!("token: {why}")));
                Some(Source::Text(header?))
            }
            Some(Token::File(path)) => {
                let file = path.clone();
                let renewed = Reloaded::open(
                    "contents of the token's file",
                    vec![file.clone()],
                    move || read(&file),
                );
                Some(Source::File(Arc::new(renewed?)))
            }
        };
        Ok(Self(source))
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Bearer(…)" } else { "-" })
    }
}

impl Bearer {
    /// Whether there is a token.
    pub(super) const fn is_given(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn carry<T>(&self, call: &mut Request<T>) {
        let header = match &self.0 {
            None => return,
            Some(Source::Text(header)) => header.clone(),
            Some(Source::File(file)) => file.current(),
        };
        call.headers_mut().insert(AUTHORIZATION, header);
    }
}

fn read(path: &Path) -> Result<Header, String> {
    let text = tenure_runtime::small::read_text(path);
    let text = text.map_err(|why| format!("{}: {why}", path.display()))?;
    header(text.trim()).map_err(|why| format!("{}: {why}", path.display()))
}

/// What calls carry that say `token`.
pub(super) fn header(token: &str) -> Result<Header, String> {
    let good =
        (1..=BYTES_MAX).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
    let header = format!("Bearer {token}").parse::<Header>().ok();
    match header.filter(|_| good) {
        Some(mut header) => {
            header.set_sensitive(true);
            Ok(header)
        }
        // What was found stays a secret.
        None => Err(format!(
            "expected a token of 1 to {BYTES_MAX} letters, digits and signs, found {} bytes that \
             are none",
            token.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_word_and_is_not_printed() {
        let secret = "tenure_secret";
        let bearer = Bearer::new(Some(&Token::Text(secret.into()))).expect("a token");
        let printed = format!("{bearer:?} {:?}", Token::Text(secret.into()));
        assert!(!printed.contains(secret), "{printed}");
        let mut call = Request::new(());
        bearer.carry(&mut call);
        assert!(!format!("{:?}", call.headers()).contains(secret));
        let header = call.headers().get(AUTHORIZATION).expect("it carries it");
        assert_eq!(header.as_bytes(), b"Bearer tenure_secret");
        for bad in ["", "two words", "line\nbreak", "ü", &"x".repeat(1_025)] {
            let error = Bearer::new(Some(&Token::Text(bad.into()))).expect_err("no token");
            let error = error.to_string();
            assert!(error.contains("expected a token"), "{error}");
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }

    #[test]
    fn a_file_is_read_without_the_white_space_around_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let missing = Bearer::new(Some(&Token::File(path.clone()))).expect_err("no file");
        assert!(missing.to_string().contains("token"), "{missing}");
        std::fs::write(&path, "  secret\n").expect("written");
        let bearer = Bearer::new(Some(&Token::File(path))).expect("a token");
        let mut call = Request::new(());
        bearer.carry(&mut call);
        let header = call.headers().get(AUTHORIZATION).expect("it carries it");
        assert_eq!(header.as_bytes(), b"Bearer secret");
    }
}
