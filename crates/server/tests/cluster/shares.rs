//! What registers one token may fill that has no quota of its own: as much as
//! it leaves, so that there is room for the others.

use std::time::Duration;

use tenure::core::election::{Occupancy, Record};
use tenure::core::ids::{Name, Term};
use tenure::core::time::WallTime;
use tenure_api::v1::Cause;
use tenure_client::{Client, Error};

use crate::servers::Servers;
use crate::space::{delete, over};
use crate::tokens::{client, guarded_with, named, put};

/// How many registers there may be.
const REGISTERS: u64 = 64;
/// How many bytes they may take.
const BYTES: u64 = 64 * 1024;

/// One server that knows these tokens.
async fn server(tokens: &[(&str, &str)]) -> Servers {
    let small = |config: &mut tenure_server::Config| {
        config.quota_registers = REGISTERS;
        config.quota_bytes = BYTES;
    };
    guarded_with(1, tokens, small).await.0
}

/// The first record of an election.
fn record(election: &str) -> Vec<u8> {
    let record = Record {
        election: Name::new(election).expect("a name"),
        term: Term::ZERO,
        sequence: 1,
        renewal: 1,
        lease: Duration::from_secs(10),
        acquired_at: WallTime::from_millis(0),
        renewed_at: WallTime::from_millis(0),
        occupancy: Occupancy::Vacant { successor: None },
    };
    record.encode().as_ref().to_vec()
}

async fn begin(client: &Client, election: &str) -> Result<(), Error> {
    let write = put(&format!("elections/{election}"), &record(election));
    client.compare_and_swap(write).await.map(drop)
}

async fn write(client: &Client, key: &str) -> Result<(), Error> {
    client.compare_and_swap(put(key, b"x")).await.map(drop)
}

/// Why there was no room.
fn refused(written: Result<(), Error>) -> String {
    match written {
        Err(Error::Refused { cause, message, .. }) => {
            assert_eq!(cause, Cause::TooLarge, "{message}");
            message
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

/// How many go well until one does not, and what is said of that.
async fn until_refused(write: impl AsyncFn(u64) -> Result<(), Error>) -> (u64, String) {
    for number in 0..=REGISTERS {
        let written = write(number).await;
        if written.is_err() {
            return (number, refused(written));
        }
    }
    panic!("expected a refusal, found room for more than {REGISTERS}");
}

#[tokio::test]
async fn a_token_without_a_quota_takes_half_and_others_begin_elections_and_come_back() {
    let tokens = [
        ("greedy", "campaign = [\"x\"]"),
        ("other", "campaign = [\"b\"]"),
        ("node", "operate = [\"web\"]"),
        ("writer", "write = [\"state/\"]"),
        ("all", "write = [\"\"]"),
        ("boss", "admin = true"),
    ];
    let mut servers = server(&tokens).await;
    let [greedy, other, node, writer, all, boss] = tokens.map(|(name, _)| named(&servers, name));
    let (count, said) = until_refused(async |n| begin(&greedy, &format!("x{n}")).await).await;
    assert_eq!(count, REGISTERS / 2, "{said}");
    for words in [
        "the token whose SHA-256 begins",
        "may write take 32",
        "31 would be left",
        "give it quota_registers",
        "--quota-registers",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // What does not grow goes on: it renews.
    over(&greedy, "elections/x0", &record("x0"))
        .await
        .expect("as large");
    // There is room for the others, each within what it leaves.
    begin(&other, "b").await.expect("an election begins");
    write(&node, "ha/web/node")
        .await
        .expect("a node comes back");
    let (count, said) = until_refused(async |n| write(&writer, &format!("state/{n}")).await).await;
    assert_eq!(count, 13, "{said}");
    // A token that may write everything fills it to the brim, as operators do.
    let (count, said) = until_refused(async |n| write(&all, &format!("z/{n}")).await).await;
    assert!(said.contains("take 60 of 60"), "{said}");
    assert_eq!(count, 13);
    assert!(refused(write(&boss, "y").await).contains("take 60 of 60"));
    write(&boss, "ha/web/boss").await.expect("kept for groups");
    delete(&boss, "ha/web/boss").await;
    // A new leader judges as the one before it.
    servers.stop(1).await;
    servers.start(1);
    servers.leader().await;
    refused(begin(&greedy, "x99").await);
    begin(&other, "b1").await.expect("it has few");
    // Deletes give the room back.
    delete(&boss, "elections/b1").await;
    for number in 0..15 {
        delete(&boss, &format!("elections/x{number}")).await;
    }
    begin(&greedy, "x0").await.expect("17 and 18 are left");
    refused(begin(&greedy, "x1").await);
}

/// Registers of elections and groups that are there may grow where there is no
/// room. A token fills the quota neither by that.
#[tokio::test]
async fn registers_that_were_created_small_are_not_grown_beyond_what_is_left() {
    let tokens = [
        ("greedy", "operate = [\"g\"]"),
        ("other", "campaign = [\"b\"]"),
        ("counted", "write = [\"c/\"]\nquota_registers = 40"),
    ];
    let servers = server(&tokens).await;
    let [greedy, other, counted] = tokens.map(|(name, _)| named(&servers, name));
    for number in 0..10 {
        write(&greedy, &format!("ha/g/{number}"))
            .await
            .expect("written");
    }
    let grow = async |n| over(&greedy, &format!("ha/g/{n}"), &[7; 8_000]).await;
    let (count, said) = until_refused(grow).await;
    assert_eq!(count, 4, "{said}");
    assert!(said.contains("give it quota_bytes"), "{said}");
    // Small ones are written all the same, whatever they need.
    over(&greedy, "ha/g/9", &[7; 900]).await.expect("small");
    over(&greedy, "ha/g/0", &[8; 8_000])
        .await
        .expect("as large");
    over(&greedy, "ha/g/0", &[8; 7_000]).await.expect("smaller");
    begin(&other, "b").await.expect("an election begins");
    // One that has a quota of one kind has none of the other.
    let big = async |n| {
        let write = put(&format!("c/{n}"), &[7; 3_000]);
        counted.compare_and_swap(write).await.map(drop)
    };
    let (count, said) = until_refused(big).await;
    assert!(said.contains("give it quota_bytes"), "{said}");
    assert_eq!(count, 4, "{said}");
}

/// With a quota of bytes alone there are fewer than one for each of a million
/// registers; a record is no large register for that.
#[tokio::test]
async fn leaders_renew_whatever_the_quota_of_bytes_is() {
    let tokens = [
        ("many", "campaign = [\"x\"]"),
        ("writer", "write = [\"state/\"]"),
        ("later", "write = [\"later/\"]"),
    ];
    let bytes = |config: &mut tenure_server::Config| config.quota_bytes = BYTES;
    let servers = guarded_with(1, &tokens, bytes).await.0;
    let [many, writer, later] = tokens.map(|(name, _)| named(&servers, name));
    let fill = async |client: &Client, below: &str| {
        let write = async |n| {
            let key = format!("{below}/{n}");
            let write = put(&key, &[b'x'; 1_000]);
            client.compare_and_swap(write).await.map(drop)
        };
        until_refused(write).await.0
    };
    assert!(fill(&writer, "state").await > 20);
    // More than a sixteenth of the bytes, and soon more than is left.
    let mut elections = 0;
    while begin(&many, &format!("x{elections}")).await.is_ok() {
        elections += 1;
    }
    assert!(elections > BYTES / 16 / 200, "{elections}");
    assert!(fill(&later, "later").await > 3);
    // A number has one digit more.
    let mut longer = Record::decode(&record("x0")).expect("a record");
    longer.renewal = 10;
    let longer = longer.encode().as_ref().to_vec();
    over(&many, "elections/x0", &longer)
        .await
        .expect("it renews");
}

#[tokio::test]
async fn without_tokens_a_client_may_take_everything() {
    let servers = Servers::found_with(1, 0, |config| config.quota_registers = REGISTERS);
    servers.leader().await;
    let client = client(&servers, None);
    let (count, _) = until_refused(async |n| write(&client, &format!("a/{n}")).await).await;
    assert_eq!(count, REGISTERS - REGISTERS / 16);
}
