//! What `dist/` ships: a unit that systemd takes, and settings that a server
//! starts with.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::TENURE;
use crate::common::servers::free;

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../dist")
        .join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(dist(name)).expect(name)
}

/// The settings of `dist/tenure.env`.
fn settings() -> BTreeMap<String, String> {
    let text = read("tenure.env");
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, value) = line.split_once('=').expect("NAME=VALUE");
        (name.to_owned(), value.to_owned())
    };
    lines.map(pair).collect()
}

/// What the unit starts, without the path of the binary.
fn started() -> Vec<String> {
    let unit = read("tenure.service");
    let line = unit.lines().find_map(|it| it.strip_prefix("ExecStart="));
    let mut words = line.expect("ExecStart").split(' ').map(str::to_owned);
    let binary = words.next().expect("a binary");
    assert!(binary.ends_with("/tenure"), "{binary}");
    words.collect()
}

fn run(args: &[&str]) {
    let done = Command::new(TENURE).args(args).output().expect("it runs");
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_server_starts_with_the_settings_that_are_shipped() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).display().to_string();
    run(&["certs", &path(""), "--server", "1"]);
    run(&[
        "token",
        "operator",
        "--admin",
        "--tokens",
        &path("tokens.toml"),
        "--out",
        &path("t"),
    ]);
    // The same names and the same form, with files and ports of this machine.
    let free = free::<4>();
    let mut settings = settings();
    for (name, value) in &mut settings {
        *value = value.replace("/etc/tenure", place.path().to_str().expect("a path"));
        *value = value.replace("/var/lib/tenure", &path("state"));
        if name == "TENURE_LISTEN" {
            value.clone_from(&free[0]);
        }
        for (number, address) in free.iter().enumerate().skip(1) {
            *value = value.replace(&format!("10.0.0.{number}:7500"), address);
        }
        assert!(!value.contains("10.0.0."), "{name}={value}");
    }
    assert_eq!(settings.len(), 8, "{settings:?}");
    let mut serve = Command::new(TENURE);
    serve.args(started()).env_clear().envs(&settings);
    let server = serve.stdout(Stdio::piped()).spawn();
    let mut server = server.expect("a server");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    server.kill().expect("killed");
    server.wait().expect("it ends");
    assert!(
        line.contains(&format!("server 1 listens on {}", free[0])),
        "{line}"
    );
}

#[test]
fn a_server_starts_from_a_file_and_flags_beat_it() {
    let place = tempfile::tempdir().expect("a directory");
    let free = free::<3>();
    let file = place.path().join("tenure.toml");
    let data = place.path().join("data");
    let text = format!(
        "[serve]\nid = 1\npeers = [\"1={}\"]\ndata = {data:?}\nlisten = \"{}\"\n",
        free[0], free[1]
    );
    std::fs::write(&file, &text).expect("written");
    let mut serve = Command::new(TENURE);
    serve.arg("serve").arg("--config").arg(&file);
    let server = serve.args(["--listen", &free[2]]).stdout(Stdio::piped());
    let mut server = server.spawn().expect("a server");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    server.kill().expect("killed");
    server.wait().expect("it ends");
    assert!(
        line.contains(&format!("server 1 listens on {}", free[2])),
        "{line}"
    );
    for (text, said) in [
        (
            text.replace("id = 1\n", ""),
            "--id: expected this server's number",
        ),
        (text.replace("data = ", "date = "), "unknown field `date`"),
        (
            text.clone() + "tls-cert = \"x\"\n",
            "--tls-cert, --tls-key and --tls-ca together",
        ),
    ] {
        std::fs::write(&file, text).expect("written");
        let mut serve = Command::new(TENURE);
        let refused = serve.arg("serve").arg("--config").arg(&file).output();
        let refused = refused.expect("it ends");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let found = String::from_utf8_lossy(&refused.stderr);
        assert!(found.contains(said), "{found}");
    }
}

#[test]
fn every_setting_that_is_shipped_is_a_flag() {
    let help = Command::new(TENURE).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.expect("help").stdout).expect("text");
    let unit = read("tenure.service");
    let of_unit = unit
        .lines()
        .filter_map(|it| it.strip_prefix("Environment="));
    let of_unit = of_unit
        .filter_map(|it| it.split_once('='))
        .map(|(name, _)| name.to_owned());
    let image = read("Dockerfile");
    let of_image = image.lines().filter_map(|it| it.strip_prefix("ENV "));
    let of_image = of_image
        .filter_map(|it| it.split_once('='))
        .map(|(name, _)| name.to_owned());
    let names: Vec<_> = settings()
        .into_keys()
        .chain(of_unit)
        .chain(of_image)
        .collect();
    for name in &names {
        assert!(
            help.contains(&format!("[env: {name}=")),
            "{name} is no flag of serve: {help}"
        );
    }
    assert!(names.len() >= 10, "{names:?}");
}

/// What all units take from what they start.
const SHUT: &[&str] = &[
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "PrivateMounts=yes",
    "PrivateUsers=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RemoveIPC=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "StateDirectoryMode=0700",
    "ConfigurationDirectoryMode=0750",
    "UMask=0077",
    "KillSignal=SIGTERM",
    "RestartPreventExitStatus=2",
    "LimitNOFILE=65536",
    "StartLimitIntervalSec=0",
];

/// What each unit needs beside that, and what it must not have: the unit says
/// why.
const NEEDS: &[(&str, &[&str], &[&str])] = &[
    (
        "tenure.service",
        &[
            "User=tenure",
            "ProtectControlGroups=yes",
            "ProtectProc=invisible",
            "MemoryDenyWriteExecute=yes",
            "SystemCallFilter=~@privileged @resources",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
            "TimeoutStopSec=30s",
            "OOMScoreAdjust=-500",
        ],
        &["ProcSubset", "PrivateNetwork", "KillMode"],
    ),
    (
        "tenure-node.service",
        &[
            "User=tenure-node",
            "KillMode=mixed",
            "TimeoutStopSec=60s",
            "TasksMax=infinity",
            "OOMPolicy=continue",
            "Delegate=",
            "SystemCallFilter=~@privileged",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        ],
        &[
            "ProcSubset",
            "ProtectProc",
            "ProtectControlGroups",
            "PrivateNetwork",
            "MemoryDenyWriteExecute",
        ],
    ),
    (
        "tenure-run@.service",
        &[
            "User=tenure-run-%i",
            "StateDirectory=tenure-run-%i",
            "ConfigurationDirectory=tenure-run-%i",
            "EnvironmentFile=/etc/tenure-run-%i/run.env",
            "ExecStart=/usr/local/bin/tenure run %i -- $COMMAND",
            "KillMode=mixed",
            "TimeoutStopSec=60s",
            "OOMPolicy=continue",
            "Delegate=",
            "SystemCallFilter=~@privileged",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        ],
        &[
            "ProcSubset",
            "ProtectProc",
            "ProtectControlGroups",
            "PrivateNetwork",
            "MemoryDenyWriteExecute",
        ],
    ),
];

/// The settings that a unit lacks, and those that it must not have.
fn wrongs(unit: &str, needs: &[&str], bars: &[&str]) -> Vec<String> {
    let lines: Vec<&str> = unit.lines().filter(|it| !it.starts_with('#')).collect();
    let name = |line: &str| line.split('=').next().map(str::to_owned);
    let lacks = SHUT.iter().chain(needs).filter(|it| !lines.contains(it));
    let bars = bars
        .iter()
        .filter(|bar| lines.iter().any(|line| name(line).as_deref() == Some(bar)));
    // A setting that is given once more may take back what was said before.
    let lists = ["SystemCallFilter", "Environment"];
    let twice = lines.iter().filter(|line| {
        let own = name(line).filter(|it| line.contains('=') && !lists.contains(&&**it));
        own.is_some() && lines.iter().filter(|it| name(it) == own).count() > 1
    });
    let wrongs = lacks.map(|it| format!("lacks {it}"));
    let wrongs = wrongs.chain(bars.map(|it| format!("has {it}=")));
    wrongs
        .chain(twice.map(|it| format!("{it} is not alone")))
        .collect()
}

#[test]
fn units_are_shut_as_far_as_the_work_allows() {
    for (name, needs, bars) in NEEDS {
        let unit = read(name);
        let judged = |unit: &str| wrongs(unit, needs, bars);
        assert_eq!(judged(&unit), Vec::<String>::new(), "{name}");
        for line in SHUT.iter().chain(*needs) {
            let without = unit.replacen(&format!("\n{line}\n"), "\n", 1);
            assert_eq!(judged(&without), [format!("lacks {line}")], "{name}");
        }
        for bar in *bars {
            let with = format!("{unit}{bar}=pid\n");
            assert_eq!(judged(&with), [format!("has {bar}=")], "{name}");
        }
        let again = format!("{unit}NoNewPrivileges=no\n");
        assert_eq!(judged(&again).len(), 2, "{name}");
    }
}

/// Only where systemd is; elsewhere there is nothing to ask.
#[test]
fn systemd_takes_the_unit() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let verify = |name: &str, unit: &str| {
        let file = place.path().join(name);
        std::fs::write(&file, unit.replace("/usr/local/bin/tenure", TENURE)).expect("written");
        let mut verify = Command::new("systemd-analyze");
        let verify = verify.args(["verify", "--man=no"]).arg(&file).output();
        let verified = verify.expect("it runs");
        (
            verified.status.success() && verified.stderr.is_empty(),
            verified,
        )
    };
    for (name, word, wrong) in [
        ("tenure.service", "ProtectSystem=", "ProtectSytem="),
        ("tenure-node.service", "KillMode=mixed", "KilMode=mixed"),
        ("tenure-run@.service", "KillMode=mixed", "KilMode=mixed"),
    ] {
        let unit = read(name);
        let (good, said) = verify(name, &unit);
        assert!(good, "{said:?}");
        // It would say so.
        let (good, said) = verify(name, &unit.replace(word, wrong));
        assert!(!good, "{said:?}");
    }
}

/// Each setting of the file is an environment variable of the command, or the
/// command that the unit names.
fn every_setting_is_a_flag(command: &str, file: &str, unit: &str, least: usize) {
    let help = Command::new(TENURE).args([command, "--help"]).output();
    let help = String::from_utf8(help.expect("help").stdout).expect("text");
    let (file, unit) = (read(file), read(unit));
    let of_unit = unit
        .lines()
        .filter_map(|it| it.strip_prefix("Environment="));
    let lines = file
        .lines()
        .filter(|it| !it.starts_with('#'))
        .chain(of_unit);
    let names: Vec<&str> = lines
        .filter_map(|it| it.split_once('='))
        .map(|(name, _)| name)
        .collect();
    for name in &names {
        assert!(
            help.contains(&format!("[env: {name}="))
                || help.contains(&format!("[env: {name}]"))
                || unit.contains(&format!("-- ${name}\n")),
            "{name} is no flag of {command}: {help}"
        );
    }
    assert!(names.len() >= least, "{names:?}");
}

#[test]
fn every_setting_of_an_agent_that_is_shipped_is_a_flag() {
    every_setting_is_a_flag("node", "tenure-node.env", "tenure-node.service", 7);
}

#[test]
fn every_setting_of_a_command_that_is_shipped_is_a_flag() {
    every_setting_is_a_flag("run", "tenure-run.env", "tenure-run@.service", 5);
}
