//! The Kubernetes store against a stand-in (`standin.rs`): the conformance suite, races,
//! servers that go away, keep silent, lose answers or have too much to do, versions that
//! are forgotten or go back, tokens and TLS; and elections that candidates of client-go
//! (`client_go.rs`) contend for as well.

#![allow(clippy::print_stdout, reason = "figures are printed")]

mod bounds;
mod client_go;
mod contended;
mod standin;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::calls::{
    WITHIN, broken, count_in_processes, held, key, median, millis_since, opened, put, shows,
    store_to_count_in, test_name, until, write,
};
use crate::common::stand_in_trials::{comes_and_goes, sends_once};
use crate::common::takeovers::{self, Notices};
use crate::common::{certificates, stand_in};
use serde_json::json;
use standin::{Kubernetes, May};
use tenure::store::conformance::{self, count_up};
use tenure::store::{Clock, Expect, Selector, Sighting, Version, open};
use tenure::{StoreError, clock};

/// What a child process of a test is given: a URL, and what to do with it.
const CHILD: &str = "TENURE_TEST_KUBERNETES_URL";

#[tokio::test]
async fn kubernetes_conforms() {
    let server = Kubernetes::start();
    let store = opened(&server.url()).await;
    assert_eq!(store.features().clock, Clock::None);
    conformance::all(&store, "try/").await;
    // It can be read by hand.
    let maps = server.names("configmaps");
    assert!(
        maps.iter().all(|name| name.starts_with("tenure.register.")),
        "{maps:?}"
    );
    let found = maps
        .iter()
        .filter_map(|name| server.object("configmaps", name));
    let same = found.filter(|map| map["metadata"]["annotations"]["tenure/key"] == "try/equal");
    let same: Vec<_> = same.map(|map| map["binaryData"]["value"].clone()).collect();
    assert_eq!(same, ["c2FtZQ=="]);
}

#[tokio::test]
async fn lists_come_in_pages_and_begin_again_when_one_is_forgotten() {
    let server = Kubernetes::start();
    server.cut_pages_at(2);
    let store = opened(&server.url()).await;
    for number in 0..5 {
        put(
            &store,
            &key(&format!("pages/{number}")),
            Expect::Absent,
            b"x",
        )
        .await;
        put(
            &store,
            &key(&format!("elections/p-{number}")),
            Expect::Absent,
            b"x",
        )
        .await;
    }
    put(&store, &key("other/0"), Expect::Absent, b"x").await;
    for (prefix, many, lists) in [
        ("pages/", 5, 3),
        ("elections/", 5, 3),
        ("", 11, 6),
        ("p", 5, 3),
    ] {
        let before = server.counts().lists;
        let page = store.list(prefix, None, WITHIN).await.expect("a page");
        assert_eq!(page.registers.len(), many, "{prefix}");
        assert_eq!(server.counts().lists - before, lists, "{prefix}");
    }
    // The log is compacted all the time.
    let forgets = async {
        loop {
            server.compact();
            tokio::task::yield_now().await;
        }
    };
    let lists = async {
        for _ in 0..200 {
            match store.list("pages/", None, WITHIN).await {
                Ok(page) => assert_eq!(page.registers.len(), 5),
                Err(StoreError::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    };
    tokio::select! {
        () = forgets => {}
        () = lists => {}
    }
}

/// Not a test of its own: what a child process of the races below does.
#[tokio::test]
async fn child_counts() {
    if let Some(store) = store_to_count_in().await {
        count_up(&store, &key("processes/counter"), 15).await;
        count_up(&store, &key("elections/counter"), 15).await;
    }
}

#[tokio::test]
async fn processes_lose_no_update() {
    let server = Kubernetes::start();
    count_in_processes(module_path!(), 5, &server.url(), &[]);
    let store = opened(&server.url()).await;
    for counter in ["processes/counter", "elections/counter"] {
        let found = held(&store, &key(counter)).await.expect("a counter");
        assert_eq!(&*found.value, 75_u64.to_be_bytes(), "{counter}");
    }
}

#[tokio::test]
async fn the_writes_of_others_are_noticed_at_once_and_by_few_requests() {
    let server = Kubernetes::start();
    for name in ["followed/key", "elections/followed"] {
        let (writer, reader) = (opened(&server.url()).await, opened(&server.url()).await);
        let watches = server.counts().watches + 2;
        let key = key(name);
        let (folder, _) = name.split_once('/').expect("a folder");
        let mut by_key = reader.watch(Selector::Key(key.clone()));
        let below = opened(&server.url()).await;
        let mut by_prefix = below.watch(Selector::Prefix(format!("{folder}/")));
        for watch in [&mut by_key, &mut by_prefix] {
            until(watch, |seen| *seen == Sighting::Live).await;
        }
        let give_up = clock::boot().after(WITHIN);
        while server.counts().watches < watches {
            assert!(clock::boot() < give_up, "they do not watch");
            tokio::task::yield_now().await;
        }
        let before = server.counts();
        let (mut figures, mut expect) = (Vec::new(), Expect::Absent);
        for number in 0..100u8 {
            let version = put(&writer, &key, expect, &[number]).await;
            let done = clock::boot();
            until(&mut by_key, shows(&version)).await;
            until(&mut by_prefix, shows(&version)).await;
            figures.push(millis_since(done));
            expect = Expect::Version(version);
        }
        let counts = server.counts();
        let Expect::Version(version) = expect else {
            panic!("it was written");
        };
        let deleted = writer.delete(&key, &version, WITHIN).await;
        deleted.expect("to delete");
        for watch in [&mut by_key, &mut by_prefix] {
            until(watch, |seen| matches!(seen, Sighting::State(_, None))).await;
        }
        let middle = median(&mut figures);
        let most = figures[99];
        println!(
            "kubernetes: {name}: noticed after a median of {middle:.2} ms, at most {most:.2} ms, of 100"
        );
        assert!(middle < 50.0, "{figures:?}");
        // A hundred writes, the read that finds out which server to ask, and no more.
        assert_eq!(counts.writes - before.writes, 100);
        assert_eq!(
            (counts.lists, counts.watches),
            (before.lists, before.watches)
        );
        assert!(
            counts.reads <= before.reads + 2,
            "{counts:?} after {before:?}"
        );
    }
}

#[tokio::test]
async fn a_watch_that_ends_goes_on_where_it_was() {
    let server = Kubernetes::start();
    // No shorter: a watch that ends at once has failed.
    server.watch_at_most(Duration::from_millis(600));
    let (store, writer) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("rests");
    let mut version = put(&store, &key, Expect::Absent, b"x").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    let before = server.counts();
    for _ in 0..3 {
        let seen = server.counts().watches;
        let give_up = clock::boot().after(WITHIN);
        while server.counts().watches < seen + 3 {
            assert!(clock::boot() < give_up, "no watch is begun again");
            tokio::task::yield_now().await;
        }
        version = put(&writer, &key, Expect::Version(version), b"y").await;
        until(&mut watch, shows(&version)).await;
    }
    // What was written elsewhere meanwhile was told of by bookmarks: it may be forgotten.
    let other = self::key("other");
    put(&writer, &other, Expect::Absent, b"x").await;
    let seen = server.counts().watches;
    let give_up = clock::boot().after(WITHIN);
    while server.counts().watches < seen + 2 {
        assert!(clock::boot() < give_up, "no watch is begun again");
        tokio::task::yield_now().await;
    }
    server.compact();
    version = put(&writer, &key, Expect::Version(version), b"z").await;
    until(&mut watch, shows(&version)).await;
    assert_eq!(
        server.counts().lists,
        before.lists,
        "and nothing was listed again"
    );
}

#[tokio::test]
async fn what_was_forgotten_is_listed_again() {
    let server = Kubernetes::start();
    let (store, writer) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("a/key");
    let mut watch = store.watch(Selector::Prefix("a/".into()));
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let mut expect = Expect::Absent;
    let before = server.counts().lists;
    for round in 0..5u8 {
        server.compact_with_next_write();
        let version = put(&writer, &key, expect, &[round]).await;
        until(&mut watch, shows(&version)).await;
        expect = Expect::Version(version);
    }
    let lists = server.counts().lists - before;
    assert!(lists >= 5, "{lists} listings for five forgotten writes");
}

#[tokio::test]
async fn watches_that_fail_at_once_are_begun_less_and_less_often() {
    let (broken, forgetful, brief) = (500, 410, 0);
    for code in [broken, forgetful, brief] {
        let server = Kubernetes::start();
        match code {
            0 => server.watch_at_most(Duration::ZERO),
            code => server.fail_watches(code),
        }
        let store = opened(&server.url()).await;
        let began = clock::boot();
        let _watch = store.watch(Selector::Key(key("followed")));
        while server.counts().watches < 6 {
            assert!(
                clock::boot().since(began) < WITHIN,
                "{code}: no more watches"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // 50, 100, 200, 400 and 800 ms.
        let took = clock::boot().since(began);
        assert!(took >= Duration::from_millis(1_500), "{code}: {took:?}");
    }
}

#[tokio::test]
async fn a_watch_of_what_is_followed_already_hears_of_what_is_not_there() {
    let server = Kubernetes::start();
    let store = opened(&server.url()).await;
    let mut all = store.watch(Selector::Prefix("a/".into()));
    until(&mut all, |seen| *seen == Sighting::Live).await;
    let mut one = store.watch(Selector::Key(key("a/none")));
    until(&mut one, |seen| matches!(seen, Sighting::State(_, None))).await;
    // More keys than have a watch each, of both kinds.
    let name = |number| match number % 2 {
        0 => format!("b/{number}"),
        _ => format!("elections/{number}"),
    };
    let mut many: Vec<_> = (0..100)
        .map(|number| store.watch(Selector::Key(key(&name(number)))))
        .collect();
    for watch in &mut many {
        until(watch, |seen| matches!(seen, Sighting::State(_, None))).await;
    }
    let writer = opened(&server.url()).await;
    for number in [7, 8] {
        let version = put(&writer, &key(&name(number)), Expect::Absent, b"x").await;
        until(&mut many[number], shows(&version)).await;
    }
    drop(many);
    let version = put(&writer, &key("a/none"), Expect::Absent, b"x").await;
    until(&mut one, shows(&version)).await;
}

#[tokio::test]
async fn a_server_may_come_later_go_and_come_back_with_what_it_had() {
    let server = Kubernetes::prepared(None);
    comes_and_goes(&server, &server.url(), &key("elections/key")).await;
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_was_sent_once() {
    let server = Kubernetes::start();
    let writes = || server.counts().writes;
    sends_once(&server, &server.url(), &key("key"), writes).await;
}

#[tokio::test]
async fn a_server_that_cannot_says_what_became_of_a_write() {
    let server = Kubernetes::start();
    let store = opened(&server.url()).await;
    let key = key("elections/key");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    for (code, is_unknown) in [(429, false), (500, true), (503, true), (504, true)] {
        // One that has not been asked yet finds out by a read.
        let fresh = opened(&server.url()).await;
        held(&fresh, &key).await.expect("it");
        server.refuse_all(Some((code, 1)));
        let change = write(&key, Expect::Version(version.clone()), b"y");
        let refused = fresh.compare_and_swap(change, WITHIN).await;
        let is_as_said = match &refused {
            Err(StoreError::Unknown(_)) => is_unknown,
            Err(StoreError::Unavailable(_)) => !is_unknown,
            _ => false,
        };
        assert!(is_as_said, "{code}: {refused:?}");
        let read = fresh.read(&key, WITHIN).await;
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
        server.refuse_all(None);
    }
    let version = put(&store, &key, Expect::Version(version), b"y").await;
    until(&mut watch, shows(&version)).await;
}

#[tokio::test]
async fn the_host_after_one_that_is_away_is_used() {
    let (first, second) = (Kubernetes::start(), Kubernetes::start());
    let url = format!("kubernetes://{},{}/n?tls=off", first.host(), second.host());
    let store = opened(&url).await;
    let key = key("key");
    put(&store, &key, Expect::Absent, b"x").await;
    assert_eq!(second.names("configmaps"), Vec::<String>::new());
    first.stop();
    let give_up = clock::boot().after(WITHIN);
    while store.read(&key, WITHIN).await.is_err() {
        assert!(clock::boot() < give_up, "the second was not reached");
    }
    assert!(second.counts().reads > 0);
}

#[tokio::test]
async fn servers_of_two_clusters_are_no_store() {
    let (one, two) = (Kubernetes::start(), Kubernetes::start());
    one.publish("one");
    two.publish("two");
    for (first, second) in [(&one, &two), (&two, &one)] {
        let url = format!("kubernetes://{},{}/n?tls=off", first.host(), second.host());
        let why = broken(&url).await;
        assert!(why.contains("expected servers of one cluster"), "{why}");
        let change = write(&key("key"), Expect::Absent, b"x");
        let refused = opened(&url).await.compare_and_swap(change, WITHIN).await;
        assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
        assert_eq!([one.counts().writes, two.counts().writes], [0, 0]);
    }
    // Two servers of one cluster.
    two.publish("one");
    let url = format!("kubernetes://{},{}/n?tls=off", one.host(), two.host());
    put(&opened(&url).await, &key("key"), Expect::Absent, b"x").await;
    assert_eq!([one.counts().writes, two.counts().writes], [1, 0]);
}

#[tokio::test]
async fn versions_that_go_back_are_noticed() {
    let server = Kubernetes::start();
    let (store, writer) = (opened(&server.url()).await, opened(&server.url()).await);
    let key = key("key");
    let mut watch = store.watch(Selector::Key(key.clone()));
    let mut below = store.watch(Selector::Prefix("other/".into()));
    let old = put(&writer, &key, Expect::Absent, b"old").await;
    until(&mut watch, shows(&old)).await;
    let news = async {
        let mut last = old.clone();
        for _ in 0..5 {
            last = put(&writer, &key, Expect::Version(last), b"new").await;
        }
        until(&mut watch, shows(&last)).await;
        let other = self::key("other/one");
        let version = put(&writer, &other, Expect::Absent, b"x").await;
        until(&mut below, shows(&version)).await;
    };
    // A backup of etcd is put back under the watch, and the servers are started again.
    server.restored_after(news).await;
    until(&mut watch, shows(&old)).await;
    until(&mut below, |seen| matches!(seen, Sighting::State(_, None))).await;
    let fresh = opened(&server.url()).await;
    let next = put(&fresh, &key, Expect::Version(old), b"next").await;
    until(&mut watch, shows(&next)).await;
}

#[tokio::test]
async fn a_deletion_is_by_comparison_and_no_version_comes_again() {
    let server = Kubernetes::start();
    for name in ["key", "elections/key", "elections/No Legal Name"] {
        let store = opened(&server.url()).await;
        let key = key(name);
        let mut last = None::<Version>;
        for _ in 0..3 {
            let version = put(&store, &key, Expect::Absent, b"x").await;
            assert!(last.is_none_or(|last| last < version), "they grow");
            let again = store
                .compare_and_swap(write(&key, Expect::Absent, b"x"), WITHIN)
                .await;
            assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
            let same = put(&store, &key, Expect::Version(version.clone()), b"x").await;
            assert!(version < same, "the same bytes are another version");
            let stale = store.delete(&key, &version, WITHIN).await;
            assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
            store.delete(&key, &same, WITHIN).await.expect("to delete");
            let again = store.delete(&key, &same, WITHIN).await;
            assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
            // The server would make it by a PUT.
            let gone = store
                .compare_and_swap(write(&key, Expect::Version(same.clone()), b"y"), WITHIN)
                .await;
            assert!(matches!(gone, Err(StoreError::Conflict)), "{gone:?}");
            assert_eq!(held(&store, &key).await, None, "{name}");
            last = Some(same);
        }
    }
}

#[tokio::test]
async fn what_others_write_is_read_as_it_is_and_troubles_no_other() {
    let server = Kubernetes::start();
    let store = opened(&server.url()).await;
    put(&store, &key("elections/good"), Expect::Absent, b"x").await;
    put(&store, &key("elections/A Name"), Expect::Absent, b"x").await;
    put(&store, &key("folder/good"), Expect::Absent, b"x").await;
    let lease =
        |spec| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec});
    server.set("leases", "bare", lease(json!({})));
    server.set(
        "leases",
        "hand",
        lease(json!({"holderIdentity": "x", "leaseTransitions": "many"})),
    );
    server.set("leases", "tenure.election.0123", lease(json!({})));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"value": "theirs"}});
    server.set("configmaps", "kube-root-ca.crt", map.clone());
    server.set("configmaps", "tenure.register.0123", map);
    let names = async |prefix: &str| -> Vec<String> {
        let page = store.list(prefix, None, WITHIN).await.expect("a page");
        let keys = page.registers.iter();
        keys.map(|(key, _)| key.as_str().to_owned()).collect()
    };
    let elections = [
        "elections/A Name",
        "elections/bare",
        "elections/good",
        "elections/hand",
    ];
    assert_eq!(names("elections/").await, elections);
    assert_eq!(names("folder/").await, ["folder/good"]);
    assert_eq!(names("").await.len(), 5);
    let bare = held(&store, &key("elections/bare")).await.expect("it");
    assert!(bare.value.starts_with(b"tenure-election"), "{bare:?}");
    // Who reads it is told what is wrong, and a list shows what there is.
    let read = store.read(&key("elections/hand"), WITHIN).await;
    let Err(StoreError::Broken(why)) = &read else {
        panic!("{read:?}");
    };
    let said = why.to_string();
    assert!(said.contains("another leaseTransitions"), "{said}");
    let page = store.list("elections/hand", None, WITHIN).await;
    let (_, hand) = page.expect("a page").registers.remove(0);
    assert_eq!(String::from_utf8_lossy(&hand.value), said);
    put(
        &store,
        &key("elections/hand"),
        Expect::Version(hand.version),
        b"mended",
    )
    .await;
    let mended = held(&store, &key("elections/hand")).await.expect("it");
    assert_eq!(&*mended.value, b"mended");
    let large = vec![b'x'; 200 * 1024];
    let refused = store
        .compare_and_swap(
            write(&key("elections/large"), Expect::Absent, &large),
            WITHIN,
        )
        .await;
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
}

#[tokio::test]
async fn a_token_needs_rights_and_is_read_again() {
    let server = Kubernetes::start();
    let all = [
        ("sesame", May::Write),
        ("looks", May::Read),
        ("no-one", May::Nothing),
    ];
    server.ask_for_tokens(&all);
    let dir = tempfile::tempdir().expect("a directory");
    let with = |token: &str| {
        let path = dir.path().join(token);
        fs::write(&path, format!("{token}\n")).expect("written");
        format!("{}&token_file={}", server.url(), path.display())
    };
    let store = opened(&with("sesame")).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"x").await;
    assert!(!format!("{store} {store:?}").contains("sesame"), "{store}");
    let looks = opened(&with("looks")).await;
    assert!(held(&looks, &key).await.is_some());
    let change = write(&key, Expect::Version(version.clone()), b"y");
    let refused = looks.compare_and_swap(change, WITHIN).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("Role"), "{why}");
    for (url, code, token) in [
        (with("no-one"), "403", "no-one"),
        (with("stranger"), "401", "stranger"),
        (server.url(), "401", "sesame"),
    ] {
        let why = broken(&url).await;
        assert!(why.contains(code) && why.contains("expected"), "{why}");
        // The server repeats it.
        assert!(!why.contains(token), "{why}");
    }
    // The kubelet writes another one, and the one of before ends.
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, shows(&version)).await;
    fs::write(dir.path().join("sesame"), "another").expect("written");
    server.ask_for_tokens(&[("another", May::Write)]);
    let version = put(&store, &key, Expect::Version(version), b"z").await;
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    // One that is never good again leaves it at one more attempt.
    server.ask_for_tokens(&[]);
    let refused = store.read(&key, WITHIN).await;
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
}

/// Not a test of its own: what a process in a pod does.
#[tokio::test]
async fn child_in_a_pod() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let store = opened(&url).await;
    put(&store, &key("elections/pod"), Expect::Absent, b"x").await;
}

#[tokio::test]
async fn tls_is_spoken_in_a_pod_and_by_a_kubeconfig() {
    let authority = certificates::authority();
    let [certificate, own_key] = certificates::certified(&authority, false);
    let server = Kubernetes::start_encrypted(&certificate, &own_key);
    server.ask_for_tokens(&[("sesame", May::Write)]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let ca = file("ca.crt", &authority.pem());
    let token = file("token", "sesame");
    file("namespace", "n\n");
    // By itself.
    let url = format!(
        "kubernetes://{}/n?token_file={token}&ca_file={ca}",
        server.host()
    );
    let store = opened(&url).await;
    let key = key("key");
    let version = put(&store, &key, Expect::Absent, b"secret").await;
    assert_eq!(held(&store, &key).await.map(|it| it.version), Some(version));
    // In a pod.
    let (host, port) = server
        .host()
        .split_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .expect("a port");
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args([
            "--exact",
            &test_name(module_path!(), "child_in_a_pod"),
            "--nocapture",
        ])
        .env(
            CHILD,
            format!("kubernetes://?service_account={}", dir.path().display()),
        )
        .env("KUBERNETES_SERVICE_HOST", host)
        .env("KUBERNETES_SERVICE_PORT", port)
        .stdout(Stdio::null());
    assert!(child.status().expect("it ends").success());
    assert_eq!(server.names("leases"), ["pod"]);
    // By a kubeconfig, as kubectl writes it.
    let config = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority: ca.crt\n    server: \
         https://{}\n  name: c\ncontexts:\n- context:\n    cluster: c\n    namespace: n\n    user: \
         u\n  name: x\ncurrent-context: x\nkind: Config\npreferences: {{}}\nusers:\n- name: u\n  \
         user:\n    token: sesame\n",
        server.host()
    );
    let config = file("config", &config);
    for context in ["", "&context=x"] {
        let store = opened(&format!("kubernetes://?kubeconfig={config}{context}")).await;
        assert!(held(&store, &key).await.is_some());
        assert!(!format!("{store} {store:?}").contains("sesame"), "{store}");
    }
    // A certificate of nobody we know.
    let stranger = certificates::authority();
    let other = file("other", &stranger.pem());
    let url = format!(
        "kubernetes://{}/n?token_file={token}&ca_file={other}",
        server.host()
    );
    let why = broken(&url).await;
    assert!(why.contains("certificate"), "{why}");
    // A line without TLS to a server that speaks nothing else.
    let refused = opened(&server.url()).await.read(&key, WITHIN).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let server = Kubernetes::start();
    let store = opened(&server.url()).await;
    assert_eq!(held(&store, &key("key")).await, None);
    server.remove_namespace();
    for name in ["key", "elections/key"] {
        let refused = store
            .compare_and_swap(write(&key(name), Expect::Absent, b"x"), WITHIN)
            .await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            why.to_string().contains("kubectl create namespace"),
            "{why}"
        );
    }
    for url in [
        "kubernetes:h",
        "kubernetes://user@h",
        "kubernetes://h/a/b",
        "kubernetes://h/n?ca_file=/does/not/exist",
        "kubernetes://h/n?token_file=/does/not/exist",
        "kubernetes://?kubeconfig=/does/not/exist",
        "kubernetes://h/n?prefix=x",
    ] {
        let refused = open(url).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{url} was taken");
        };
        assert!(why.to_string().contains("expected"), "{url}: {why}");
    }
    // Another server says 404 of every path.
    let answered = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = answered.local_addr().expect("bound");
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        while let Ok((mut stream, _)) = answered.accept() {
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let why = broken(&format!("kubernetes://{address}/n?tls=off")).await;
    assert!(why.contains("expected the API of Kubernetes"), "{why}");
}

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let server = Kubernetes::start();
    let url = server.url();
    let store = "Kubernetes (stand-in)";
    takeovers::measure(store, Notices::ByWatch, || opened(&url)).await;
}

/// Not a test of its own, since it needs an API server of Kubernetes: the variable names
/// a store's URL. See `go/README.md`.
#[tokio::test]
async fn with_kubernetes_itself() {
    let Ok(url) = std::env::var(contended::REAL_URL) else {
        return;
    };
    let store = opened(&url).await;
    conformance::all(&store, "try/").await;
    for counter in [
        "try/counter",
        "elections/try-counter",
        "elections/Try Counter",
    ] {
        let counter = key(counter);
        let handles = [opened(&url).await, opened(&url).await, opened(&url).await];
        let counts = handles.iter().map(|handle| count_up(handle, &counter, 20));
        let mut counts: Vec<_> = counts.map(Box::pin).collect();
        let [one, two, three] = &mut counts[..] else {
            panic!("three");
        };
        tokio::join!(one, two, three);
        let found = held(&store, &counter).await.expect("a counter");
        assert_eq!(&*found.value, 60_u64.to_be_bytes());
        let mut watch = opened(&url).await.watch(Selector::Key(counter.clone()));
        until(&mut watch, shows(&found.version)).await;
        store
            .delete(&counter, &found.version, WITHIN)
            .await
            .expect("to delete");
        // The server would make a Lease by a PUT.
        let gone = write(&counter, Expect::Version(found.version.clone()), b"y");
        let gone = store.compare_and_swap(gone, WITHIN).await;
        assert!(matches!(gone, Err(StoreError::Conflict)), "{gone:?}");
        assert_eq!(held(&store, &counter).await, None);
    }
    println!("kubernetes: an API server keeps the contract");
}
