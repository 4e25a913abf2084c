//! The URL: which cluster and namespace, who we are, whom to believe, and what may be
//! shown.
//!
//! There are three forms. `kubernetes://` alone is the cluster that this process runs
//! in, as the pod's service account: its address is in two variables, and the token,
//! the authorities and the namespace are files that the kubelet keeps.
//! `kubernetes://?kubeconfig=FILE` is what a kubeconfig says (`kubeconfig.rs`).
//! `kubernetes://host:port/namespace` names it all.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Identity};

use super::access::{Access, Pem};
use super::files::read;
use super::kubeconfig;
use super::token::Token;
use crate::error::StoreError;
use crate::store::resolver::Resolver;
use crate::store::{causes, system_authorities, url_options};

/// How many hosts a URL may name.
const HOSTS_MAX: usize = 16;
/// The port of a host that none is named for.
const PORT: u16 = 6443;
/// Where a pod finds its cluster, as the kubelet says it.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
const SERVICE_PORT: &str = "KUBERNETES_SERVICE_PORT";
/// Where the kubelet puts what belongs to the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The namespace of those who name none.
const NAMESPACE: &str = "default";
/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection is kept that nothing uses. A write that meets one that has
/// been closed is of unknown outcome.
const KEPT_IDLE: Duration = Duration::from_secs(30);
/// How often a silent connection is asked whether it lives.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);

/// What a URL says.
pub(super) struct Settings {
    /// What a request's path is appended to, in the order of the URL: the first that
    /// answers is used.
    pub(super) servers: Vec<String>,
    pub(super) namespace: String,
    pub(super) token: Token,
    authorities: Option<Vec<Certificate>>,
    own: Option<Identity>,
    /// What may be shown of it.
    shown: String,
}

/// The options of a URL.
#[derive(Default)]
struct Options {
    namespace: Option<String>,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    service_account: Option<PathBuf>,
    token: Option<PathBuf>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    tls: Option<bool>,
}

fn wrong(found: impl fmt::Display) -> StoreError {
    StoreError::broken(format!(
        "expected kubernetes:// in a pod, kubernetes://?kubeconfig=FILE[&context=NAME], or \
         kubernetes://host:6443[,host…]/namespace with token_file= or cert_file= and key_file=, \
         perhaps with namespace=, ca_file= and tls=off, found {found}"
    ))
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("kubernetes://")
            .ok_or_else(|| wrong("no // after kubernetes:"))?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Not repeated: it may be a secret.
        if address.contains('@') {
            return Err(wrong("a URL with an @; a token is given by token_file="));
        }
        let options = Options::parse(query)?;
        let mut access = match (&options.kubeconfig, address) {
            (Some(_), "") => options.of_kubeconfig()?,
            (Some(_), _) => return Err(wrong("both a host and kubeconfig=")),
            (None, "") => options.in_pod()?,
            (None, _) => options.of_address(address)?,
        };
        if options.namespace.is_some() {
            access.namespace.clone_from(&options.namespace);
        }
        Self::of(access)
    }

    fn of(access: Access) -> Result<Self, StoreError> {
        let namespace = access.namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        if !super::names::is_label(&namespace) {
            return Err(wrong(format_args!("the namespace {namespace:?}")));
        }
        let hosts = access.servers.iter().map(|server| {
            let (_, host) = server.split_once("://").unwrap_or(("", server));
            host
        });
        let hosts = hosts.collect::<Vec<_>>().join(",");
        Ok(Self {
            shown: format!("kubernetes://{hosts}?namespace={namespace}"),
            servers: access.servers,
            namespace,
            token: access.token,
            authorities: access.authorities.map(authorities).transpose()?,
            own: access.own.map(identity).transpose()?,
        })
    }

    /// The client: it follows no redirect, uses no proxy and sends each request once.
    pub(super) fn http(&self) -> Result<reqwest::Client, StoreError> {
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_WITHIN)
            .dns_resolver(Arc::new(Resolver))
            .pool_idle_timeout(KEPT_IDLE)
            .tcp_keepalive(KEEPALIVE_EVERY)
            .tcp_nodelay(true);
        let is_tls = self.servers.iter().any(|it| it.starts_with("https:"));
        client = match &self.authorities {
            Some(authorities) => client.tls_certs_only(authorities.clone()),
            // Nothing is verified, so the system's authorities are not looked for.
            None if !is_tls => client.tls_certs_only([]),
            None => {
                system_authorities::check()?;
                client
            }
        };
        if let Some(own) = self.own.clone() {
            client = client.identity(own);
        }
        client.build().map_err(|error| {
            let why = causes::text(&error);
            StoreError::broken(format!(
                "{self}: expected certificates and a key that can be used: {why}"
            ))
        })
    }
}

impl Options {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = url_options::unescape(value).map_err(wrong)?;
            match name {
                "namespace" => options.namespace = Some(value),
                "kubeconfig" => options.kubeconfig = Some(value.into()),
                "context" => options.context = Some(value),
                "service_account" => options.service_account = Some(value.into()),
                "token_file" => options.token = Some(value.into()),
                "ca_file" => options.authorities = Some(value.into()),
                "cert_file" => options.certificate = Some(value.into()),
                "key_file" => options.key = Some(value.into()),
                "tls" => options.tls = Some(url_options::on(name, &value)?),
                _ => return Err(wrong(format_args!("the unknown option {name:?}"))),
            }
        }
        Ok(options)
    }

    /// Refuses what the form of the URL leaves no room for.
    fn only(&self, named: &[(&str, bool)], form: &str) -> Result<(), StoreError> {
        match named.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(wrong(format_args!("{option}= beside {form}"))),
            None => Ok(()),
        }
    }

    fn names_credentials(&self) -> [(&'static str, bool); 5] {
        [
            ("token_file", self.token.is_some()),
            ("ca_file", self.authorities.is_some()),
            ("cert_file", self.certificate.is_some()),
            ("key_file", self.key.is_some()),
            ("tls", self.tls.is_some()),
        ]
    }

    fn of_kubeconfig(&self) -> Result<Access, StoreError> {
        self.only(&self.names_credentials(), "kubeconfig=")?;
        let named = [("service_account", self.service_account.is_some())];
        self.only(&named, "kubeconfig=")?;
        let file = self.kubeconfig.as_deref().unwrap_or_else(|| Path::new(""));
        kubeconfig::access(file, self.context.as_deref())
    }

    /// The cluster whose pod we are.
    fn in_pod(&self) -> Result<Access, StoreError> {
        self.only(&self.names_credentials(), "no host")?;
        self.only(&[("context", self.context.is_some())], "no kubeconfig=")?;
        let variable = |name: &str| {
            let value = std::env::var(name).ok().filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                wrong(format_args!(
                    "kubernetes:// without a host and no variable {name}: this is no pod of \
                     Kubernetes"
                ))
            })
        };
        let (host, port) = (variable(SERVICE_HOST)?, variable(SERVICE_PORT)?);
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let host = url_options::with_port(&format!("{host}:{port}"), PORT)
            .ok_or_else(|| wrong(format_args!("${SERVICE_HOST}={host:?}, port {port:?}")))?;
        let account = self.service_account.as_deref();
        let account = account.unwrap_or_else(|| Path::new(SERVICE_ACCOUNT));
        let namespace = read("service_account", &account.join("namespace"))?;
        let namespace = String::from_utf8(namespace).unwrap_or_default();
        Ok(Access {
            servers: vec![format!("https://{host}")],
            namespace: Some(namespace.trim().to_owned()),
            token: Token::in_file(&account.join("token"))?,
            authorities: Some(Pem::in_file("service_account", &account.join("ca.crt"))?),
            own: None,
        })
    }

    /// What the URL itself names.
    fn of_address(&self, address: &str) -> Result<Access, StoreError> {
        let named = [
            ("context", self.context.is_some()),
            ("service_account", self.service_account.is_some()),
        ];
        self.only(&named, "a host")?;
        let files = [
            ("ca_file", self.authorities.is_some()),
            ("cert_file", self.certificate.is_some()),
            ("key_file", self.key.is_some()),
        ];
        url_options::refuse_files_without_tls(self.tls, &files)?;
        let (hosts, path) = address.split_once('/').unwrap_or((address, ""));
        let namespace = path.strip_suffix('/').unwrap_or(path);
        let scheme = match self.tls {
            Some(false) => "http",
            _ => "https",
        };
        let server = |host| {
            let whole = url_options::with_port(host, PORT);
            let whole = whole.ok_or_else(|| wrong(format_args!("the host {host:?}")))?;
            Ok(format!("{scheme}://{whole}"))
        };
        let servers = hosts.split(',').map(server);
        let servers = servers.collect::<Result<Vec<_>, StoreError>>()?;
        if servers.len() > HOSTS_MAX {
            return Err(wrong(format_args!("{} hosts", servers.len())));
        }
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let certificate = Pem::in_file("cert_file", certificate)?;
                Some(certificate.with_key(&Pem::in_file("key_file", key)?))
            }
            (None, None) => None,
            _ => return Err(wrong("one of cert_file= and key_file= without the other")),
        };
        let token = self.token.as_deref().map(Token::in_file).transpose()?;
        let authorities = self.authorities.as_deref();
        Ok(Access {
            servers,
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            token: token.unwrap_or_default(),
            authorities: authorities
                .map(|it| Pem::in_file("ca_file", it))
                .transpose()?,
            own,
        })
    }
}

fn authorities(pem: Pem) -> Result<Vec<Certificate>, StoreError> {
    let expected = format!(
        "{}: expected certificates of authorities in PEM",
        pem.source
    );
    match Certificate::from_pem_bundle(&pem.bytes) {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(StoreError::broken(format!("{expected}, found none"))),
        Err(error) => Err(StoreError::broken(format!("{expected}: {error}"))),
    }
}

fn identity(pem: Pem) -> Result<Identity, StoreError> {
    Identity::from_pem(&pem.bytes).map_err(|error| {
        let (source, why) = (&pem.source, causes::text(&error));
        StoreError::broken(format!(
            "{source}: expected a certificate and its key in PEM: {why}"
        ))
    })
}

/// Without the token.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_hosts_and_namespace() {
        let all = Settings::parse("kubernetes://h1,[::1]:99/fleet?tls=off").expect("a URL");
        assert_eq!(all.servers, ["http://h1:6443", "http://[::1]:99"]);
        assert_eq!(all.namespace, "fleet");
        assert_eq!(
            all.to_string(),
            "kubernetes://h1:6443,[::1]:99?namespace=fleet"
        );
        let plain = Settings::parse("kubernetes://h").expect("a URL");
        assert_eq!(plain.servers, ["https://h:6443"]);
        assert_eq!(plain.namespace, "default");
        let named = Settings::parse("kubernetes://h/?namespace=n").expect("a URL");
        assert_eq!(named.namespace, "n");
    }

    #[test]
    fn a_token_is_never_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        std::fs::write(&path, "hunter2\n").expect("written");
        let url = format!("kubernetes://h/n?token_file={}", path.display());
        let parsed = Settings::parse(&url).expect("a URL");
        let shown = format!("{parsed} {parsed:?} {:?}", parsed.token);
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        let many = format!("kubernetes://{}/n", vec!["h"; HOSTS_MAX + 1].join(","));
        for url in [
            "kubernetes:h",
            "kubernetes://",
            "kubernetes://h,,g/n",
            "kubernetes://h:port/n",
            "kubernetes://h/a/b",
            "kubernetes://h/Upper",
            "kubernetes://hunter2@h/n",
            "kubernetes://h/n?token=hunter2",
            "kubernetes://h/n?tls=maybe",
            "kubernetes://h/n?ca_file=/does/not/exist",
            "kubernetes://h/n?tls=off&ca_file=/dev/null",
            "kubernetes://h/n?cert_file=/x&key_file=/y&tls=off",
            "kubernetes://h/n?ca_file=/dev/null",
            "kubernetes://h/n?cert_file=/none",
            "kubernetes://h/n?token_file=/does/not/exist",
            "kubernetes://h/n?context=x",
            "kubernetes://h/n?kubeconfig=/does/not/exist",
            "kubernetes://?kubeconfig=/does/not/exist",
            "kubernetes://?kubeconfig=/x&token_file=/y",
            "kubernetes://?token_file=/y",
            "kubernetes://?context=x",
            &many,
        ] {
            let refused = Settings::parse(url);
            let Err(StoreError::Broken(why)) = refused else {
                panic!("{url} was taken: {refused:?}");
            };
            let why = why.to_string();
            assert!(why.contains("expected"), "{url}: {why}");
            assert!(!why.contains("hunter2"), "{why}");
            assert!(
                !url.ends_with("ca_file=/dev/null") || why.contains("ca_file"),
                "{why}"
            );
            assert_eq!(
                url.contains("tls=off"),
                why.contains("found tls=off"),
                "{why}"
            );
        }
    }
}
