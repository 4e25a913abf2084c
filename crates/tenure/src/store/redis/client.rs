//! The connection that calls go over: one, opened when needed, shared by all calls,
//! left when it becomes suspect.
//!
//! A call that is given up before its answer has come leaves its connection: the
//! server may be gone, and the next call finds out. Those that wait for answers on
//! it still get them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ::redis::{Pipeline, ServerError, ServerErrorKind, Value};

use super::classify::{self, Call};
use super::connect::RedisConnection;
use super::durability::Facts;
use super::opening::{self, check_role};
use super::registers::{Lua, is_wrong_type, unexpected};
use super::settings::Settings;
use crate::clock;
use crate::error::StoreError;
use crate::store::Durability;
use crate::store::dial::{ConnectFn, Dialer, HANDSHAKE_WITHIN};

/// Opens connections and carries out calls.
pub(super) struct RedisClient {
    last_warning: Arc<LastWarning>,
    /// What the server is called in errors.
    server: String,
    dialer: Dialer<RedisConnection>,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisClient({})", self.server)
    }
}

/// A call that waits for its answer. Where it is dropped before, its connection is
/// left.
struct Waiting<'a> {
    client: &'a RedisClient,
    connection: &'a RedisConnection,
    is_over: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.client.dialer.abandon(self.connection);
        }
    }
}

impl RedisClient {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        let last_warning = Arc::<LastWarning>::default();
        let (all, told) = (Arc::clone(settings), Arc::clone(&last_warning));
        let connect_to: ConnectFn<RedisConnection> = Arc::new(move |at| {
            let (settings, told) = (Arc::clone(&all), Arc::clone(&told));
            Box::pin(async move {
                let (connection, facts) = opening::open(&settings, at).await?;
                told.tell(&settings, &facts);
                Ok(connection)
            })
        });
        let server = settings.to_string();
        let hosts = settings.route.hosts().to_vec();
        Self {
            last_warning,
            dialer: Dialer::new(server.clone(), hosts, 0, connect_to),
            server,
        }
    }

    /// What the server told when it was connected to last.
    pub(super) fn durability(&self) -> Durability {
        let last = &self.last_warning.0;
        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// The open connection, or a new one. The caller gives up when its own time is
    /// over, and dialling goes on.
    async fn connected(&self) -> Result<RedisConnection, StoreError> {
        let until = clock::boot().after(HANDSHAKE_WITHIN);
        self.dialer.connected(until).await
    }

    /// Runs a script, which may change something; its answer. It is sent by its
    /// hash, and whole where the server does not know it, which it says before it
    /// does anything.
    pub(super) async fn run(
        &self,
        script: &Lua,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<Value, StoreError> {
        let connection = self.connected().await?;
        let mut answer = Value::Nil;
        for [command, which] in [["EVALSHA", &script.hash], ["EVAL", script.code]] {
            let mut call = ::redis::cmd(command);
            call.arg(which).arg(keys.len()).arg(keys).arg(arguments);
            let mut waiting = self.waiting(&connection);
            let answered = connection.call(&call).await;
            answer = match answered {
                Ok(answer) => answer,
                // The connection is left as `waiting` is dropped.
                Err(error) => return Err(classify::broken_line(&self.server, Call::Write, &error)),
            };
            waiting.is_over = true;
            match &answer {
                Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript) => {}
                _ => break,
            }
        }
        match answer {
            Value::ServerError(error) => Err(self.refused(&connection, &error)),
            answer => Ok(answer),
        }
    }

    /// Carries out calls that change nothing, one after the other, on a server that
    /// takes writes; the answer of each, which may say that a key is of another type.
    ///
    /// The server says before and after them that it takes writes: one that becomes
    /// a replica meanwhile may answer with what is old. (A transaction would do as
    /// well, and is refused where memory runs out.)
    pub(super) async fn read(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let connection = self.connected().await?;
        let mut all = ::redis::pipe();
        all.cmd("ROLE");
        for command in commands.cmd_iter() {
            all.add_command(command.clone());
        }
        all.cmd("ROLE");
        let mut waiting = self.waiting(&connection);
        let answered = connection.calls(&all).await;
        let mut answers = match answered {
            Ok(answers) if answers.len() == all.len() => answers,
            Ok(answers) => {
                let found = Value::Array(answers);
                return Err(unexpected("as many answers as calls", &found));
            }
            Err(error) => return Err(classify::broken_line(&self.server, Call::Read, &error)),
        };
        waiting.is_over = true;
        let refused = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) if !is_wrong_type(error) => Some(error),
            _ => None,
        });
        if let Some(error) = refused {
            return Err(self.refused(&connection, error));
        }
        let roles = [answers.pop().unwrap_or_default(), answers.remove(0)];
        for role in roles {
            if let Err(error) = check_role(&role) {
                // It took writes when it was connected to.
                self.dialer.abandon(&connection);
                return Err(error);
            }
        }
        Ok(answers)
    }

    /// What it means that the server has refused a call.
    fn refused(&self, connection: &RedisConnection, error: &ServerError) -> StoreError {
        if classify::is_suspect(error) {
            self.dialer.abandon(connection);
        }
        classify::refused(&self.server, error)
    }

    fn waiting<'a>(&'a self, connection: &'a RedisConnection) -> Waiting<'a> {
        Waiting {
            client: self,
            connection,
            is_over: false,
        }
    }
}

/// What was last said of how the server can lose writes.
#[derive(Default)]
struct LastWarning(Mutex<Durability>);

impl LastWarning {
    /// Says it, if it is another than the last.
    fn tell(&self, settings: &Settings, facts: &Facts) {
        let found = facts.warning();
        let found = found.map_or(Durability::Kept, Durability::Lossy);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == found {
            return;
        }
        if let Durability::Lossy(warning) = &found {
            tracing::warn!(
                "{settings} can lose writes that it has acknowledged; then two may lead, and terms \
                 may come again: {warning} (docs/reference/stores.md, Redis)"
            );
        }
        *last = found;
    }
}
