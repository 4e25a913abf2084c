//! What commands of agents take, and what they say when that is not enough.

use std::fs;

use super::town::Town;

/// The settings of `tenure` are one thing, the config of a workload another.
#[test]
fn settings_and_the_config_of_a_workload_are_told_apart() {
    let town = Town::sqlite();
    let path = |name: &str| town.directory.path().join(name).display().to_string();
    let (settings, bad, config, out) = (path("t.toml"), path("b.toml"), path("c"), path("out"));
    fs::write(&settings, "timeout = \"4s\"\n").expect("a file");
    fs::write(&bad, "colour = 1\n").expect("a file");
    fs::write(&config, "{\"a\": 1}").expect("a file");
    let own = format!("TENURE_CONFIG={settings}");
    let prefix = ["env", &own, "TENURE_WORKLOAD_CONFIG=inherited"];
    let one = town.start_in(&prefix, "one", &[]);
    one.says("joined as");
    let script = format!(
        "echo \"${{TENURE_CONFIG-none}} ${{TENURE_WORKLOAD_CONFIG-none}}\" > {out}; sleep 1000"
    );
    let command = ["--", "bash", "-c", &script];
    let deploy = |before: &[&str], name: &str, after: &[&str], settings: &str| {
        let args = [before, &["deploy", name], after, &command].concat();
        let mut it = town.command(&args);
        let done = it.env("TENURE_CONFIG", settings).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    let seen = || fs::read_to_string(&out).expect("it wrote");
    let (code, said) = deploy(&[], "a", &[], &settings);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(seen(), "none none\n");
    let (code, said) = deploy(&["--config", &settings], "b", &["--config", &config], &bad);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(seen(), "none {\"a\":1}\n");
    // Settings are read wherever they are named.
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&[], &[], &bad),
        (&["--config", &bad], &[], &settings),
        (&[], &["--settings", &bad], &settings),
    ];
    for (before, after, inherited) in cases {
        let (code, said) = deploy(before, "c", after, inherited);
        assert!(code == Some(2) && said.contains("colour"), "{said}");
    }
    let (code, said) = deploy(&[], "c", &["--config", &settings], &settings);
    assert!(code == Some(2) && said.contains("expected JSON"), "{said}");
}
