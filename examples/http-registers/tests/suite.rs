//! The example against the suite that every store passes, and by its command line.

mod documents;

use std::process::Command;
use std::time::Duration;

use documents::{Fault, server};
use tenure::StoreError;
use tenure::store::{Key, Version, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn it_is_a_store() {
    let url = server(Fault::None).await.url;
    let store = http_registers::registry()
        .open(&url)
        .await
        .expect("a store");
    conformance::all(&store, "try/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_has_it() {
    let url = server(Fault::None).await.url;
    let ran = tokio::task::spawn_blocking(move || {
        let run = |store: &str, args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_http-registers"));
            command.args(args).env("TENURE_STORE", store);
            command.output().expect("it runs")
        };
        let once = ["run", "x", "--once", "--lease", "2s", "--"];
        let ran = run(
            &url,
            &[&once[..], &["sh", "-c", "echo $TENURE_TERM"]].concat(),
        );
        let leader = run(&url, &["leader", "x"]);
        let unknown = run("none://x", &["leader", "x"]);
        (ran, leader, unknown)
    });
    let (ran, leader, unknown) = ran.await.expect("it ends");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "1\n");
    assert_eq!(leader.status.code(), Some(3), "{leader:?}");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(said.contains("etags://host:port"), "{said}");
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let registry = http_registers::registry();
    for url in ["etags:", "etags://", "etags://h/path", "etags://u@h"] {
        let refused = registry
            .open(url)
            .await
            .expect_err("a wrong URL")
            .to_string();
        assert!(refused.contains("expected etags://host:port"), "{refused}");
    }
    // Nobody listens: what is asked for certainly did not happen.
    let store = registry.open("etags://127.0.0.1:1").await.expect("a URL");
    let key = Key::new("k").expect("a key");
    let version = Version::from_bytes(b"counter.tag");
    let refused = store.delete(&key, &version, Duration::from_secs(5)).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}
