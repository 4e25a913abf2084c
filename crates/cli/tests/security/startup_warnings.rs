//! What a server says of how it was started.

use super::place::{Place, flags};
use crate::common::servers::{led, objects, said, tenure};

#[test]
fn what_leaves_a_server_open_is_said_once_at_each_start_and_in_its_status() {
    const OPEN: [&str; 3] = ["--insecure: ", "no TLS: ", "no tokens: "];
    let place = Place::new::<1>();
    let plain = format!("tenure://{}", place.clients[0]);
    let protection = |url: &str| {
        let all = objects(&["status", "--json", "--store", url]);
        let it = &all[0]["protection"];
        ["tls", "tokens", "insecure"].map(|name| it[name].as_bool().expect("said"))
    };
    for _ in 0..2 {
        let server = place.start(1, &["--insecure"]);
        led(&plain);
        for words in OPEN {
            assert_eq!(server.count(&["WARN", words]), 1, "{words}");
        }
        assert_eq!(protection(&plain), [false, false, true]);
    }
    let server = place.start(1, &[]);
    led(&plain);
    assert_eq!(OPEN.map(|words| server.count(&["WARN", words])), [0, 1, 1]);
    assert_eq!(protection(&plain), [false, false, false]);
    drop(server);

    place.certs(&["--server", "1", "--name", "server-1"]);
    place.certs(&["--name", "client"]);
    let (tokens, token) = (place.path("tokens.toml"), place.path("token"));
    let drawn = tenure(&[
        "token", "boss", "--admin", "--tokens", &tokens, "--out", &token,
    ]);
    assert!(drawn.status.success(), "{}", said(&drawn));
    let tls = place.tls(1);
    let server = place.start(1, &[&flags(&tls)[..], &["--tokens", &tokens]].concat());
    let url = format!("{}&token_file={token}", place.url("client"));
    led(&url);
    assert_eq!(OPEN.map(|words| server.count(&["WARN", words])), [0, 0, 0]);
    assert_eq!(protection(&url), [true, true, false]);
}
