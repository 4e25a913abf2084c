//! What must be true when nothing is wrong any more: a write is acknowledged
//! in a stated time, and in another all servers have the same log and the
//! same registers, entry for entry.

use std::time::Duration;

use tenure_api::v1::{self, log_client::LogClient, registers_client::RegistersClient};
use tenure_client::Client;

use crate::record::Record;
use crate::servers::{Servers, until_within};

/// After everything is healed: until a write is acknowledged, and until all
/// servers have the same log and the same registers.
pub(crate) const WRITABLE_WITHIN: Duration = Duration::from_secs(10);
pub(crate) const EQUAL_WITHIN: Duration = Duration::from_secs(20);

/// Writes by a client of its own.
pub(crate) async fn write(url: &str) {
    use tenure::core::cas::{Expect, Stamp, Write};
    let client = Client::open(url).expect("a client");
    let key = tenure::core::ids::Key::new("faults/life").expect("a good key");
    until_within(WRITABLE_WITHIN, "a write", async || {
        let found = client.read(&key).await.ok()?.register;
        let write = Write {
            key: key.clone(),
            expect: found.map_or(Expect::Absent, |it| Expect::Version(it.version)),
            value: b"alive"[..].into(),
            stamp: Stamp::Now,
        };
        client.compare_and_swap(write).await.ok()
    })
    .await;
}

/// The number of the newest entry, and of all that were acknowledged.
pub(crate) async fn end_of_log(url: &str, record: &Record) -> u64 {
    let client = Client::open(url).expect("a client");
    let newest = until_within(WRITABLE_WITHIN, "the log's end", async || {
        let status = client.leader_status().await.ok()?;
        Some(status.log_next - 1)
    })
    .await;
    newest.max(record.last_number())
}

/// Waits until all servers have the same log and the same registers, and
/// gives the term.
pub(crate) async fn equal(servers: &Servers) -> u64 {
    let mut seen = Vec::new();
    let found = until_within(EQUAL_WITHIN, "all servers equal", async || {
        seen.clear();
        for server in servers.ids() {
            seen.push(content(servers, server).await?);
        }
        let (term, first) = (seen[0].0, &seen[0].1);
        seen.iter().all(|(_, it)| it == first).then_some(term)
    })
    .await;
    assert_eq!(seen.len() as u64, servers.count);
    found
}

type Content = (Vec<v1::LogEntry>, Vec<v1::Named>, u64);

/// What one server has applied, as it says itself.
async fn content(servers: &Servers, server: u64) -> Option<(u64, Content)> {
    let status = servers.status(server).await?;
    let channel = servers.channel(server);
    let mut log = LogClient::new(channel.clone()).max_decoding_message_size(32 << 20);
    let mut registers = RegistersClient::new(channel).max_decoding_message_size(32 << 20);
    let (mut entries, mut all) = (Vec::new(), Vec::new());
    let mut from = status.log_first;
    while from < status.log_next {
        let read = v1::ReadLogRequest {
            from,
            limit: 0,
            stale: true,
        };
        let page = log.read(read).await.ok()?.into_inner().entries;
        from = page.last()?.number + 1;
        entries.extend(page);
    }
    loop {
        let list = v1::ListRequest {
            prefix: String::new(),
            after: all.last().map(|it: &v1::Named| it.key.clone()),
            limit: 0,
            stale: true,
        };
        let page = registers.list(list).await.ok()?.into_inner();
        all.extend(page.registers);
        if !page.more {
            break;
        }
    }
    Some((status.term, (entries, all, status.revision)))
}
