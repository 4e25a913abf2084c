//! TLS on the connections of a server.
//!
//! Servers prove themselves to each other with certificates of one authority,
//! in both directions; clients may have to as well. What both sides share, and
//! the client's side, is in [`tenure_runtime::tls`].
//!
//! Connections that are up are judged again when the authorities or the lists
//! of revoked certificates change ([`again`]): one whose other side would be
//! refused by now ends. Each is judged by the verifier that has let it in.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};
use tenure_alpo::ServerId;
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tenure_runtime::tls::{
    CertificateAndKey, FilesError, Judge, Judging, MaybeTlsStream, Recheck, Reloaded,
    RevocationLists, again, client, connect, explain_tls_error, revocation, roots,
    verify_server_certificate,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::certificate_expiry::OwnCertificate;
use super::peer_identity::ServerNames;
use super::plaintext_detection;
use super::tls_files::TlsFiles;

/// How long a peer that is not let in may take to read why, and how much of
/// what it still says is listened to, in pieces of [`PARTING_BYTES`].
const PARTING_WITHIN: Duration = Duration::from_secs(1);
const PARTING_BYTES: usize = 1024;
const PARTING_PIECES: usize = 64;

/// What comes of a server's files.
#[derive(Clone)]
struct TlsConfigs {
    /// A peer that connects must have a certificate.
    strict: Arc<ServerConfig>,
    /// A peer that connects may have one.
    lenient: Arc<ServerConfig>,
    /// Of other servers.
    peers: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    server_names: Arc<ServerNames>,
    verifiers: Arc<Verifiers>,
    /// What this side shows of itself.
    shown: Arc<OwnCertificate>,
}

/// By whom certificates that were shown are judged again.
struct Verifiers {
    clients: Arc<dyn ClientCertVerifier>,
    peers: Arc<dyn ClientCertVerifier>,
    /// To whom this side connects.
    servers: Arc<dyn ServerCertVerifier>,
}

/// What is expected of the certificates of other servers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PeerRules {
    /// The authorities of servers, if these have some of their own; else they
    /// are those of clients.
    pub authority: Option<PathBuf>,
    /// Take certificates that name no server's number, as earlier releases
    /// made them, for those of any server.
    pub any_server: bool,
    /// Whose certificate this side's own must be.
    pub own: Option<ServerId>,
    /// Lists of revoked certificates (CRLs), of servers and of clients: one of
    /// each authority. `None` if none is revoked.
    pub revoked: Option<PathBuf>,
}

/// How often this server's own certificate is looked at, whether it expires.
const LOOK_EVERY: Duration = Duration::from_secs(12 * 60 * 60);

/// Makes TLS of connections: of those that come, and of those to other
/// servers.
#[derive(Debug)]
pub struct Tls {
    made: Reloaded<TlsConfigs>,
    judging: Judging,
    authority: PathBuf,
    /// When it was last looked whether the certificate expires.
    looked: Mutex<Instant>,
}

/// Whether a client has to have a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// It must.
    Certificate,
    /// It must have one of the authority of servers.
    Server,
    /// It may.
    Nothing,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that says which file, what was expected and what was found.
    pub fn open(files: TlsFiles) -> Result<Self, FilesError> {
        Self::open_with(files, PeerRules::default())
    }

    /// The same, of a server, with what is expected of other servers.
    ///
    /// # Errors
    /// As there; and if this side's own certificate is not as others expect.
    pub fn open_with(files: TlsFiles, rules: PeerRules) -> Result<Self, FilesError> {
        let own = [&files.certificate, &files.key, &files.authority];
        let server_names = rules.authority.iter().chain(&rules.revoked);
        let all = own.into_iter().chain(server_names).cloned();
        let all: Vec<PathBuf> = all.collect();
        let authority = rules.authority.as_ref().unwrap_or(&files.authority).clone();
        let make = move || {
            let both = both(&files, &rules)?;
            both.shown.log();
            Ok(both)
        };
        Ok(Self {
            made: Reloaded::open("certificates", all, make)?,
            judging: Judging::default(),
            authority,
            looked: Mutex::new(clock::boot()),
        })
    }

    /// What is in use now. Every now and then it is said that it expires: a
    /// server may run for longer than its certificate is good.
    fn current(&self) -> TlsConfigs {
        let made = self.made.current();
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::boot();
        if now.since(*looked) >= LOOK_EVERY {
            *looked = now;
            made.shown.log();
        }
        made
    }

    /// Why `error` means that one side does not believe the other, if it
    /// does: what was expected, what was found and what to do.
    pub fn explain_tls_error(&self, error: &io::Error) -> Option<String> {
        explain_tls_error(error, &self.authority)
    }

    /// Whether the certificate that was shown on `line` proves that the other
    /// side is server `server`.
    ///
    /// # Errors
    /// What was expected, what was found and what to do.
    pub fn proves(&self, line: &MaybeTlsStream, server: ServerId) -> Result<(), String> {
        let shown = match line {
            MaybeTlsStream::Plain(_) => None,
            MaybeTlsStream::Tls(stream) => stream.get_ref().1.peer_certificates(),
        };
        self.made.current().server_names.proves(shown, server)
    }

    /// The side that was connected to.
    ///
    /// # Errors
    /// If the other side does not prove itself, or speaks no TLS.
    pub async fn accept(
        &self,
        mut stream: TcpStream,
        demand: Demand,
    ) -> io::Result<MaybeTlsStream> {
        if let Some(why) = plaintext_detection::refuse_plaintext(&mut stream).await? {
            close_gracefully(stream).await;
            return Err(why);
        }
        let made = self.current();
        let config = match demand {
            Demand::Certificate => &made.strict,
            Demand::Server => &made.peers,
            Demand::Nothing => &made.lenient,
        };
        let acceptor = TlsAcceptor::from(Arc::clone(config));
        match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => {
                let judge = move |made: &TlsConfigs, shown: &_, as_of| {
                    let verifier = match demand {
                        Demand::Server => &made.verifiers.peers,
                        Demand::Certificate | Demand::Nothing => &made.verifiers.clients,
                    };
                    revocation::judge(&**verifier, shown, as_of)
                };
                Ok(MaybeTlsStream::secured(
                    stream.into(),
                    self.again(made, judge),
                ))
            }
            Err((error, stream)) => {
                close_gracefully(stream).await;
                Err(error)
            }
        }
    }

    /// The side that connects, to `address`, `host:port`.
    ///
    /// # Errors
    /// If the other side does not prove that it is that host.
    pub async fn connect(&self, stream: TcpStream, address: &str) -> io::Result<MaybeTlsStream> {
        let made = self.current();
        let connected = connect(Arc::clone(&made.client), stream, address).await;
        let (stream, host) = connected.map_err(|error| {
            let below = error.get_ref();
            match below.and_then(|below| below.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::InvalidMessage(_)) => {
                    io::Error::new(error.kind(), plaintext_detection::FOUND_NO_TLS)
                }
                _ => error,
            }
        })?;
        let judge = move |made: &TlsConfigs, shown: &_, as_of| {
            verify_server_certificate(&*made.verifiers.servers, shown, &host, as_of)
        };
        Ok(MaybeTlsStream::secured(stream, self.again(made, judge)))
    }

    /// Has a connection that was made with these files judged again by those
    /// that replace them.
    fn again(&self, made: TlsConfigs, judge: impl Judge<TlsConfigs>) -> Recheck {
        again((&self.made, &self.judging), made, TlsConfigs::is, judge)
    }
}

impl TlsConfigs {
    /// Whether these files are those.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.verifiers, &other.verifiers)
    }
}

/// The side that was connected to, without TLS.
///
/// # Errors
/// If the other side speaks TLS; it is answered something else, so that
/// it finds that this one does not.
pub async fn accept_plain(mut stream: TcpStream) -> io::Result<MaybeTlsStream> {
    if let Some(why) = plaintext_detection::refuse_tls(&mut stream).await? {
        close_gracefully(stream).await;
        return Err(why);
    }
    Ok(MaybeTlsStream::Plain(stream))
}

/// Lets the other side read why it is not let in. A connection that is closed
/// while something on it is unread is reset, and a reset overtakes the reason.
async fn close_gracefully(mut stream: TcpStream) {
    let listen = async {
        stream.shutdown().await?;
        let mut rest = [0; PARTING_BYTES];
        for _ in 0..PARTING_PIECES {
            if stream.read(&mut rest).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // It may have gone, or be slow: then it misses the reason.
    let _ = timeout(PARTING_WITHIN, listen).await;
}

fn both(files: &TlsFiles, rules: &PeerRules) -> Result<TlsConfigs, String> {
    let own = CertificateAndKey::read(&files.certificate, &files.key)?;
    let clients = Arc::new(roots(&files.authority)?);
    let authority = rules.authority.as_ref().unwrap_or(&files.authority);
    let peers = Arc::new(roots(authority)?);
    let server_names = ServerNames {
        roots: Arc::clone(&peers),
        any_server: rules.any_server,
    };
    if let Some(server) = rules.own {
        let proves = server_names.proves(Some(&own.certificates), server);
        proves.map_err(|why| format!("{}: {why}", files.certificate.display()))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let lists = RevocationLists::read(rules.revoked.as_ref())?;
    let verifiers = Verifiers {
        clients: lists.client_verifier(&clients, (false, false))?,
        peers: lists.client_verifier(&peers, (false, false))?,
        servers: lists.server_verifier(&peers)?,
    };
    lists.check_own_certificate(&*verifiers.peers, &own.certificates, &files.certificate)?;
    let server = |verifier: &Arc<dyn ClientCertVerifier>| {
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(Arc::clone(verifier))
            .with_single_cert(own.certificates.clone(), own.key.clone_key());
        let mut config = config.map_err(|error| own.key_mismatch(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A session that is resumed shows no certificate: one that has expired
        // would be believed for as long as its holder comes again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok::<_, String>(Arc::new(config))
    };
    let verifier = lists.client_verifier(&peers, (false, true))?;
    let files = TlsFiles {
        authority: authority.clone(),
        ..files.clone()
    };
    let shown = OwnCertificate::new(files, own.certificates.clone(), verifier);
    Ok(TlsConfigs {
        strict: server(&verifiers.clients)?,
        lenient: server(&lists.client_verifier(&clients, (true, false))?)?,
        peers: server(&verifiers.peers)?,
        client: Arc::new(client(&verifiers.servers, Some(&own))?),
        verifiers: Arc::new(verifiers),
        server_names: Arc::new(server_names),
        shown: Arc::new(shown),
    })
}
