//! What is typed to run servers, and to prepare for that.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What `tenure serve` takes: typed, or under `[serve]` in a file of settings.
#[derive(Clone, Default, Debug, Args, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Serve {
    /// This server's number in the cluster, from 1.
    #[arg(long, env = "TENURE_ID", value_name = "N")]
    pub(crate) id: Option<u64>,
    /// Where servers reach each other, this one included: 1=HOST:PORT,2=HOST:PORT,…
    #[arg(
        long,
        env = "TENURE_PEERS",
        value_name = "ID=HOST:PORT",
        value_delimiter = ','
    )]
    #[serde(deserialize_with = "crate::settings_values::peers")]
    pub(crate) peers: Vec<String>,
    /// Where to listen for other servers, if that is not this server's address in --peers.
    #[arg(long, env = "TENURE_LISTEN_PEERS", value_name = "HOST:PORT")]
    pub(crate) listen_peers: Option<String>,
    /// The directory of what this server must not forget.
    #[arg(long, env = "TENURE_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Where clients come [default: 127.0.0.1:7400].
    #[arg(long, env = "TENURE_LISTEN", value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// What clients are told to connect to, if that is not --listen.
    #[arg(long, env = "TENURE_ADVERTISE_CLIENT", value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// A host name that clients reach this server by over HTTP, beside those in its addresses, the
    /// machine's own and localhost; may be repeated. Without tokens, HTTP under other names is
    /// refused: it may be a web page's.
    #[arg(long, env = "TENURE_HOST", value_name = "HOST", value_delimiter = ',')]
    pub(crate) host: Vec<String>,
    /// The least time without a word from the leader before another stands.
    #[arg(long, env = "TENURE_ELECTION_TIMEOUT", value_name = "DURATION")]
    #[serde(deserialize_with = "crate::settings_values::duration_text")]
    pub(crate) election_timeout: Option<String>,
    /// How often an idle leader is heard of [default: a fifth of the election timeout].
    #[arg(long, env = "TENURE_HEARTBEAT", value_name = "DURATION")]
    #[serde(deserialize_with = "crate::settings_values::duration_text")]
    pub(crate) heartbeat: Option<String>,
    /// Answer reads by the leader's lease; excludes the fast detection of crashes.
    #[arg(long, env = "TENURE_LEASE_READS")]
    pub(crate) lease_reads: bool,
    /// This server's certificate (PEM); with --tls-key and --tls-ca, both ports speak TLS.
    #[arg(long, env = "TENURE_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key that belongs to it.
    #[arg(long, env = "TENURE_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The authority of servers and clients. All three are read again when they change.
    #[arg(long, env = "TENURE_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// The authority of servers, if they have one of their own [default: that of --tls-ca].
    #[arg(long, env = "TENURE_TLS_PEER_CA", value_name = "FILE")]
    pub(crate) tls_peer_ca: Option<PathBuf>,
    /// Lists of revoked certificates (CRLs, PEM) of servers and clients, one of each authority: what
    /// is on one is refused, and its connections end. Read again when it changes.
    #[arg(long, env = "TENURE_TLS_CRL", value_name = "FILE")]
    pub(crate) tls_crl: Option<PathBuf>,
    /// Take servers' certificates that name no number, as earlier releases made them, for those of
    /// any server. The next release does not.
    #[arg(long, env = "TENURE_TLS_ANY_SERVER")]
    pub(crate) tls_any_server: bool,
    /// A secret that all servers of the cluster share, at least 16 bytes: by it they know each
    /// other without TLS.
    #[arg(long, env = "TENURE_PEER_SECRET_FILE", value_name = "FILE")]
    pub(crate) peer_secret_file: Option<PathBuf>,
    /// Let servers in that do not prove that they know the secret, until all have been given it.
    #[arg(long, env = "TENURE_PEER_SECRET_OPTIONAL")]
    pub(crate) peer_secret_optional: bool,
    /// Let clients in that have no certificate.
    #[arg(long, env = "TENURE_TLS_ANY_CLIENT")]
    pub(crate) tls_any_client: bool,
    /// The tokens that clients need (TOML, `tenure token` adds to it) [default:
    /// on loopback addresses one that this user's servers share and `tenure`
    /// finds by itself; else none, and any program that reaches the port may do
    /// everything]. Read again when it changes.
    #[arg(long, env = "TENURE_TOKENS", value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Ask for no token on loopback addresses either: every user and program of this machine may
    /// do everything.
    #[arg(long, env = "TENURE_NO_TOKEN")]
    pub(crate) no_token: bool,
    /// How many sessions one token may have, or without tokens one address [default: 4096].
    #[arg(long, env = "TENURE_SESSIONS_EACH", value_name = "N")]
    pub(crate) sessions_each: Option<u64>,
    /// How many bytes the keys and values of all registers may have together [default:
    /// 2147483648]. A write that needs more is refused.
    #[arg(long, env = "TENURE_QUOTA_BYTES", value_name = "BYTES")]
    pub(crate) quota_bytes: Option<u64>,
    /// How many registers there may be [default: 1048576].
    #[arg(long, env = "TENURE_QUOTA_REGISTERS", value_name = "N")]
    pub(crate) quota_registers: Option<u64>,
    /// Note who changed members, rights, leaderships, and sessions of others: lines of JSON in this
    /// file, or `stderr` [default: nowhere]. At 16 MiB the file is put aside; 7 older ones stay.
    #[arg(long, env = "TENURE_AUDIT", value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// Listen on other than loopback addresses without TLS.
    #[arg(long, env = "TENURE_INSECURE")]
    pub(crate) insecure: bool,
}

impl Serve {
    /// The same, with what a file says where nothing was typed.
    pub(crate) fn or(&self, file: &Self) -> Self {
        let (typed, file) = (self.clone(), file.clone());
        let mut peers = [typed.peers, file.peers].into_iter();
        let mut hosts = [typed.host, file.host].into_iter();
        Self {
            id: typed.id.or(file.id),
            peers: peers.find(|it| !it.is_empty()).unwrap_or_default(),
            listen_peers: typed.listen_peers.or(file.listen_peers),
            data: typed.data.or(file.data),
            listen: typed.listen.or(file.listen),
            advertise: typed.advertise.or(file.advertise),
            host: hosts.find(|it| !it.is_empty()).unwrap_or_default(),
            election_timeout: typed.election_timeout.or(file.election_timeout),
            heartbeat: typed.heartbeat.or(file.heartbeat),
            lease_reads: typed.lease_reads || file.lease_reads,
            tls_cert: typed.tls_cert.or(file.tls_cert),
            tls_key: typed.tls_key.or(file.tls_key),
            tls_ca: typed.tls_ca.or(file.tls_ca),
            tls_peer_ca: typed.tls_peer_ca.or(file.tls_peer_ca),
            tls_crl: typed.tls_crl.or(file.tls_crl),
            tls_any_server: typed.tls_any_server || file.tls_any_server,
            peer_secret_file: typed.peer_secret_file.or(file.peer_secret_file),
            peer_secret_optional: typed.peer_secret_optional || file.peer_secret_optional,
            tls_any_client: typed.tls_any_client || file.tls_any_client,
            tokens: typed.tokens.or(file.tokens),
            no_token: typed.no_token || file.no_token,
            sessions_each: typed.sessions_each.or(file.sessions_each),
            quota_bytes: typed.quota_bytes.or(file.quota_bytes),
            quota_registers: typed.quota_registers.or(file.quota_registers),
            audit: typed.audit.or(file.audit),
            insecure: typed.insecure || file.insecure,
        }
    }
}

/// What `tenure certs` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tenure certs certs --server 1 --name server-1 --host 10.0.0.1 --host db-1.internal
  tenure serve --id 1 … --tls-cert certs/server-1.pem --tls-key certs/server-1.key \\
    --tls-ca certs/ca.pem
  tenure certs certs --name client
  tenure certs certs --revoke certs/client.pem      # certs/ca.crl, for --tls-crl")]
pub(crate) struct Certs {
    /// Where to write them.
    pub(crate) dir: PathBuf,
    /// What the certificate is called, and its files [default: server, or client].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Make it a server's, with this number (--id of `tenure serve`); without, it is a client's.
    /// May be repeated.
    #[arg(long, value_name = "N")]
    pub(crate) server: Vec<u64>,
    /// A host name or address a server is reached by; may be repeated [default: localhost,
    /// 127.0.0.1, ::1].
    #[arg(long, value_name = "HOST")]
    pub(crate) host: Vec<String>,
    /// How long it is good for, 100 years at most.
    #[arg(long, default_value = "365d", value_name = "DURATION")]
    pub(crate) valid: String,
    /// Make no certificate, but revoke the one in this file: ca.crl lists what was revoked, for
    /// --tls-crl of servers and crl= of clients. May be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "server", "host"])]
    pub(crate) revoke: Vec<PathBuf>,
}

/// What `tenure dev` takes.
#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// How many servers, 1 to 7.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) nodes: u16,
    /// The first of the ports where clients come; servers use those 100 above.
    #[arg(long, default_value_t = 7400, value_name = "PORT")]
    pub(crate) port: u16,
    /// Keep the data here, and go on with what is there.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Stop and start servers at random, as often as this.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "5s")]
    pub(crate) chaos: Option<String>,
    /// Ask clients for no token: every user and program of this machine may do everything.
    #[arg(long, env = "TENURE_NO_TOKEN")]
    pub(crate) no_token: bool,
}

/// What `tenure token` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure token payroll --campaign payroll --tokens tokens.toml --out payroll.token
  tenure token orders --log-right append --tokens tokens.toml --out orders.token
  tenure token web-agent --operate web --tokens tokens.toml --out web-agent.token
  tenure token operator --admin --tokens tokens.toml --out operator.token
  tenure serve … --tokens tokens.toml
  tenure run payroll --store tenure://h1:7400 --token-file payroll.token -- ./pay")]
pub(crate) struct Token {
    /// What it is called, in the servers' file and in messages.
    pub(crate) name: String,
    /// Let it read registers whose keys begin so; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) read: Vec<String>,
    /// Let it read and write registers whose keys begin so; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) write: Vec<String>,
    /// Let it stand in elections whose names begin so; may be repeated.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) campaign: Vec<String>,
    /// Let it write what the group of this name runs, as an agent does: so it may run commands
    /// on all machines of the group. With * at the end, all groups that begin so. May be
    /// repeated.
    #[arg(long, value_name = "GROUP")]
    pub(crate) operate: Vec<String>,
    /// What it may do with the user log. (--log is how to log, everywhere.)
    #[arg(long, value_name = "RIGHT")]
    pub(crate) log_right: Option<LogRight>,
    /// Let it do everything.
    #[arg(long)]
    pub(crate) admin: bool,
    /// How many bytes the registers that it may write may have together, no
    /// matter who wrote them; a write of it that needs more is refused
    /// [default: no quota of its own].
    #[arg(long, value_name = "BYTES")]
    pub(crate) quota_bytes: Option<u64>,
    /// How many of these registers there may be [default: no quota of its own].
    #[arg(long, value_name = "N")]
    pub(crate) quota_registers: Option<u64>,
    /// Add what servers must know to this file; it is made if there is none.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Write the token to this new file, which only its owner reads [default: print it].
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LogRight {
    /// Read it.
    Read,
    /// Read it and append to it.
    Append,
}
