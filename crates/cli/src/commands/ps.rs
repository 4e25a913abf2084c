//! `tenure ps` and `tenure watch --group`: what a group looks like, read from
//! the store. No agent is asked, so it works wherever the store is reached,
//! and for groups all of whose agents are dead.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::core::time::{StoreTime, WallTime};
use tenure::ha::{Assignment, Heartbeat, Keys, Member, NodeId, Place, Target, View};
use tenure::store::{Key, Register, Selector, Store};
use tenure::{Name, StoreError, clock};

use crate::agent::{Condition, MoveReason, NodeStatus, pending_reason};
use crate::failure::{Failure, store_failure, usage};
use crate::output::{counted, quorum_of, timestamp};
use crate::{Context, args};

/// How often to look at a group where there is no watch.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn ps(context: &Context, args: &args::Ps) -> Result<ExitCode, Failure> {
    let store = context.open_existing().await?;
    let groups = match &args.group {
        Some(group) => vec![group_name(group)?],
        None => groups(context, store.as_ref()).await?,
    };
    if groups.is_empty() {
        context.output.note(
            "no group in this store yet: start an agent with `tenure node --group NAME`, or name \
             another store with --store",
        );
    }
    for group in groups {
        let keys = Keys::of(group.clone());
        let Some(view) = view(context, store.as_ref(), &keys).await? else {
            return Err(Failure::Other(anyhow::anyhow!(
                "expected a group that some node has joined, found none called {group} in this \
                 store; `tenure ps` without --group lists all"
            )));
        };
        let heartbeats = heartbeats(context, store.as_ref(), &keys).await?;
        show(context, &view, &heartbeats)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn group_name(group: &str) -> Result<Name, Failure> {
    Name::new(group).map_err(|error| usage(format!("--group: {error}")))
}

/// All registers with a prefix of which `pick` makes something.
async fn list<T>(
    context: &Context,
    store: &dyn Store,
    prefix: &str,
    pick: impl Fn(&Key, &Register, Option<StoreTime>) -> Option<T>,
) -> Result<Vec<T>, Failure> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(prefix, after.as_ref(), context.timeout).await;
        let page = page.map_err(store_failure)?;
        let registers = page.registers.iter();
        found.extend(registers.filter_map(|(key, register)| pick(key, register, page.now)));
        after = page.more_after;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// The groups of a store.
async fn groups(context: &Context, store: &dyn Store) -> Result<Vec<Name>, Failure> {
    let group = |key: &Key, _: &Register, _| {
        let rest = key.as_str().strip_prefix(Keys::PREFIX)?;
        Name::new(rest.strip_suffix("/view")?).ok()
    };
    list(context, store, Keys::PREFIX, group).await
}

async fn view(context: &Context, store: &dyn Store, keys: &Keys) -> Result<Option<View>, Failure> {
    let read = store.read(&keys.view(), context.timeout).await;
    let register = read.map_err(store_failure)?.register;
    let view = register.map(|register| View::decode(&register.value));
    view.transpose().map_err(|error| {
        let key = keys.view();
        store_failure(StoreError::broken(format!(
            "the view of the group, {key}: {error}"
        )))
    })
}

/// What a node's heartbeat tells.
#[derive(Clone, Default)]
struct HeartbeatInfo {
    status: NodeStatus,
    /// How long ago the last beat was, for stores with a clock.
    silence: Option<Duration>,
}

impl HeartbeatInfo {
    /// Whether the node has been silent for so long that it may be dead.
    fn is_silent(&self, member: &Member) -> bool {
        self.silence.is_some_and(|silence| silence > member.lease)
    }
}

async fn heartbeats(
    context: &Context,
    store: &dyn Store,
    keys: &Keys,
) -> Result<BTreeMap<NodeId, HeartbeatInfo>, Failure> {
    let heartbeat = |key: &Key, register: &Register, now: Option<StoreTime>| {
        let heartbeat = Heartbeat::decode(&register.value).ok()?;
        let status = NodeStatus::parse(&heartbeat.status);
        let silence = now.zip(register.stamp);
        let silence = silence.and_then(|(now, stamp)| now.since(stamp));
        Some((keys.node(key)?, HeartbeatInfo { status, silence }))
    };
    let found = list(context, store, &keys.heartbeats(), heartbeat).await?;
    Ok(found.into_iter().collect())
}

fn show(
    context: &Context,
    view: &View,
    heartbeats: &BTreeMap<NodeId, HeartbeatInfo>,
) -> Result<(), Failure> {
    let (nodes, quorum) = (view.voters(), view.quorum);
    let attained = view.has_quorum();
    let silent = |member: &&Member| {
        let heartbeat = heartbeats.get(&member.id);
        heartbeat.is_some_and(|heartbeat| heartbeat.is_silent(member))
    };
    let silent = view.members.iter().filter(silent).count();
    // A view does not tell whether there ever was one, so none is "lost" here.
    let needed = match (quorum, attained) {
        (0, _) => "no quorum needed".to_owned(),
        (_, true) => format!("quorum {quorum} attained"),
        (_, false) => format!("quorum {quorum} missing"),
    };
    let text = format!(
        "group {}: {}, {needed}, epoch {}{}",
        view.group,
        counted(nodes, "HA node"),
        view.epoch,
        if silent > 0 {
            format!(" ({silent} silent)")
        } else {
            String::new()
        }
    );
    let object = json!({
        "type": "group", "group": view.group.as_str(), "epoch": view.epoch, "ha_nodes": nodes,
        "quorum": quorum, "attained": attained, "spread": view.spread, "silent": silent,
    });
    context.output.line(&text, &object)?;
    let heads = ["NODE", "ID", "STATE", "WORKLOADS", "UP", "HOST", "LABELS"];
    let mut rows = vec![heads.map(str::to_owned)];
    let mut objects = Vec::new();
    let mut members: Vec<&Member> = view.members.iter().collect();
    members.sort_by_key(|member| (&member.name, member.id));
    for member in members {
        let heartbeat = heartbeats.get(&member.id).cloned().unwrap_or_default();
        let (row, object) = node(view, member, &heartbeat);
        rows.push(row);
        objects.push(object);
    }
    context.output.table(&rows, &objects)?;
    if view.workloads.is_empty() {
        return Ok(());
    }
    let heads = [
        "WORKLOAD", "NODE", "STATE", "FOR", "FENCE", "RESTARTS", "FAILED", "FROM", "WHY",
    ];
    let (mut rows, mut objects) = (vec![heads.map(str::to_owned)], Vec::new());
    for (name, it) in &view.workloads {
        let (row, object) = workload(view, name, it, heartbeats);
        rows.push(row);
        objects.push(object);
    }
    context.output.table(&rows, &objects)?;
    Ok(())
}

fn node(view: &View, member: &Member, heartbeat: &HeartbeatInfo) -> ([String; 7], Value) {
    let status = &heartbeat.status;
    let state = match (member.draining, member.ha) {
        _ if heartbeat.is_silent(member) => "silent",
        (true, _) => "draining",
        (false, true) => "ha",
        (false, false) => "not ha",
    };
    let held = view.held_by(member.id).count();
    let labels: Vec<&str> = member.labels.iter().map(Name::as_str).collect();
    let id = member.id.to_string();
    let row = [
        member.name.to_string(),
        id.chars().take(8).collect(),
        state.to_owned(),
        member
            .max
            .map_or_else(|| held.to_string(), |max| format!("{held}/{max}")),
        age(status.since),
        status.host.clone(),
        labels.join(","),
    ];
    let object = json!({
        "type": "node", "group": view.group.as_str(), "node": member.name.as_str(), "id": id,
        "state": state, "ha": member.ha, "draining": member.draining, "workloads": held, "max": member.max,
        "labels": labels, "host": status.host, "pid": status.pid, "version": status.version,
        "since": since(status.since), "metrics": status.metrics,
        "silent_ms": heartbeat.silence.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
        "lease_ms": u64::try_from(member.lease.as_millis()).unwrap_or(u64::MAX),
    });
    (row, object)
}

/// The name of a node, or its id once it has gone.
fn node_name(view: &View, id: NodeId) -> String {
    let member = view.member(id);
    member.map_or_else(|| id.to_string(), |member| member.name.to_string())
}

fn workload(
    view: &View,
    name: &Name,
    it: &Assignment,
    heartbeats: &BTreeMap<NodeId, HeartbeatInfo>,
) -> ([String; 9], Value) {
    let holder = it.place.holder();
    let heartbeat = holder.and_then(|id| heartbeats.get(&id));
    let member = holder.and_then(|id| view.member(id));
    let silent = heartbeat
        .zip(member)
        .is_some_and(|(heartbeat, member)| heartbeat.is_silent(member));
    let entry = heartbeat.and_then(|heartbeat| heartbeat.status.workloads.get(name.as_str()));
    let state = if silent {
        // It may run, or not: nobody has told.
        "unknown".to_owned()
    } else {
        state(view, it, entry.map(|entry| entry.condition))
    };
    let mut entry = entry.cloned().unwrap_or_default();
    if it.ha && !view.has_quorum() {
        // It does not run now, or will not in a moment.
        (entry.condition, entry.since) = (Condition::Stopped, 0);
    }
    let live = |member: &Member| {
        let heartbeat = heartbeats.get(&member.id);
        !heartbeat.is_some_and(|heartbeat| heartbeat.is_silent(member))
    };
    let why = pending_reason(view, it, live).filter(|_| !silent);
    let why = why.or_else(|| entry.why.clone());
    let from = entry.origin.as_ref().map(|(node, how)| match how {
        MoveReason::Died => format!("{node} (died)"),
        MoveReason::Moved => format!("{node} (moved)"),
    });
    let runs = entry.condition == Condition::Running;
    let node = holder.map(|id| node_name(view, id));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = [
        name.to_string(),
        or_dash(node.clone()),
        state.clone(),
        age(entry.since),
        or_dash(runs.then(|| entry.epoch.to_string())),
        entry.restarts.to_string(),
        format!(
            "{}{}",
            entry.failed,
            if it.fails > 0 {
                format!("+{}", it.fails)
            } else {
                String::new()
            }
        ),
        or_dash(from),
        if runs {
            String::new()
        } else {
            why.clone().unwrap_or_default()
        },
    ];
    let object = json!({
        "type": "workload", "group": view.group.as_str(), "workload": name.as_str(),
        "node": node, "node_id": holder.map(|id| id.to_string()), "state": state,
        "since": since(entry.since), "fence": runs.then_some(entry.epoch), "ha": it.ha,
        "instances": it.instances, "order": it.order,
        "needs": it.needs.iter().map(Name::as_str).collect::<Vec<_>>(),
        "restarts": entry.restarts, "failed_starts": entry.failed, "nodes_failed": it.fails,
        "why": why,
        "from": entry.origin.as_ref().map(|(node, _)| node),
        "from_how": entry.origin.as_ref().map(|(_, how)| how),
    });
    (row, object)
}

/// How a workload is: what the view wants, and what its node says.
fn state(view: &View, it: &Assignment, condition: Option<Condition>) -> String {
    match it.place {
        Place::Waiting => "waiting for a node".into(),
        Place::Releasing { to, .. } => match to {
            Target::Nowhere => "ending".into(),
            Target::Anyone => "moving".into(),
            Target::Node(id) => format!("moving to {}", node_name(view, id)),
        },
        Place::Assigned(_) if it.ha && !view.has_quorum() => "waiting for quorum".into(),
        Place::Assigned(_) => match condition {
            None => "assigned".into(),
            Some(Condition::Starting | Condition::Stopped) => "starting".into(),
            Some(Condition::Running) => "running".into(),
            Some(Condition::Failing) => "failing".into(),
            Some(Condition::Completed) => "completed".into(),
        },
    }
}

/// How long ago that was, by the calendar.
fn age(since: u64) -> String {
    if since == 0 {
        return "-".into();
    }
    let seconds = clock::wall().as_millis().saturating_sub(since) / 1_000;
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn since(millis: u64) -> Option<String> {
    (millis > 0).then(|| timestamp(WallTime::from_millis(millis)))
}

/// Prints a line per change, for ever.
pub(crate) async fn watch(context: &Context, group: &str) -> Result<ExitCode, Failure> {
    let store = context.open_existing().await?;
    let keys = Keys::of(group_name(group)?);
    let mut news = Arc::clone(&store).watch(Selector::Key(keys.view()));
    let mut before: Option<View> = None;
    let (mut down, mut told) = (false, false);
    loop {
        match view(context, store.as_ref(), &keys).await {
            Ok(Some(view)) => {
                if std::mem::take(&mut down) {
                    tracing::warn!("{group}: the store answers again");
                }
                if before.as_ref().map(|before| before.epoch) != Some(view.epoch) {
                    for (text, object) in changes(before.as_ref(), &view) {
                        context.output.change(&text, object)?;
                    }
                    before = Some(view);
                }
            }
            Ok(None) if !std::mem::replace(&mut told, true) => context.output.note(&format!(
                "no group {group} in this store yet: start an agent with `tenure node --group \
                 {group}`; `tenure ps` lists the groups that there are"
            )),
            Ok(None) => {}
            Err(failure @ Failure::Usage(_)) => return Err(failure),
            Err(failure) => {
                if !std::mem::replace(&mut down, true) {
                    tracing::warn!("{group}: {failure}");
                }
            }
        }
        // The watch makes it quick, the look makes it certain.
        let _ = tokio::time::timeout(POLL_INTERVAL, news.next()).await;
    }
}

/// What has changed since `before`, each with an object.
fn changes(before: Option<&View>, view: &View) -> Vec<(String, Value)> {
    let mut said = Vec::new();
    let (group, epoch) = (view.group.as_str(), view.epoch);
    let mut say = |kind: &str, text: String, mut object: Value| {
        object["type"] = kind.into();
        object["group"] = group.into();
        object["epoch"] = epoch.into();
        said.push((format!("{group} {epoch}: {text}"), object));
    };
    for member in before.iter().flat_map(|before| &before.members) {
        if view.member(member.id).is_none() {
            let gone = view.departures.iter().find(|gone| gone.id == member.id);
            let died = gone.is_none_or(|gone| gone.died);
            let how = if died { "died" } else { "left" };
            let object = json!({ "node": member.name.as_str(), "id": member.id.to_string() });
            say(how, format!("{} has {how}", member.name), object);
        }
    }
    for member in &view.members {
        let known = before.and_then(|before| before.member(member.id));
        let object = || json!({ "node": member.name.as_str(), "id": member.id.to_string() });
        if known.is_none() {
            say("joined", format!("{} has joined", member.name), object());
        } else if member.draining && known.is_some_and(|known| !known.draining) {
            say("draining", format!("{} is draining", member.name), object());
        }
    }
    let attained = view.has_quorum();
    if before.is_none_or(|before| before.has_quorum() != attained) {
        let (nodes, quorum) = (view.voters(), view.quorum);
        let word = match (attained, before) {
            (true, _) => "attained",
            (false, None) => "missing",
            (false, Some(_)) => "lost",
        };
        let object = json!({ "nodes": nodes, "quorum": quorum, "attained": attained });
        say(
            "quorum",
            format!("quorum {word}: {}", quorum_of(nodes, quorum)),
            object,
        );
    }
    for (name, it) in &view.workloads {
        let known = before.and_then(|before| before.workloads.get(name));
        if known.is_some_and(|known| known.place == it.place) {
            continue;
        }
        let node = it.place.holder().map(|id| node_name(view, id));
        let shown = match (&node, it.place) {
            (Some(node), Place::Assigned(_)) => format!("{name} is assigned to {node}"),
            (Some(node), _) => format!("{name} on {node}: {}", state(view, it, None)),
            (None, _) => format!("{name}: {}", state(view, it, None)),
        };
        let object = json!({ "workload": name.as_str(), "node": node });
        say("placed", shown, object);
    }
    let names = before.iter().flat_map(|before| before.workloads.keys());
    for name in names.filter(|name| !view.workloads.contains_key(*name)) {
        let object = json!({ "workload": name.as_str() });
        say("gone", format!("{name} is gone"), object);
    }
    said
}
