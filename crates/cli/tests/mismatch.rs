//! Servers that find something else than their flags say, and say so.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use crate::common::servers::{Heard, SOON, free, led};
use crate::common::{TENURE, poll_until};

#[test]
fn peers_that_a_cluster_does_not_have_are_warned_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let [one, two, listen] = free::<3>();
    let serve = |peers: &str| {
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "--id", "1", "--data", &data, "--peers", peers]);
        serve.args(["--listen", &listen]);
        Heard::start(serve)
    };
    let url = format!("tenure://{listen}");
    let alone = serve(&format!("1={one}"));
    led(&url);
    assert_eq!(alone.count(&["--peers"]), 0);
    drop(alone);

    // As if flags could make it grow.
    let more = serve(&format!("1={one},2={two}"));
    led(&url);
    let wanted = [
        "found that server 2 is none",
        &data,
        "is of server 1",
        "tenure member add 2 --storage",
        "tenure member promote 2",
    ];
    more.says(1, &wanted);
    assert_eq!(more.count(&["--peers"]), 1);
}

#[test]
fn an_address_where_another_server_is_is_named_once_and_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let [one, two, nobody, listen @ ..] = free::<5>();
    let serve = |id: usize, peers: &str| {
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "-v", "--id", &id.to_string(), "--peers", peers]);
        serve
            .arg("--data")
            .arg(directory.path().join(id.to_string()));
        serve.args(["--listen", &listen[id - 1]]);
        // Calls are made by hand, and without a token.
        serve.env("TENURE_NO_TOKEN", "true");
        Heard::start(serve)
    };
    // To server 1 the third is where the second is.
    let first = serve(1, &format!("1={one},2={nobody},3={two}"));
    let _second = serve(2, &format!("1={one},2={two}"));
    let wanted = [
        "WARN",
        "not connected",
        &two,
        "expected server 3, found server 2",
        "--peers",
    ];
    first.says(1, &wanted);
    let metrics = || {
        let mut stream = TcpStream::connect(&listen[0]).expect("it listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    };
    let counted = |metrics: &str, reason: &str| {
        let start = format!("tenure_dials_failed_total{{reason=\"{reason}\"}} ");
        let mut found = metrics.lines().filter_map(|line| line.strip_prefix(&start));
        found.next().map_or(0, |it| it.parse().expect("a number"))
    };
    // It is dialled again and again.
    let often = poll_until(SOON, || {
        (counted(&metrics(), "OtherServer") >= 3_u64).then_some(())
    });
    often.unwrap_or_else(|| panic!("{}", metrics()));
    assert!(counted(&metrics(), "Unreached") > 0, "{}", metrics());
    assert_eq!(first.count(&wanted), 1);
}
