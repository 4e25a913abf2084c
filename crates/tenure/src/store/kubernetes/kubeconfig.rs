//! What a kubeconfig says of one context: the server, whom to believe, and who we are.
//!
//! A token, a file with one, or a certificate and its key are taken. What asks another
//! program, or a person, is refused (`exec`, `auth-provider`, a user with a password),
//! and so is what would trust anybody (`insecure-skip-tls-verify`).

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::access::{Access, Pem};
use super::files::read;
use super::token::Token;
use super::yaml;
use crate::error::StoreError;

/// A part of a kubeconfig that is looked into.
struct Part<'a> {
    /// Where the file lies: what it names is named from there.
    folder: &'a Path,
    called: &'static str,
    value: &'a Value,
}

fn wrong(found: impl std::fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "kubeconfig=: expected a kubeconfig as `kubectl config view --raw --minify --flatten` \
         writes it, found {found}"
    ))
}

/// How the cluster of a context is reached; of the current one, if none is named.
pub(super) fn access(path: &Path, context: Option<&str>) -> Result<Access, StoreError> {
    let bytes = read("kubeconfig=", path)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("bytes that are not UTF-8"))?;
    let config = yaml::parse(&text).map_err(wrong)?;
    let current = config.get("current-context").and_then(Value::as_str);
    let Some(context) = context.or(current).filter(|name| !name.is_empty()) else {
        return Err(wrong("no current-context; name one by context="));
    };
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let part = |list: &str, called: &'static str, name: &str| {
        let all = config.get(list).and_then(Value::as_array);
        let mut all = all.into_iter().flatten();
        let found = all.find(|it| it.get("name").and_then(Value::as_str) == Some(name));
        let value = found.and_then(|it| it.get(called));
        let value = value.ok_or_else(|| wrong(format_args!("no {called} {name:?}")))?;
        Ok::<_, StoreError>(Part {
            folder,
            called,
            value,
        })
    };
    let context = part("contexts", "context", context)?;
    let cluster = part("clusters", "cluster", context.needed("cluster")?)?;
    let user = part("users", "user", context.needed("user")?)?;
    cluster.refuse(&["insecure-skip-tls-verify", "tls-server-name", "proxy-url"])?;
    user.refuse(&["exec", "auth-provider", "username", "password", "as"])?;
    let server = server(cluster.needed("server")?)?;
    let (authorities, own) = (cluster.data("certificate-authority")?, user.own()?);
    // The token would be sent in the clear to a server that was to prove who it is.
    if server.starts_with("http://") && (authorities.is_some() || own.is_some()) {
        return Err(wrong(
            "a server of http:// beside a certificate, which is of use with https:// alone",
        ));
    }
    Ok(Access {
        servers: vec![server.to_owned()],
        namespace: context.text("namespace").map(str::to_owned),
        token: user.token()?,
        authorities,
        own,
    })
}

/// The address of a server, to which paths are appended.
fn server(address: &str) -> Result<&str, StoreError> {
    let address = address.trim_end_matches('/');
    // Not repeated: what stands before the @ may be a password.
    if address.contains('@') {
        return Err(wrong(
            "a server with an @ in its address; a token is given by token or tokenFile of the user",
        ));
    }
    let is_http = address.starts_with("https://") || address.starts_with("http://");
    // A query would swallow the path that is appended.
    if !is_http || address.contains(['?', '#', ' ']) {
        let shown = address.split(['?', '#']).next().unwrap_or_default();
        return Err(wrong(format_args!(
            "the server {shown:?}, or more behind it"
        )));
    }
    Ok(address)
}

impl Part<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        let text = self.value.get(name)?.as_str()?;
        (!text.is_empty()).then_some(text)
    }

    fn needed(&self, name: &str) -> Result<&str, StoreError> {
        let missing = || wrong(format_args!("a {} without {name}", self.called));
        self.text(name).ok_or_else(missing)
    }

    fn refuse(&self, names: &[&str]) -> Result<(), StoreError> {
        let is_set = |name: &str| match self.value.get(name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty() && text != "false",
            Some(_) => true,
        };
        match names.iter().find(|name| is_set(name)) {
            Some(name) => Err(wrong(format_args!(
                "a {} with {name}, which tenure does not use",
                self.called
            ))),
            None => Ok(()),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(|path| self.folder.join(path))
    }

    /// What stands in the kubeconfig itself, or in a file that it names.
    fn data(&self, name: &str) -> Result<Option<Pem>, StoreError> {
        if let Some(text) = self.text(&format!("{name}-data")) {
            // Not repeated: it may be a key.
            let data = STANDARD.decode(text);
            let bytes = data.map_err(|_| wrong(format_args!("{name}-data in no base64")))?;
            let source = format!("{name}-data of the kubeconfig");
            return Ok(Some(Pem { bytes, source }));
        }
        let file = self.path(name);
        file.map(|path| Pem::in_file(name, &path)).transpose()
    }

    fn token(&self) -> Result<Token, StoreError> {
        match (self.path("tokenFile"), self.text("token")) {
            (Some(path), _) => Token::in_file(&path),
            (None, Some(token)) => Token::fixed(token),
            (None, None) => Ok(Token::default()),
        }
    }

    fn own(&self) -> Result<Option<Pem>, StoreError> {
        match (self.data("client-certificate")?, self.data("client-key")?) {
            (Some(certificate), Some(key)) => Ok(Some(certificate.with_key(&key))),
            (None, None) => Ok(None),
            _ => Err(wrong(
                "one of client-certificate and client-key without the other",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority-data: UEVN
    server: https://h:6443/
  name: c
contexts:
- context: {\"cluster\": \"c\", \"namespace\": \"fleet\", \"user\": \"u\"}
  name: here
- context:
    cluster: c
    user: program
  name: other
current-context: here
users:
- name: u
  user:
    token: hunter2
- name: program
  user:
    exec:
      command: aws
";

    fn read_as(text: &str, context: Option<&str>) -> Result<Access, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config");
        std::fs::write(&path, text).expect("written");
        access(&path, context).map_err(|error| error.to_string())
    }

    #[test]
    fn a_context_names_a_cluster_a_user_and_a_namespace() {
        for context in [None, Some("here")] {
            let found = read_as(CONFIG, context).expect("a context");
            assert_eq!(found.servers, ["https://h:6443"]);
            assert_eq!(found.namespace.as_deref(), Some("fleet"));
            let authorities = found.authorities.expect("some");
            assert_eq!(authorities.bytes, b"PEM");
            assert_eq!(
                authorities.source,
                "certificate-authority-data of the kubeconfig"
            );
            assert!(found.own.is_none());
            assert_eq!(format!("{:?}", found.token), "a token");
        }
    }

    #[test]
    fn what_is_not_used_is_refused() {
        let changed = |from: &str, to: &str| CONFIG.replace(from, to);
        for (text, context, words) in [
            (CONFIG.to_owned(), Some("other"), "with exec"),
            (CONFIG.to_owned(), Some("none"), "no context \"none\""),
            (
                changed("current-context: here", ""),
                None,
                "no current-context",
            ),
            (
                changed("cluster\": \"c", "cluster\": \"d"),
                None,
                "no cluster \"d\"",
            ),
            (changed("user\": \"u", "user\": \"v"), None, "no user \"v\""),
            (changed("server: https", "server: ftp"), None, "the server"),
            (
                changed("https://h", "https://u:hunter2@h"),
                None,
                "a server with an @",
            ),
            (changed("h:6443/", "h/?token=hunter2"), None, "the server"),
            (changed("https://h", "http://h"), None, "a server of http"),
            (changed("UEVN", "UEV"), None, "in no base64"),
            (
                changed("server:", "insecure-skip-tls-verify: true\n    server:"),
                None,
                "insecure-skip-tls-verify",
            ),
            (
                changed("token: hunter2", "client-key-data: UEVN"),
                None,
                "without the other",
            ),
            (changed("token: hunter2", "tokenFile: none"), None, "none"),
            ("a: {".to_owned(), None, "line 2"),
            (String::new(), None, "no current-context"),
        ] {
            let refused = read_as(&text, context).err().expect("an error");
            assert!(refused.contains(words), "{words}: {refused}");
            assert!(
                refused.contains("expected") && !refused.contains("hunter2"),
                "{refused}"
            );
        }
    }
}
