//! Servers that know their clients by tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Value};
use tenure::store::{Expect, Key, Stamp, Tenure, Write};
use tenure::{Election, StoreError};
use tenure_api::v1::{self, Cause};
use tenure_client::{Client, Config, Error, Token, WatchEvent, WatchTarget};
use tenure_server::fingerprint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::codec::{DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::servers::{PATIENCE, Servers, cause};

/// Servers that want tokens: each is its own name, with these rights.
pub(crate) async fn guarded(count: u64, tokens: &[(&str, &str)]) -> (Servers, PathBuf) {
    guarded_with(count, tokens, |_| {}).await
}

/// The same with what `change` makes of their settings.
pub(crate) async fn guarded_with(
    count: u64,
    tokens: &[(&str, &str)],
    change: impl Fn(&mut tenure_server::Config),
) -> (Servers, PathBuf) {
    let mut servers = Servers::found(0, count);
    let file = servers.dir.path().join("tokens.toml");
    write(&file, tokens);
    let all = servers.configs[&count].peers.clone();
    for number in 1..=count {
        let config = servers.configs.get_mut(&number).expect("a server");
        config.tokens = Some(file.clone());
        config.peers = all.clone();
        change(config);
        servers.start(number);
    }
    servers.leader().await;
    (servers, file)
}

pub(crate) fn write(file: &Path, tokens: &[(&str, &str)]) {
    let mut text = String::new();
    for (name, rights) in tokens {
        let sha256 = fingerprint(name);
        text += &format!("[tokens.{name}]\nsha256 = \"{sha256}\"\n{rights}\n");
    }
    std::fs::write(file, text).expect("written");
}

pub(crate) fn client(servers: &Servers, token: Option<Token>) -> Client {
    let listen: Vec<&str> = servers.configs.values().map(|it| &*it.listen).collect();
    let mut config = Config::default().timeout(PATIENCE);
    config.token = token;
    Client::new(&listen.join(","), &config).expect("a client")
}

pub(crate) fn named(servers: &Servers, token: &str) -> Client {
    client(servers, Some(Token::Text(token.into())))
}

pub(crate) fn put(key: &str, value: &[u8]) -> Write {
    Write {
        key: Key::new(key).expect("a key"),
        expect: Expect::Absent,
        value: value.into(),
        stamp: Stamp::Now,
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Cause {
    match result {
        Err(Error::Refused { cause, .. }) => cause,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

/// Messages without a field, and answers that nobody looks at.
#[derive(Default)]
struct Empty;

impl tonic::codec::Codec for Empty {
    type Encode = ();
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Empty {
    type Item = ();
    type Error = tonic::Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        Ok(())
    }
}

impl Decoder for Empty {
    type Item = ();
    type Error = tonic::Status;

    fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<()>, tonic::Status> {
        Ok(Some(()))
    }
}

pub(crate) async fn call(
    servers: &Servers,
    path: &str,
    token: Option<&str>,
) -> Result<(), tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(servers.channel(1).await);
    grpc.ready().await.expect("it is there");
    let mut request = tonic::Request::new(());
    if let Some(token) = token {
        let header = format!("Bearer {token}").parse().expect("a header");
        request.metadata_mut().insert("authorization", header);
    }
    let path = path.parse().expect("a path");
    let called = grpc.unary(request, path, Empty);
    let answer = tokio::time::timeout(PATIENCE, called).await;
    answer.expect("it is answered").map(|_| ())
}

#[tokio::test]
async fn no_call_of_the_interface_is_done_for_whom_it_is_not() {
    let (servers, _) = guarded(1, &[("nothing", "")]).await;
    let pool = DescriptorPool::decode(tenure_api::DESCRIPTOR).expect("the interface");
    let mut seen = 0;
    for service in pool.services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            for token in [None, Some("unknown")] {
                let barred = call(&servers, &path, token).await.expect_err(&path);
                assert_eq!(barred.code(), tonic::Code::Unauthenticated, "{path}");
                assert_eq!(cause(&barred), Cause::Unauthenticated, "{path}");
            }
            seen += 1;
            // An exchange is judged one request at a time
            // (`no_request_of_an_exchange…`), and how a server is, everybody learns who is known.
            if ["Exchange", "Status", "Metrics"].contains(&method.name()) {
                call(&servers, &path, Some("nothing")).await.ok();
                continue;
            }
            let denied = call(&servers, &path, Some("nothing")).await;
            let denied = denied.expect_err(&path);
            assert_eq!(denied.code(), tonic::Code::PermissionDenied, "{path}");
            assert_eq!(cause(&denied), Cause::Denied, "{path}");
            let http = format!("/v1/{}", lower(service.name(), method.name()));
            if method.name() != "Backup" {
                assert_eq!(post(&servers, &http, None).await, 401, "{http}");
                assert_eq!(post(&servers, &http, Some("nothing")).await, 403, "{http}");
            }
        }
    }
    assert!(
        seen >= 20,
        "expected the whole interface, found {seen} calls"
    );
    // Who asks after a server's health has no token.
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/leader", 200)] {
        assert_eq!(http(&servers, "GET", path, None).await, status, "{path}");
    }
    assert_eq!(http(&servers, "GET", "/metrics", None).await, 401);
    assert_eq!(
        http(&servers, "GET", "/metrics", Some("nothing")).await,
        200
    );
    let status = "/v1/cluster/status";
    assert_eq!(http(&servers, "GET", status, Some("unknown")).await, 401);
    assert_eq!(http(&servers, "GET", status, Some("nothing")).await, 200);
}

/// `Registers`, `CompareAndSwap` as `registers/compare_and_swap`.
fn lower(service: &str, method: &str) -> String {
    let mut text = service.to_lowercase() + "/";
    for (at, c) in method.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

async fn post(servers: &Servers, path: &str, token: Option<&str>) -> u16 {
    http(servers, "POST", path, token).await
}

/// The status of an HTTP call without a body.
async fn http(servers: &Servers, method: &str, path: &str, token: Option<&str>) -> u16 {
    let address = servers.running[&1].address();
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let token = token.map(|it| format!("Authorization: Bearer {it}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{}Content-Length: 0\r\nConnection: close\r\n\r\n",
        token.unwrap_or_default()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    status.unwrap_or_else(|| panic!("expected a status, found {text}"))
}

#[tokio::test]
async fn a_client_does_what_its_token_allows_and_hears_of_the_rest_at_once() {
    let tokens = [
        ("reader", "read = [\"a/\"]"),
        ("writer", "write = [\"a/\"]"),
        ("logger", "log = \"append\""),
        ("boss", "admin = true"),
    ];
    let (servers, _) = guarded(3, &tokens).await;
    let [reader, writer, logger, boss] = tokens.map(|(name, _)| named(&servers, name));
    writer
        .compare_and_swap(put("a/1", b"1"))
        .await
        .expect("written");
    let written = writer.compare_and_swap(put("b/1", b"1")).await;
    assert_eq!(refused(written), Cause::Denied);
    // What was refused leaves no gap behind.
    writer
        .compare_and_swap(put("a/2", b"2"))
        .await
        .expect("written");
    assert_eq!(refused(writer.append("x").await), Cause::Denied);

    let key = Key::new("a/1").expect("a key");
    assert!(reader.read(&key).await.expect("read").register.is_some());
    assert_eq!(
        reader
            .list("a/", None, 0)
            .await
            .expect("a list")
            .registers
            .len(),
        2
    );
    assert_eq!(refused(reader.list("", None, 0).await), Cause::Denied);
    let written = reader.compare_and_swap(put("a/3", b"3")).await;
    assert_eq!(refused(written), Cause::Denied);
    assert_eq!(refused(reader.read_log(1, 1).await), Cause::Denied);
    let mut changes = reader.watch(WatchTarget::Prefix("a/".into()));
    let WatchEvent::Began(began) = changes.next().await else {
        panic!("expected the state");
    };
    assert_eq!(began.len(), 2);
    let mut others = reader.watch(WatchTarget::Prefix(String::new()));
    let WatchEvent::Down(why) = others.next().await else {
        panic!("expected that nobody tells");
    };
    assert!(why.contains("the right to read"), "{why}");

    assert_eq!(logger.append("one").await, Ok(1));
    assert_eq!(refused(logger.read(&key).await), Cause::Denied);
    let entry = logger.tail(1).next().await.expect("it goes on");
    assert_eq!(&*entry.expect("an entry").data, b"one");
    assert_eq!(refused(logger.transfer(None).await), Cause::Denied);
    // On a busy machine nobody may be found in time who could have it.
    while let Err(error) = boss.transfer(None).await {
        let again = refused::<()>(Err(error));
        assert_eq!(again, Cause::NotHandedOver);
    }

    // All of them ask the server that leads now; none lets a stranger in.
    assert_eq!(logger.append("two").await, Ok(2));
    for token in [None, Some(Token::Text("stranger".into()))] {
        let stranger = client(&servers, token);
        assert_eq!(refused(stranger.append("x").await), Cause::Unauthenticated);
        assert_eq!(refused(stranger.read(&key).await), Cause::Unauthenticated);
        let ended = stranger.tail(0).next().await.expect("a reason");
        assert_eq!(refused(ended), Cause::Unauthenticated);
    }
}

#[tokio::test]
async fn a_candidate_needs_the_right_to_campaign_and_no_other() {
    let (servers, _) = guarded(1, &[("pay", "campaign = [\"pay\"]")]).await;
    let store: std::sync::Arc<dyn tenure::store::Store> =
        std::sync::Arc::new(Tenure::with(named(&servers, "pay")));
    let mut election = Election::builder(store.clone(), "payroll")
        .start()
        .expect("it stands");
    let leadership = tokio::time::timeout(PATIENCE, election.elected()).await;
    let leadership = leadership.expect("in time").expect("elected");
    assert!(leadership.is_valid());
    let key = Key::new("elections/other").expect("a key");
    let read = store.read(&key, PATIENCE).await;
    assert!(matches!(read, Err(StoreError::Broken(_))), "{read:?}");
}

#[tokio::test]
async fn tokens_come_and_go_without_a_restart() {
    let (servers, file) = guarded(1, &[("old", "log = \"append\"")]).await;
    let secret = servers.dir.path().join("token");
    std::fs::write(&secret, "old\n").expect("written");
    let client = client(&servers, Some(Token::File(secret.clone())));
    assert_eq!(client.append("one").await, Ok(1));
    let mut tail = client.tail(1);
    tail.next().await.expect("it goes on").expect("an entry");

    write(&file, &[("new", "log = \"append\"")]);
    // The stream that is up is asked again, as is the tail.
    let cut = async {
        loop {
            match client.append("more").await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => return error,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, cut).await.expect("cut off");
    assert_eq!(refused::<()>(Err(error)), Cause::Unauthenticated);
    let ended = async {
        loop {
            match tail.next().await {
                Some(Ok(_)) => {}
                other => return other,
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("it ends");
    assert_eq!(refused(ended.expect("a reason")), Cause::Unauthenticated);

    std::fs::write(&secret, "new").expect("written");
    let again = async {
        while client.append("again").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("let in");
    // What makes no sense leaves the last good table in use.
    std::fs::write(&file, "nonsense").expect("written");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    client.append("still").await.expect("let in");
}

/// Waits until a token is known, or is not any more.
async fn until(servers: &Servers, token: &str, known: bool) {
    let path = "/v1/cluster/status";
    while (http(servers, "GET", path, Some(token)).await == 200) != known {
        tokio::task::yield_now().await;
    }
}

/// A token is replaced while both the old and the new one are known.
#[tokio::test]
async fn a_tail_goes_on_with_the_token_that_replaces_its_own() {
    const LOG: &str = "log = \"append\"";
    let boss = ("boss", "admin = true");
    let (servers, file) = guarded(1, &[boss, ("old", LOG)]).await;
    let secret = servers.dir.path().join("token");
    std::fs::write(&secret, "old").expect("written");
    let client = client(&servers, Some(Token::File(secret.clone())));
    let mut tail = client.tail(1);
    let boss_client = named(&servers, "boss");
    assert_eq!(boss_client.append("one").await, Ok(1));
    tail.next().await.expect("it goes on").expect("an entry");

    write(&file, &[boss, ("old", LOG), ("new", LOG)]);
    until(&servers, "new", true).await;
    std::fs::write(&secret, "new").expect("written");
    write(&file, &[boss, ("new", LOG)]);
    until(&servers, "old", false).await;
    while client.leader_status().await.is_err() {
        tokio::task::yield_now().await;
    }
    // The tail began with the old one.
    assert_eq!(boss_client.append("two").await, Ok(2));
    let entry = tail.next().await.expect("it goes on").expect("an entry");
    assert_eq!((entry.number, &*entry.data), (2, &b"two"[..]));
}

/// Each request that an exchange can carry, by the interface: of each kind one,
/// and of commands one for each operation and one without.
fn requests() -> Vec<v1::Request> {
    let pool = DescriptorPool::decode(tenure_api::DESCRIPTOR).expect("the interface");
    // Each message of this name with another one of the choice set.
    let each = |name: &str, choice: &str| {
        let message = pool.get_message_by_name(name).expect("a message");
        let choice = message.oneofs().find(|it| it.name() == choice);
        let fields: Vec<_> = choice.expect("a choice").fields().collect();
        let with = move |field: FieldDescriptor| {
            let mut message = DynamicMessage::new(message.clone());
            message.set_field(&field, Value::default_value_for_field(&field));
            (field, message)
        };
        fields.into_iter().map(with)
    };
    let mut messages = Vec::new();
    for (field, message) in each("tenure.v1.Request", "what") {
        if field.name() == "command" {
            for (_, command) in each("tenure.v1.Command", "operation") {
                let mut message = message.clone();
                message.set_field(&field, Value::Message(command));
                messages.push(message);
            }
        }
        messages.push(message);
    }
    let request = |(number, message): (u64, DynamicMessage)| v1::Request {
        number,
        ..v1::Request::decode(&*message.encode_to_vec()).expect("a request")
    };
    (1..).zip(messages).map(request).collect()
}

#[tokio::test]
async fn no_request_of_an_exchange_is_done_for_whom_it_is_not() {
    use v1::pipeline_client::PipelineClient;
    let (servers, _) = guarded(1, &[("nothing", "")]).await;
    let mut client = PipelineClient::new(servers.channel(1).await);
    let requests = requests();
    assert!(requests.len() >= 10, "{requests:?}");
    let count = requests.len();
    let stream = tokio_stream::iter([v1::Requests { requests }]);
    let mut request = tonic::Request::new(stream);
    let header = "Bearer nothing".parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    let answers = client.exchange(request).await.expect("a stream");
    let mut answers = answers.into_inner();
    let mut denied = 0;
    while let Some(message) = answers.message().await.expect("answers") {
        for answer in message.answers {
            let Some(v1::answer::What::Error(error)) = answer.what else {
                panic!("expected an error, found {answer:?}");
            };
            assert_eq!(error.cause(), Cause::Denied, "{error:?}");
            denied += 1;
        }
    }
    assert_eq!(denied, count);
}

/// A leader whose election is held by a session leads as long as the session
/// lives, and whatever the session does keeps it alive: so all of it is refused
/// once its caller may not write the register any more.
#[tokio::test]
async fn who_may_not_campaign_any_more_holds_no_election_by_its_session() {
    let rights = "campaign = [\"pay\"]\nlog = \"append\"";
    let (servers, file) = guarded(1, &[("pay", rights), ("other", rights)]).await;
    let holder = named(&servers, "pay");
    let session = |client: Client| -> std::sync::Arc<dyn tenure::store::Store> {
        std::sync::Arc::new(Tenure::with(client))
    };
    let listen: Vec<&str> = servers.configs.values().map(|it| &*it.listen).collect();
    let config = Config::default().token(Token::Text("pay".into()));
    let config = config.timeout(PATIENCE).hold_by_session(true);
    let by_session = Client::new(&listen.join(","), &config).expect("a client");
    let stand = |store, name: &str| {
        let election = Election::builder(store, "payroll").name(name);
        let election = election.lease(Duration::from_secs(2));
        election.start().expect("it stands")
    };
    let mut first = stand(session(by_session), "first");
    let leadership = tokio::time::timeout(PATIENCE, first.elected()).await;
    let leadership = leadership.expect("in time").expect("elected");
    let mut second = stand(session(named(&servers, "other")), "second");
    let mut events = first.events();

    write(&file, &[("pay", "log = \"append\""), ("other", rights)]);
    let why = tokio::time::timeout(PATIENCE, leadership.cancelled()).await;
    why.expect("it is told to stop");
    drop(leadership);
    // It is told why, and of nobody who changed the register.
    let mut told = Vec::new();
    let reason = async {
        loop {
            let event = events.next().await.expect("it goes on");
            if let tenure::election::Event::Trouble { failure, .. } = event {
                told.push(failure.why.to_string());
                if told.iter().any(|why| why.contains("campaign in")) {
                    return;
                }
            }
        }
    };
    let reason = tokio::time::timeout(PATIENCE, reason).await;
    reason.unwrap_or_else(|_| panic!("expected the right that it lacks, found {told:?}"));
    let somebody = told.iter().find(|why| why.contains("somebody else"));
    assert_eq!(somebody, None);
    let next = tokio::time::timeout(PATIENCE, second.elected()).await;
    assert!(next.expect("in time").expect("elected").is_valid());
    // The token itself is as good as it was for what it is for.
    assert_eq!(holder.append("one").await, Ok(1));
}
