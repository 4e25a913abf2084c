//! A URL with several hosts of which more than one takes writes: an old primary that comes
//! back, two databases, and one server under several names.

use super::*;
use crate::postgres::Bouncer;

/// The primary was away while its standby was promoted, and is started again as it was.
#[tokio::test]
async fn an_old_primary_that_comes_back_is_not_used() {
    let mut old = Postgres::start();
    let new = old.standby();
    let url = |first: &Postgres, second: &Postgres| of_ports(first, &[first.port(), second.port()]);
    let store = opened(&url(&old, &new)).await;
    let version = put(&store, &key("key"), Expect::Absent, b"before").await;
    old.stop();
    new.promote();
    let running = opened(&url(&old, &new)).await;
    put(&running, &key("key"), Expect::Version(version), b"after").await;
    old.launch();
    let (first, second) = (url(&old, &new), url(&new, &old));
    for store in [opened(&first).await, opened(&second).await, running] {
        assert_eq!(
            value(&store, &key("key")).await.as_deref(),
            Some(&b"after"[..])
        );
    }
}

#[tokio::test]
async fn two_databases_in_one_url_are_refused() {
    let (one, two) = (Postgres::start(), Postgres::start());
    for ports in [[one.port(), two.port()], [two.port(), one.port()]] {
        let why = calls::broken(&of_ports(&one, &ports)).await;
        assert!(
            why.contains("expected hosts of one database, found"),
            "{why}"
        );
    }
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'tenure_register'";
    assert_eq!((one.sql(tables), two.sql(tables)), ("0".into(), "0".into()));
}

/// A copy of the directory of a server, which is used again when the copy is stopped.
#[tokio::test]
async fn a_copy_of_a_server_is_not_used_beside_it() {
    let mut server = Postgres::start();
    let mut copy = server.copied();
    for ports in [[server.port(), copy.port()], [copy.port(), server.port()]] {
        let url = of_ports(&server, &ports);
        // On a busy machine one may not answer in time, and is then not compared.
        let mut refused = None;
        for _ in 0..5 {
            let store = tenure::store::open(&url).await.expect("a store");
            if let Err(StoreError::Unavailable(why)) = store.read(&key("key"), WITHIN).await {
                refused = Some(why.to_string());
                break;
            }
        }
        let why = refused.expect("both are compared where both answer");
        assert!(
            why.contains("two with one history that take writes"),
            "{why}"
        );
    }
    copy.stop();
    let store = opened(&of_ports(&server, &[copy.port(), server.port()])).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    server.stop();
}

/// The URL names a server and a proxy. The proxy leads to another database of that server.
#[tokio::test]
async fn two_databases_of_one_server_are_refused() {
    let server = Postgres::start();
    server.sql("CREATE DATABASE other");
    let bouncer = Bouncer::start_to(&server, "other");
    let why = calls::broken(&of_ports(&server, &[server.port(), bouncer.port()])).await;
    assert!(why.contains("found two of one server"), "{why}");
}

#[tokio::test]
async fn a_primary_is_used_beside_its_standby_in_either_order() {
    let primary = Postgres::start();
    let standby = primary.standby();
    for (name, ports) in [
        ("first", [primary.port(), standby.port()]),
        ("second", [standby.port(), primary.port()]),
    ] {
        let store = opened(&of_ports(&primary, &ports)).await;
        put(&store, &key(name), Expect::Absent, b"x").await;
        assert_eq!(value(&store, &key(name)).await.as_deref(), Some(&b"x"[..]));
    }
}

/// By two names, through a proxy, and for a user who may not ask for histories.
#[tokio::test]
async fn one_server_under_several_names_is_used() {
    let server = Postgres::start();
    let bouncer = Bouncer::start(&server);
    let (own, port) = (format!("127.0.0.1:{}", server.port()), server.port());
    let names = server
        .url()
        .replace(&own, &format!("{own},localhost:{port}"));
    let proxy = of_ports(&server, &[bouncer.port(), port]);
    server.sql(
        "CREATE ROLE plain LOGIN PASSWORD 'open sesame';
         GRANT CREATE ON SCHEMA public TO plain;
         REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    );
    let plain = names.replace("tenure:", "plain:") + "?table=plain_register";
    for (name, url) in [("names", names), ("proxy", proxy), ("plain", plain)] {
        let store = opened(&url).await;
        put(&store, &key(name), Expect::Absent, b"x").await;
        assert_eq!(value(&store, &key(name)).await.as_deref(), Some(&b"x"[..]));
    }
}
