//! Who writes a group's registers runs commands on its machines: that takes
//! a right of its own, by whichever way a call comes.

use std::sync::Arc;
use std::time::Duration;

use tenure::error::Cause as Why;
use tenure::ha::{Deployment, Manager, RunHandle, Workload};
use tenure::store::Tenure;
use tenure_api::v1::{self, Cause, registers_client::RegistersClient};
use tenure_api::v1::{command, pipeline_client::PipelineClient, request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Channel;

use crate::servers::{PATIENCE, Servers, error};
use crate::tokens::{guarded, named};

/// A message that carries this token.
fn by<T>(token: &str, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let header = format!("Bearer {token}").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    request
}

fn swap(key: &str) -> v1::Swap {
    v1::Swap {
        key: key.to_owned(),
        value: "x".into(),
        ..v1::Swap::default()
    }
}

/// The version that is written, or why it is not.
async fn write(
    client: &mut RegistersClient<Channel>,
    token: &str,
    key: &str,
) -> Result<u64, v1::Error> {
    let request = v1::CompareAndSwapRequest {
        swap: Some(swap(key)),
        numbered: None,
    };
    let written = client.compare_and_swap(by(token, request)).await;
    let written = written.map_err(|status| error(&status))?.into_inner();
    assert!(written.swapped, "{key} is not there yet");
    Ok(written.version)
}

async fn delete(
    client: &mut RegistersClient<Channel>,
    token: &str,
    key: &str,
    expect: u64,
) -> Result<bool, v1::Error> {
    let request = v1::DeleteRequest {
        key: key.to_owned(),
        expect,
        ..v1::DeleteRequest::default()
    };
    let deleted = client.delete(by(token, request)).await;
    let deleted = deleted.map_err(|status| error(&status))?;
    Ok(deleted.into_inner().deleted)
}

/// The status of a call over HTTP, and its body.
async fn http(servers: &Servers, token: &str, path: &str, body: &str) -> (u16, String) {
    let address = servers.running[&1].address();
    let stream = tokio::net::TcpStream::connect(address).await;
    let mut stream = stream.expect("it listens");
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("answered");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    (status.expect("a status"), text)
}

/// Why a stream refuses a swap of this key, the deletion of it, and to open a
/// session, if it does.
async fn streamed(servers: &Servers, token: &str, key: &str) -> Vec<Option<Cause>> {
    let delete = v1::DeleteCommand {
        key: key.to_owned(),
        expect: 1,
    };
    let commands = [
        command::Operation::Swap(swap(key)),
        command::Operation::Delete(delete),
    ];
    let commands = commands.map(|operation| {
        request::What::Command(v1::Command {
            session: 1,
            serial: 1,
            outstanding: 1,
            operation: Some(operation),
        })
    });
    let all = commands.into_iter().chain([request::What::Open(10_000)]);
    let numbered = |(number, what)| v1::Request {
        number,
        what: Some(what),
        ..v1::Request::default()
    };
    let requests: Vec<_> = (0..).zip(all).map(numbered).collect();
    let count = requests.len();
    let stream = tokio_stream::iter([v1::Requests { requests }]);
    let mut client = PipelineClient::new(servers.channel(1).await);
    let answers = client.exchange(by(token, stream)).await;
    let mut answers = answers.expect("a stream").into_inner();
    let mut told = vec![None; count];
    while let Some(message) = answers.message().await.expect("answers") {
        for answer in message.answers {
            if let Some(v1::answer::What::Error(error)) = answer.what {
                told[answer.number as usize] = Some(error.cause());
            }
        }
    }
    told
}

#[tokio::test]
async fn groups_are_written_by_the_right_to_operate_and_by_no_other() {
    let tokens = [
        ("writer", "operate = []\nwrite = [\"\"]"),
        ("agent", "operate = [\"web\"]"),
        ("spectator", "operate = []\nread = [\"ha/\"]"),
        ("boss", "admin = true"),
        // Of a file of the release before.
        ("old", "write = [\"ha/\"]"),
    ];
    let (servers, _) = guarded(1, &tokens).await;
    let mut client = servers.registers(1).await;
    let denied = |refused: v1::Error| {
        assert_eq!(refused.cause(), Cause::Denied, "{refused:?}");
        refused.message
    };
    // Waits for the version that notes owners; a stream would be told to ask
    // again.
    let open = "{\"ttl_millis\": 10000}";
    http(&servers, "boss", "/v1/sessions/open", open).await;
    for (token, key, allowed) in [
        ("writer", "ha/web/view", false),
        ("writer", "ha/web", false),
        ("writer", "state/x", true),
        ("spectator", "ha/web/view", false),
        ("agent", "ha/web-2/view", false),
        ("agent", "ha/web", false),
        ("agent", "state/x", false),
        ("agent", "ha/web/view", true),
        ("old", "ha/web/view", true),
        ("boss", "ha/web/view", true),
        ("boss", "ha/web", true),
    ] {
        let body = format!("{{\"swap\": {{\"key\": {key:?}, \"value\": \"eA==\"}}}}");
        let path = "/v1/registers/compare_and_swap";
        let gone = format!("{{\"key\": {key:?}, \"expect\": 1}}");
        let deleting = "/v1/registers/delete";
        let told = streamed(&servers, token, key).await;
        if allowed {
            let version = write(&mut client, token, key).await.expect("written");
            let deleted = delete(&mut client, token, key, version).await;
            assert!(deleted.expect("deleted"), "{token} {key}");
            let (status, text) = http(&servers, token, path, &body).await;
            assert_eq!(status, 200, "{token} {key}: {text}");
            let version = version_in(&text);
            let gone = format!("{{\"key\": {key:?}, \"expect\": {version}}}");
            let (status, text) = http(&servers, token, deleting, &gone).await;
            assert_eq!(status, 200, "{token} {key}: {text}");
            assert!(text.contains("\"deleted\":true"), "{text}");
            // Its session has no owner; that is found out after the right.
            assert_ne!(told[0], Some(Cause::Denied), "{token} {key}");
            assert_ne!(told[1], Some(Cause::Denied), "{token} {key}");
        } else {
            let why = denied(write(&mut client, token, key).await.expect_err("no right"));
            assert!(why.contains(token), "{why}");
            denied(delete(&mut client, token, key, 1).await.expect_err(key));
            for (path, body) in [(path, &body), (deleting, &gone)] {
                let (status, text) = http(&servers, token, path, body).await;
                assert_eq!(status, 403, "{token} {key}: {text}");
            }
            assert_eq!(told[..2], [Some(Cause::Denied); 2], "{token} {key}");
        }
        // Who may change nothing has no session.
        let session = (token == "spectator").then_some(Cause::Denied);
        assert_eq!(told[2], session, "{token}");
        let (status, text) = http(&servers, token, "/v1/sessions/open", open).await;
        assert_eq!(status, if session.is_some() { 403 } else { 200 }, "{text}");
    }
}

fn version_in(text: &str) -> u64 {
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    let json: serde_json::Value = serde_json::from_str(body.trim()).expect("JSON");
    json["version"].as_u64().expect("a version")
}

/// Runs until it is told to stop.
struct Idle;

impl Workload for Idle {
    async fn deploy(&mut self, _: &RunHandle) -> Result<(), Why> {
        Ok(())
    }

    async fn undeploy(&mut self) {}
}

#[tokio::test]
async fn a_node_needs_the_right_to_operate_its_group_and_no_other() {
    let (servers, _) = guarded(1, &[("agent", "operate = [\"web\"]")]).await;
    let store = || Arc::new(Tenure::with(named(&servers, "agent")));
    let start = |group| {
        let builder = Manager::builder(store(), group).name("one");
        let builder = builder.lease(Duration::from_secs(10)).quorum(1);
        builder
            .workload("idle", || Idle)
            .start()
            .expect("it begins")
    };
    let node = start("web");
    let work = async {
        node.joined().await.expect("it has joined");
        let content = Deployment::new("clock", "idle").config("{}");
        node.deploy(content).await.expect("it runs");
        node.undeploy("clock").await.expect("it has ended");
        node.leave().await;
    };
    tokio::time::timeout(PATIENCE, work).await.expect("in time");
}
