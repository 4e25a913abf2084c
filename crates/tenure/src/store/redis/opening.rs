//! Opens connections to the server that takes writes: the one of the URL, or the one
//! that a sentinel names.
//!
//! A connection is open when the server has said that it takes writes and is no part of
//! a cluster of Redis, and how it keeps what it acknowledges.

use std::sync::Arc;

use ::redis::Value;

use super::classify;
use super::connect::{RedisConnection, Subscription, connect, failed, listen, log_in};
use super::durability::{ASKED, Facts};
use super::registers::{list, text, unexpected};
use super::sentinels;
use super::settings::{Route, Settings};
use crate::error::StoreError;
use crate::store::dial::{self, ask_others, comparable};

/// Connects by the host of this number, and looks at the server.
pub(super) async fn open(
    settings: &Arc<Settings>,
    at: usize,
) -> Result<(RedisConnection, Facts), StoreError> {
    let (place, by_sentinels) = match &settings.route {
        Route::Server(host) => (host.clone(), false),
        Route::Sentinels(hosts, name) => (agreed(settings, hosts, at, name).await?, true),
    };
    let login = settings.login.clone();
    let connection = connect(settings, &place, move |stream| {
        log_in(stream, login.clone())
    })
    .await?;
    match look(&connection, by_sentinels).await {
        Ok(facts) => Ok((connection, facts)),
        Err(error) => {
            let is_broken = matches!(error, StoreError::Broken(_));
            Err(failed(&place, is_broken, &dial::reason(&error)))
        }
    }
}

/// The server that the sentinel of this number names, unless another sentinel watches
/// another server.
async fn agreed(
    settings: &Arc<Settings>,
    hosts: &[String],
    at: usize,
    name: &str,
) -> Result<String, StoreError> {
    let Some(host) = hosts.get(at) else {
        return Err(StoreError::broken("expected a sentinel of this number"));
    };
    let others = ask_others(hosts, at, |other| {
        let (settings, host, name) = (
            Arc::clone(settings),
            hosts.get(other).cloned(),
            name.to_owned(),
        );
        async move {
            let Some(host) = host else { return Ok(None) };
            let (sentinel, place) = primary(&settings, &host, &name).await?;
            sentinels::ask(&sentinel, &name, place).await.map(Some)
        }
    });
    let (sentinel, place) = primary(settings, host, name).await?;
    if !others.is_empty() {
        let own = sentinels::ask(&sentinel, name, place.clone()).await;
        if let Some(own) = comparable(host, own) {
            sentinels::compare(host, &own, others).await?;
        }
    }
    Ok(place)
}

/// Asks a sentinel where the server of this name is that takes writes. A connection to the
/// sentinel, and the address.
async fn primary(
    settings: &Settings,
    host: &str,
    name: &str,
) -> Result<(RedisConnection, String), StoreError> {
    let login = settings.sentinel_login.clone();
    let sentinel = connect(settings, host, move |stream| log_in(stream, login.clone())).await?;
    let mut ask = ::redis::cmd("SENTINEL");
    ask.arg("get-master-addr-by-name").arg(name);
    let answer = sentinel.call(&ask).await;
    match answer.map_err(|error| classify::connecting(&error))? {
        Value::Array(parts) => match parts.as_slice() {
            [host, port] => match (text(host), text(port)) {
                // Errors show it, so it must not contain ends of lines.
                (Some(host), Some(port)) if !is_plain(host) || !is_plain(port) => {
                    Err(unexpected("an address", &Value::Array(parts)))
                }
                (Some(host), Some(port)) if host.contains(':') => {
                    Ok((sentinel, format!("[{host}]:{port}")))
                }
                (Some(host), Some(port)) => Ok((sentinel, format!("{host}:{port}"))),
                _ => Err(unexpected("an address", host)),
            },
            _ => Err(unexpected("an address", &Value::Array(parts))),
        },
        Value::Nil => Err(StoreError::broken(format!(
            "expected a sentinel that watches a server of the name {name:?}, found one that does \
             not; check the name in the store's URL (`SENTINEL MASTERS` lists them)"
        ))),
        Value::ServerError(error) => Err(classify::refused("the sentinel", &error)),
        other => Err(unexpected("an address", &other)),
    }
}

/// Whether it may be a name or a number.
fn is_plain(text: &str) -> bool {
    !text.contains(|it: char| it.is_control() || it.is_whitespace())
}

/// Connects to listen to a channel, by the first host that leads to the server.
pub(super) async fn subscribe(
    settings: &Settings,
    channel: String,
) -> Result<Subscription, StoreError> {
    let mut last = StoreError::unavailable("expected a host");
    for host in settings.route.hosts() {
        let place = match &settings.route {
            Route::Server(host) => Ok(host.clone()),
            Route::Sentinels(_, name) => {
                let named = primary(settings, host, name).await;
                named.map(|(_, place)| place)
            }
        };
        let (login, channel) = (settings.login.clone(), channel.clone());
        let subscribed = match place {
            Ok(place) => {
                connect(settings, &place, move |stream| {
                    listen(stream, login.clone(), channel.clone())
                })
                .await
            }
            Err(error) => Err(error),
        };
        match subscribed {
            Ok(listening) => return Ok(listening),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Looks at the server: whether it takes writes, and how it keeps them.
async fn look(connection: &RedisConnection, by_sentinels: bool) -> Result<Facts, StoreError> {
    let mut ask = ::redis::pipe();
    ask.cmd("ROLE").cmd("INFO");
    for name in ASKED {
        ask.cmd("CONFIG").arg("GET").arg(name);
    }
    let answers = connection.calls(&ask).await;
    let answers = answers.map_err(|error| classify::connecting(&error))?;
    let [role, info, settings @ ..] = answers.as_slice() else {
        return Err(unexpected("five answers", &Value::Array(answers)));
    };
    check_role(role)?;
    let facts = Facts::new(info, settings, by_sentinels);
    if facts.is_clustered {
        return Err(StoreError::broken(
            "expected a server without cluster mode, found one that has it; a store needs one \
             server, or sentinels",
        ));
    }
    Ok(facts)
}

/// Whether the answer to `ROLE` is of a server that takes writes. What another
/// says may be old.
pub(super) fn check_role(role: &Value) -> Result<(), StoreError> {
    if let Value::ServerError(error) = role {
        return Err(classify::refused("ROLE", error));
    }
    match list(role).and_then(|parts| parts.first()).and_then(text) {
        Some("master") => Ok(()),
        Some("slave") => Err(StoreError::unavailable(
            "expected a server that takes writes, found a replica",
        )),
        _ => Err(unexpected("a role", role)),
    }
}
