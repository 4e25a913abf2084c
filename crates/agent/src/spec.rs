//! What a workload is: the command and all that goes with it, as a user wants it
//! and as it lies in the store. A file may describe many (`workload_file.rs`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure::ha::{Deployment, Start};

use super::messages::{LogLimits, RestartPolicy, RunSpec};

/// What the content register calls workloads that are processes.
pub const KIND: &str = "process";
/// The longest config, in bytes: the kernel takes no environment variable
/// above 128 KiB.
pub const CONFIG_MAX: usize = 100 << 10;
/// The most instances of a process on one node: each has a guardian.
pub const INSTANCES_MAX: u32 = 100;
/// Where the command finds its config. `TENURE_CONFIG` names the settings of
/// `tenure` itself, which a command may call.
pub(super) const CONFIG: &str = "TENURE_WORKLOAD_CONFIG";
const GROUP: &str = "TENURE_GROUP";
const NODE: &str = "TENURE_NODE";
const WORKLOAD: &str = "TENURE_WORKLOAD";
const FENCE: &str = "TENURE_FENCE";
const INSTANCES: &str = "TENURE_INSTANCES";
/// Which of the instances it is, from 0.
pub(super) const INSTANCE: &str = "TENURE_INSTANCE";
/// The variables that the agent sets for every command.
const AGENT_VARIABLES: [&str; 6] = [GROUP, NODE, WORKLOAD, FENCE, INSTANCES, INSTANCE];
/// How long a process must run to have been started, unless that is said.
pub const READY_MS: u64 = 500;

/// A command and what goes with it, as it lies in the store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// A file of its node with more of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    /// When it is started again.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// How long it must run to have been started, in milliseconds.
    #[serde(default = "ready_ms")]
    pub ready_ms: u64,
    /// As it was given: JSON, which the command sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}

const fn ready_ms() -> u64 {
    READY_MS
}

/// A workload as a user wants it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// Its name in its group.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables for it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The path of a file on the node that has it, with more variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_file: Option<String>,
    /// A node's name or id; otherwise any node that fits.
    #[serde(default)]
    pub node: Option<String>,
    /// Whether it moves off a dead node.
    #[serde(default = "yes")]
    pub ha: bool,
    /// How many of it run.
    #[serde(default = "one")]
    pub instances: u32,
    /// Its place in the order of starts on one node: lower ones run first.
    #[serde(default)]
    pub order: u32,
    /// Labels that its node must have.
    #[serde(default)]
    pub needs: Vec<String>,
    /// When it is started again.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// How long it must run to have been started, such as `2s`.
    #[serde(default)]
    pub ready: Option<String>,
    /// What the command finds as JSON.
    #[serde(default)]
    pub config: Option<Value>,
}

const fn yes() -> bool {
    true
}

const fn one() -> u32 {
    1
}

impl Workload {
    /// What is asked of the group.
    ///
    /// # Errors
    /// What is wrong with it, for a person, without a value that may be a secret.
    pub fn deployment(&self) -> Result<Deployment, String> {
        self.check_command()?;
        if !(1..=INSTANCES_MAX).contains(&self.instances) {
            let found = self.instances;
            let instead = match found {
                0 => "`tenure undeploy` is what ends a workload",
                _ => "for more, deploy it under several names",
            };
            return Err(format!(
                "expected 1 to {INSTANCES_MAX} instances, found {found}; {instead}"
            ));
        }
        let config = self.config.as_ref().map(Value::to_string);
        let bytes = config.map_or(0, |text| text.len());
        if bytes > CONFIG_MAX {
            return Err(format!(
                "expected a config of at most {CONFIG_MAX} bytes, found {bytes}; keep it \
                 elsewhere and say where"
            ));
        }
        let ready_ms = match &self.ready {
            None => READY_MS,
            Some(text) => {
                let parsed = humantime::parse_duration(text);
                let parsed = parsed
                    .map_err(|_| "ready: expected a duration like 10s or 500ms".to_owned())?;
                u64::try_from(parsed.as_millis()).unwrap_or(u64::MAX)
            }
        };
        let process = Process {
            command: self.command.clone(),
            env: self.env.clone(),
            env_file: self.env_file.clone(),
            restart: self.restart,
            ready_ms,
            config: self.config.clone(),
        };
        let content = serde_json::to_vec(&process).map_err(|error| error.to_string())?;
        let deployment = Deployment::new(&self.name, KIND)
            .config(content)
            .instances(self.instances)
            .ha(self.ha)
            .order(self.order);
        Ok(self.needs.iter().fold(deployment, Deployment::needs))
    }

    /// Refuses a command that no node could start as it is meant, with its
    /// variables.
    fn check_command(&self) -> Result<(), String> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err("expected a command, found none".into());
        }
        let nul = |text: &String| text.contains('\0');
        let keys = self.env.keys();
        if self
            .command
            .iter()
            .chain(keys)
            .chain(self.env.values())
            .any(nul)
        {
            return Err("expected a command and variables without zero bytes, found one".into());
        }
        if self.env.keys().any(|it| it.is_empty() || it.contains('=')) {
            return Err(
                "expected names of variables, found one that is empty or has a = in it".into(),
            );
        }
        if let Some(file) = &self.env_file
            && (!file.starts_with('/') || file.contains('\0'))
        {
            return Err(
                "expected the whole path of a file on the nodes as env-file, which begins with /"
                    .into(),
            );
        }
        let is_set_by_agent = |name: &&str| {
            AGENT_VARIABLES.contains(name) || (*name == CONFIG && self.config.is_some())
        };
        let names = self.env.keys().map(String::as_str);
        let set_by_agent: Vec<&str> = names.filter(is_set_by_agent).collect();
        if !set_by_agent.is_empty() {
            return Err(format!(
                "env: expected other variables than those that the agent sets, found {}; take \
                 them out, or give them other names",
                set_by_agent.join(", ")
            ));
        }
        Ok(())
    }
}

/// What is the same for all workloads of an agent.
#[derive(Clone, Debug)]
pub(super) struct WorkloadDefaults {
    pub(super) group: String,
    pub(super) node: String,
    pub(super) grace_ms: u64,
    pub(super) log: LogLimits,
}

impl WorkloadDefaults {
    /// What the shim is ordered to start.
    ///
    /// # Errors
    /// If the content is none that this version understands.
    pub(super) fn run_spec(&self, start: &Start) -> Result<RunSpec, String> {
        let process: Process = serde_json::from_slice(&start.config).map_err(|error| {
            format!(
                "expected a command that this version understands: {error}; upgrade this agent, \
                 or deploy it again"
            )
        })?;
        if start.instances > INSTANCES_MAX {
            return Err(format!(
                "expected at most {INSTANCES_MAX} instances, found {}",
                start.instances
            ));
        }
        let mut env: Vec<(String, String)> = process.env.into_iter().collect();
        let mut add = |key: &str, value: String| env.push((key.to_owned(), value));
        add(GROUP, self.group.clone());
        add(NODE, self.node.clone());
        add(WORKLOAD, start.name.to_string());
        add(FENCE, start.fence.to_string());
        add(INSTANCES, start.instances.to_string());
        if let Some(config) = process.config {
            add(CONFIG, config.to_string());
        }
        Ok(RunSpec {
            run: start.run.0,
            id: start.id.to_string(),
            name: start.name.to_string(),
            digest: start.digest.to_string(),
            instances: start.instances,
            fence: start.fence,
            times: start.grant.into(),
            argv: process.command,
            env,
            env_file: process.env_file,
            restart: process.restart,
            ready_ms: process.ready_ms,
            grace_ms: self.grace_ms,
            log: self.log,
        })
    }
}

#[cfg(test)]
mod tests {
    use tenure::Name;
    use tenure::core::election::Grant;
    use tenure::core::time::Instant;
    use tenure::ha::{Digest, NodeId, Run};

    use super::*;
    use crate::workload_file::WorkloadFile;

    fn parsed(text: &str) -> Result<Vec<Workload>, String> {
        let file: Result<WorkloadFile, _> = toml::from_str(text);
        file.map(|file| file.workload)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_describes_many_workloads() {
        let text = r#"
            [[workload]]
            name = "web"
            command = ["./serve", "--port", "80"]
            instances = 2
            needs = ["zone=a"]
            restart = "on-failure"
            ready = "2s"
            env = { A = "b" }
            config = { greeting = "hello", list = [1, 2] }
            [[workload]]
            name = "cron"
            command = ["cron"]
            ha = false
            node = "one"
        "#;
        let all = parsed(text).expect("fine");
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].restart, RestartPolicy::OnFailure);
        let config = all[0].config.as_ref().expect("one").to_string();
        assert_eq!(config, r#"{"greeting":"hello","list":[1,2]}"#);
        assert!(!all[1].ha && all[1].instances == 1);
        for workload in all {
            let deployment = workload.deployment();
            assert!(deployment.is_ok(), "{deployment:?}");
        }
    }

    /// No agent sets these, so they reach the command.
    #[test]
    fn variables_of_other_programs_are_taken() {
        for env in ["TENURE_STORE", "TENURE_WORKLOAD_CONFIG", "FENCE"] {
            let text =
                format!("[[workload]]\nname = \"w\"\ncommand = [\"x\"]\nenv = {{ {env} = \"y\" }}");
            let one = parsed(&text).expect("fine").remove(0);
            let _ = one.deployment().expect(env);
        }
    }

    /// Earlier releases deployed what is refused now.
    #[test]
    fn what_lies_in_a_store_runs_as_before() {
        let stored = r#"{"command":["x"],"env":{"A":"b","TENURE_FENCE":"99"},
            "config":{"a":null,"c":{"$__toml_private_datetime":"1979-05-27"}}}"#;
        let limits = LogLimits { bytes: 1, files: 1 };
        let defaults = WorkloadDefaults {
            group: "g".into(),
            node: "n".into(),
            grace_ms: 1,
            log: limits,
        };
        let at = Instant::ZERO;
        let start = Start {
            id: NodeId::parse(&"7".repeat(32)).expect("an id"),
            run: Run(1),
            name: Name::new("w").expect("a name"),
            digest: Digest::new(&"7".repeat(32)).expect("a digest"),
            config: stored.as_bytes().to_vec().into(),
            instances: 1,
            fence: 3,
            grant: Grant {
                start: at,
                drain_at: at,
                kill_at: at,
                valid_until: at,
            },
        };
        let spec = defaults.run_spec(&start).expect("it is understood");
        let last = |name: &str| {
            let value = spec.env.iter().rev().find(|(key, _)| key == name);
            value.map(|(_, value)| value.as_str())
        };
        assert_eq!((last("A"), last("TENURE_FENCE")), (Some("b"), Some("3")));
        let config = last(CONFIG).expect("one");
        assert!(config.contains("private_datetime"), "{config}");
        let set = spec.env.iter().map(|(key, _)| key.as_str());
        for name in set.filter(|key| key.starts_with("TENURE_") && *key != CONFIG) {
            assert!(AGENT_VARIABLES.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_cannot_run_is_refused_with_a_reason() {
        let table = "[[workload]]\nname = \"w\"\n";
        for (text, word) in [
            ("command = []", "a command"),
            (
                "command = [\"x\"]\ninstances = 0",
                "found 0; `tenure undeploy`",
            ),
            (
                "command = [\"x\"]\ninstances = 101",
                "found 101; for more, deploy",
            ),
            ("command = [\"x\"]\nready = \"5ecre7\"", "a duration"),
            ("command = [\"x\"]\nenv-file = \"5ecre7\"", "the whole path"),
            (
                "command = [\"x\"]\nenv = { \"5ecre7=b\" = \"c\" }",
                "names of variables",
            ),
            ("command = [\"x\\u0000\"]", "zero bytes"),
            (
                "command = [\"x\"]\nenv = { TENURE_FENCE = \"5ecre7\", TENURE_INSTANCE = \"1\" }",
                "found TENURE_FENCE, TENURE_INSTANCE; take them out",
            ),
            (
                "command = [\"x\"]\nconfig = 1\nenv = { TENURE_WORKLOAD_CONFIG = \"5ecre7\" }",
                "found TENURE_WORKLOAD_CONFIG; take",
            ),
        ] {
            let one = parsed(&format!("{table}{text}")).expect(text).remove(0);
            let why = one.deployment().expect_err(text);
            assert!(why.contains(word) && !why.contains("5ecre7"), "{why}");
        }
        for text in ["command = [\"x\"]\ncolour = 1", "", "command = \"x\""] {
            parsed(&format!("{table}{text}")).expect_err(text);
        }
        let long = Value::String("x".repeat(CONFIG_MAX));
        let mut one = parsed(&format!("{table}command = [\"x\"]")).expect("fine");
        one[0].config = Some(long);
        let why = one[0].deployment().expect_err("long");
        assert!(why.contains("at most"), "{why}");
    }
}
