//! A blank server on its way into a cluster.
//!
//! It greets everybody it was told of and hears who they are, until all are
//! blank too (then they found a cluster), or somebody has one that it belongs
//! to. What it may conclude from which answer is judged by
//! [`Founding`](tenure_core::alpo::Founding).

use std::sync::Arc;

use tenure_core::alpo::{Answer, Founding, Hello, Identity, Membership, Refusal, Stranger};

use super::inbox::{Event, Inbox, Told};
use super::owner::Ended;
use super::peers::Peers;
use super::shared::Shared;

/// Waits until this server is part of a cluster. The members are none if it
/// has to learn them from its leader.
pub(super) async fn found(
    founding: &mut Founding,
    peers: &mut Peers,
    shared: &Shared,
    inbox: &Arc<Inbox>,
) -> Result<(Identity, Membership), Ended> {
    let wanted = founding.missing().into_iter();
    let wanted = Membership::founded(wanted.map(|id| (id, founding.hello().storage)));
    peers.greeted(&wanted);
    // Alone it needs nobody else.
    if let Some(founded) = founding.complete() {
        return Ok(founded);
    }
    let mut events = Vec::new();
    loop {
        inbox.more().await;
        inbox.take(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Greeted(greeting) => {
                    shared.face().book.learn(&greeting.book);
                    peers.greeted(&wanted);
                    if let Some(founded) = hear(founding, &greeting.hello, shared)? {
                        return Ok(founded);
                    }
                }
                Event::Connected(server, number) => peers.connected(server, number, &wanted),
                Event::Closed(server, number) => {
                    peers.closed(server, number);
                }
                Event::Asked(_, reply) => {
                    let answer = Answer::Refused(Refusal::NotLeader { leader: None });
                    reply.send(Told { answer, at: None });
                }
                Event::Look(look) => look(None),
                Event::Stop => return Err(Ended::Stopped),
                // A leader that has admitted it says so again when it is part
                // of the cluster.
                Event::Received(_) | Event::Persisted(_) => {}
                // Whoever asked sees that nobody will answer.
                Event::Snapshot(teller) => drop(teller),
                Event::DiskFailed(error) => return Err(Ended::Disk(error)),
            }
        }
    }
}

fn hear(
    founding: &mut Founding,
    hello: &Hello,
    shared: &Shared,
) -> Result<Option<(Identity, Membership)>, Ended> {
    let waiting = match founding.heard(hello) {
        Ok(Some(founded)) => return Ok(Some(founded)),
        Ok(None) => {
            let missing: Vec<_> = founding.missing().iter().map(ToString::to_string).collect();
            format!("a new cluster waits for {}", missing.join(", "))
        }
        // Somebody may correct that while this server waits.
        Err(stranger @ (Stranger::NotAMember { .. } | Stranger::NotAPeer { .. })) => {
            stranger.to_string()
        }
        Err(stranger) => return Err(Ended::Stranger(stranger)),
    };
    shared.standing.send_if_modified(|standing| {
        let news = standing.waiting != waiting;
        if news {
            tracing::info!("{waiting}");
            standing.waiting = waiting;
        }
        news
    });
    Ok(None)
}
