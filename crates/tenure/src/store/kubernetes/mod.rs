//! Registers in the Leases and ConfigMaps of a Kubernetes cluster.
//!
//! An election is a Lease, as client-go's `leaderelection` has them, and candidates of
//! both kinds can contend for one (`leases.rs`). Any other register is a ConfigMap. All
//! are in one namespace.
//!
//! A write names the version that it replaces, and its object's `uid`: a PUT, which
//! the API server refuses (409) if the object has another version. A register is made
//! by a POST, and deleted with both as preconditions. Reads name no version: then they
//! see every write that was acknowledged. Changes come by watches (`watcher.rs`).
//!
//! A Lease is written as a whole, with what others have put into it. So the last one
//! that was read or written is kept of each election, or read before the write; the
//! write is by comparison with it all the same.
//!
//! There is no clock to judge grants by, so they are judged by observed silence.
//!
//! Left out on purpose: coordinated leader election (`strategy`, `LeaseCandidate`),
//! credentials of a program (`exec` of a kubeconfig), and reads from a server's cache
//! (`resourceVersion=0`).

mod access;
mod classify;
mod client;
mod clusters;
mod config_maps;
mod files;
mod kubeconfig;
mod leases;
mod names;
mod object;
mod registers;
mod settings;
mod times;
mod token;
mod watcher;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use self::client::{KubernetesClient, Selected};
use self::names::Kind;
use self::object::State;
use self::settings::Settings;
use super::backend::Backend;
use super::{Expect, Key, PAGE_MAX, Page, Polled, Reading, Version, Write, Written};
use crate::error::StoreError;

/// How many Leases are kept. When there are more, all are forgotten: that costs a read
/// before the next write of each.
const LEASES_MAX: usize = 1_024;

/// The calls of Kubernetes.
#[derive(Debug)]
pub(super) struct Kubernetes {
    settings: Arc<Settings>,
    client: Arc<KubernetesClient>,
    /// The Lease of each election as it was last read or written.
    leases: Mutex<BTreeMap<Key, Arc<Value>>>,
}

/// The store that `url` names. Connects at the first call.
pub(super) fn open(url: &str) -> Result<Polled<Kubernetes>, StoreError> {
    let settings = Arc::new(Settings::parse(url)?);
    let client = Arc::new(KubernetesClient::new(&settings)?);
    let backend = Kubernetes {
        settings,
        client,
        leases: Mutex::default(),
    };
    Ok(Polled::watched_by(backend, |backend, hub| {
        watcher::start(Arc::clone(&backend.client), hub)
    }))
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl Kubernetes {
    fn leases(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Value>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, key: &Key, lease: Value) -> Arc<Value> {
        let lease = Arc::new(lease);
        let mut leases = self.leases();
        if leases.len() >= LEASES_MAX {
            leases.clear();
        }
        leases.insert(key.clone(), Arc::clone(&lease));
        lease
    }

    /// The object of a key, if it is there and is this key's.
    async fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        let (kind, name) = (Kind::of(key), names::name(key));
        let object = self.client.get(kind, &name).await?;
        match &object {
            Some(found) if object::key(kind, found).as_ref() != Some(key) => {
                let (_, called) = kind.type_meta();
                Err(StoreError::broken(format!(
                    "expected the {called} {name} to be {key}, as its annotation {} says, found \
                     another; delete it, or write the annotation",
                    names::KEY
                )))
            }
            _ => Ok(object),
        }
    }

    /// The Lease in this state, if it still has it.
    async fn lease(&self, key: &Key, state: &State) -> Result<Arc<Value>, StoreError> {
        let is_it = |lease: &Value| object::state(lease).is_ok_and(|it| it == *state);
        let kept = self.leases().get(key).cloned();
        if let Some(kept) = kept.filter(|kept| is_it(kept)) {
            return Ok(kept);
        }
        match self.get(key).await {
            Ok(Some(lease)) if is_it(&lease) => Ok(self.keep(key, lease)),
            Ok(_) => Err(StoreError::Conflict),
            Err(error) => Err(error),
        }
    }

    /// The object that a write makes.
    async fn written(&self, write: &Write) -> Result<Value, StoreError> {
        let (key, namespace) = (&write.key, &self.settings.namespace);
        let replaced = match &write.expect {
            Expect::Absent => None,
            // One that the server cannot have given is of no register.
            Expect::Version(version) => Some(State::of(version).ok_or(StoreError::Conflict)?),
        };
        match (Kind::of(key), &replaced) {
            (Kind::ConfigMap, state) => Ok(config_maps::encode(
                key,
                namespace,
                &write.value,
                state.as_ref(),
            )),
            (Kind::Lease, None) => leases::encode(key, namespace, &write.value, None),
            (Kind::Lease, Some(state)) => {
                let lease = self.lease(key, state).await?;
                leases::encode(key, namespace, &write.value, Some(&lease))
            }
        }
    }
}

impl Backend for Kubernetes {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let object = self.get(key).await?;
        let register = object
            .as_ref()
            .map(|object| registers::decode_one(key, object));
        let register = register.transpose()?;
        if let (Kind::Lease, Some(lease)) = (Kind::of(key), object) {
            self.keep(key, lease);
        }
        Ok(Reading {
            register,
            now: None,
            bound: None,
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let kind = Kind::of(&write.key);
        let object = self.written(write).await?;
        let written = self.client.put(kind, &object).await?;
        // An answer that cannot be read says nothing of what was done.
        let state = object::state(&written).map_err(StoreError::unknown)?;
        if kind == Kind::Lease {
            self.keep(&write.key, written);
        }
        Ok(Written {
            version: state.version(),
            now: None,
        })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let state = State::of(expected).ok_or(StoreError::Conflict)?;
        let (kind, name) = (Kind::of(key), names::name(key));
        self.client.delete(kind, &name, &state).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let mut found = Vec::new();
        for kind in Kind::ALL {
            if !kind.may_begin(prefix) {
                continue;
            }
            let selected = Selected::Labels(names::selector(kind, prefix));
            let is_meant = |key: &Key| {
                key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after)
            };
            let keep = |item: &Value| registers::keep(kind, item, is_meant);
            let (more, _) = self.client.list(kind, &selected, keep).await?;
            found.extend(more);
        }
        found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut page = Page::default();
        if found.len() > PAGE_MAX {
            found.truncate(PAGE_MAX);
            page.more_after = found.last().map(|(key, _)| key.clone());
        }
        page.registers = found;
        Ok(page)
    }
}
