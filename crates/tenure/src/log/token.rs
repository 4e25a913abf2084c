//! By what a client is known: a token that every call carries.
//!
//! A token in a file is read again when the file changes, so that it can be
//! replaced without a restart. It is a secret: it is printed nowhere, and it
//! should travel over TLS, or stay on the machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;

use super::Error;
use crate::transport::Renewed;

/// The longest token, in bytes.
const BYTES_MAX: usize = 1_024;

/// A connection whose calls carry the token.
pub(super) type Channel = InterceptedService<tonic::transport::Channel, Bearer>;

/// A token, or where to find it.
#[derive(Clone, PartialEq, Eq)]
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

type Header = MetadataValue<Ascii>;

/// Puts the token into calls.
#[derive(Clone)]
pub(super) struct Bearer(Option<Source>);

#[derive(Clone)]
enum Source {
    Text(Header),
    File(Arc<Renewed<Header>>),
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
                let renewed = Renewed::open(
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

impl Interceptor for Bearer {
    fn call(&mut self, mut call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        let header = match &self.0 {
            None => return Ok(call),
            Some(Source::Text(header)) => header.clone(),
            Some(Source::File(file)) => file.current(),
        };
        call.metadata_mut().insert("authorization", header);
        Ok(call)
    }
}

fn read(path: &Path) -> Result<Header, String> {
    let text = crate::small::read_text(path);
    let text = text.map_err(|why| format!("{}: {why}", path.display()))?;
    header(text.trim()).map_err(|why| format!("{}: {why}", path.display()))
}

fn header(token: &str) -> Result<Header, String> {
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
        let call = bearer
            .clone()
            .call(tonic::Request::new(()))
            .expect("a call");
        assert!(!format!("{:?}", call.metadata()).contains(secret));
        let header = call.metadata().get("authorization").expect("it carries it");
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
        let mut bearer = Bearer::new(Some(&Token::File(path))).expect("a token");
        let call = bearer.call(tonic::Request::new(())).expect("a call");
        let header = call.metadata().get("authorization").expect("it carries it");
        assert_eq!(header.as_bytes(), b"Bearer secret");
    }
}
