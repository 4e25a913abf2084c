//! `docs/tutorial.md`, as its reader does it: a shell for each terminal, each
//! block typed where it belongs, and what the page shows awaited before the
//! next one. Only the addresses are others, and the home directory.
//!
//! What it takes from the page:
//!
//! * ```` ```sh ```` is typed in terminal 1, or in the one that its first line
//!   names (`# terminal 2`); `# in the repository` is left out (a build);
//! * `# terminal 2: Ctrl-C` is a key for what runs there;
//! * ```` ```text ```` below it is shown there, or in the terminal that its
//!   first line names: these lines, in this order, among others; `…` stands
//!   for any text.

#![allow(clippy::print_stderr, reason = "what a failed test has seen")]

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::common::servers::free;
use crate::common::{TENURE, poll_until};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How long anything that the page shows is waited for.
const SOON: Duration = Duration::from_secs(30);

/// What a reader may ask again: it changes nothing.
const LOOKS: [&str; 5] = [
    "tenure leader",
    "tenure status",
    "tenure ps",
    "tenure logs",
    "export",
];

/// One block of the page.
#[derive(Debug, PartialEq)]
enum Step {
    Typed(usize, String),
    Key(usize, &'static str),
    Shown(usize, Vec<String>),
}

/// The number in `# terminal N`, and what follows it.
fn terminal(line: &str) -> Option<(usize, &str)> {
    let rest = line.strip_prefix("# terminal ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let (number, rest) = rest.split_at(end.unwrap_or(rest.len()));
    Some((number.parse().ok()?, rest))
}

/// The blocks of a page, in their order.
fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut lines, mut at) = (Vec::new(), page.lines(), 1);
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let mut block: Vec<&str> = lines.by_ref().take_while(|it| *it != "```").collect();
        let named = block.first().and_then(|it| terminal(it));
        if named.is_some() {
            block.remove(0);
        }
        match (kind, named) {
            ("sh", None) if block.first() == Some(&"# in the repository") => {}
            ("sh", Some((number, ": Ctrl-C"))) => steps.push(Step::Key(number, "Ctrl-C")),
            ("sh", Some((number, ": Ctrl-\\"))) => steps.push(Step::Key(number, "Ctrl-\\")),
            ("sh", _) => {
                at = named.map_or(1, |(number, _)| number);
                steps.push(Step::Typed(at, block.join("\n")));
            }
            ("text", _) => {
                let at = named.map_or(at, |(number, _)| number);
                let block = block.into_iter().map(str::to_owned).collect();
                steps.push(Step::Shown(at, block));
            }
            _ => panic!("expected a block of sh or text, found {kind:?}"),
        }
    }
    steps
}

/// Whether a line is as the page has it. Columns are as wide as they need be.
fn alike(line: &str, shown: &str) -> bool {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = shown.split('…').map(str::trim);
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<_> = parts.collect();
    for (number, part) in parts.iter().enumerate() {
        let found = if number + 1 == parts.len() {
            rest.ends_with(part).then(|| rest.len() - part.len())
        } else {
            rest.find(part)
        };
        let Some(found) = found else {
            return false;
        };
        rest = &rest[found + part.len()..];
    }
    !parts.is_empty() || rest.is_empty()
}

/// Whether these lines are in a text, in this order.
fn shows(text: &str, shown: &[String]) -> bool {
    let mut lines = text.lines();
    shown.iter().all(|it| lines.any(|line| alike(line, it)))
}

/// A shell that a reader types into.
struct Terminal {
    shell: Child,
    keys: ChildStdin,
    output: PathBuf,
    /// How many blocks were typed, and where the output of the last one begins.
    typed: usize,
    from: usize,
}

impl Terminal {
    fn open(number: usize, home: &Path) -> Self {
        let output = home.join(format!("terminal{number}.txt"));
        let file = fs::File::create(&output).expect("a file");
        let binaries = Path::new(TENURE).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["--norc", "-s"]).process_group(0);
        let ours =
            std::env::vars_os().filter(|(it, _)| it.to_string_lossy().starts_with("TENURE_"));
        for (name, _) in ours {
            command.env_remove(name);
        }
        let mut shell = command
            .env("HOME", home)
            .env("XDG_STATE_HOME", home.join("state"))
            .env("PATH", format!("{}:{path}", binaries.display()))
            .current_dir(home.join("here"))
            .stdin(Stdio::piped())
            .stdout(file.try_clone().expect("a file"))
            .stderr(file)
            .spawn()
            .expect("bash runs");
        let mut keys = shell.stdin.take().expect("a pipe");
        // As at a terminal, what is typed becomes a process group of its own.
        keys.write_all(b"set -m\n").expect("bash reads");
        Self {
            shell,
            keys,
            output,
            typed: 0,
            from: 0,
        }
    }

    fn text(&self) -> String {
        let text = fs::read(&self.output).expect("the output");
        String::from_utf8_lossy(&text).into_owned()
    }

    fn new_text(&self) -> String {
        self.text()[self.from..].to_owned()
    }

    /// What the shell says when the last block has ended.
    fn mark(&self) -> String {
        format!("--- {} done ---", self.typed)
    }

    fn is_idle(&self) -> bool {
        self.typed == 0 || self.text().contains(&self.mark())
    }

    fn type_in(&mut self, block: &str) {
        assert!(self.is_idle(), "{block}\nis typed into\n{}", self.text());
        self.from = self.text().len();
        self.typed += 1;
        let mark = self.mark();
        let trap = "trap 'echo \"--- failed: $BASH_COMMAND\"' ERR";
        let text = format!("{trap}\n{{\n{block}\n}} </dev/null\ntrap - ERR\necho '{mark}'\n");
        self.keys.write_all(text.as_bytes()).expect("bash reads");
    }

    /// Waits until the last block has ended, and says what it printed.
    fn end(&self) -> String {
        let ended = poll_until(SOON, || self.is_idle().then_some(()));
        let text = self.new_text();
        ended.unwrap_or_else(|| panic!("expected an end of what prints\n{text}"));
        text
    }

    fn press(&self, key: &str) {
        let signal = match key {
            "Ctrl-C" => Signal::INT,
            _ => Signal::QUIT,
        };
        let children = format!("/proc/{0}/task/{0}/children", self.shell.id());
        let children = fs::read_to_string(children).expect("the kernel lists children");
        let group = children.split_whitespace().next();
        let group = group.unwrap_or_else(|| panic!("{key} finds nothing in\n{}", self.text()));
        let group = Pid::from_raw(group.parse().expect("a pid")).expect("not zero");
        kill_process_group(group, signal).expect("it lives");
        self.end();
    }
}

/// The reader's home, and what is begun there. Nothing of it outlives this.
struct Desk {
    home: tempfile::TempDir,
    terminals: Vec<Terminal>,
}

impl Desk {
    fn new(terminals: usize) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join("here")).expect("a directory");
        let open = |number| Terminal::open(number, home.path());
        let terminals = (1..=terminals).map(open).collect();
        Self { home, terminals }
    }

    fn terminal(&mut self, number: usize) -> &mut Terminal {
        &mut self.terminals[number - 1]
    }

    /// Types a block in terminal 1, again if it only looks and does not show
    /// what it should.
    fn request(&mut self, block: &str, shown: Option<&[String]>) {
        let looks = block
            .lines()
            .all(|line| LOOKS.iter().any(|it| line.starts_with(it)));
        let mut said = String::new();
        let told = poll_until(SOON, || {
            self.terminal(1).type_in(block);
            said = self.terminal(1).end();
            let done = shown.map_or_else(|| !said.contains("--- failed"), |it| shows(&said, it));
            assert!(done || looks, "{block}\nshows\n{said}\nand not\n{shown:?}");
            done.then_some(())
        });
        assert!(told.is_some(), "{block}\nshows\n{said}\nand not\n{shown:?}");
    }

    fn wait_for(&mut self, number: usize, shown: &[String]) {
        let terminal = self.terminal(number);
        let found = poll_until(SOON, || shows(&terminal.new_text(), shown).then_some(()));
        let text = terminal.text();
        assert!(
            found.is_some(),
            "terminal {number} shows\n{text}\nand not\n{shown:?}"
        );
        // What is shown next comes later.
        if !terminal.is_idle() {
            terminal.from = text.len();
        }
    }

    /// The processes that have this home.
    fn processes(&self) -> Vec<Pid> {
        let home = format!("HOME={}\0", self.home.path().display());
        let entries = fs::read_dir("/proc").expect("processes").flatten();
        let pids = entries.filter_map(|it| it.file_name().to_str()?.parse().ok());
        let has = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&home)
        };
        pids.filter(has).filter_map(Pid::from_raw).collect()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (number, terminal) in self.terminals.iter().enumerate() {
                eprintln!("--- terminal {} ---\n{}", number + 1, terminal.text());
            }
        }
        poll_until(SOON, || {
            let left = self.processes();
            for pid in &left {
                let _ = kill_process(*pid, Signal::KILL);
            }
            for terminal in &mut self.terminals {
                let _ = terminal.shell.try_wait();
            }
            left.is_empty().then_some(())
        });
    }
}

#[test]
fn the_tutorial_shows_what_it_says() {
    let mut page = include_str!("../../../docs/tutorial.md").to_owned();
    let shown = ["7401", "7402", "7403", "7501", "7502", "7503"];
    for (shown, free) in shown.iter().zip(free::<6>()) {
        page = page.replace(&format!("127.0.0.1:{shown}"), &free);
    }
    let steps = steps(&page);
    let highest = steps.iter().map(|it| match it {
        Step::Typed(at, _) | Step::Key(at, _) | Step::Shown(at, _) => *at,
    });
    let mut desk = Desk::new(highest.max().expect("blocks"));
    let mut following = steps.iter().skip(1).peekable();
    let mut asked = false;
    for step in &steps {
        let next = following.next();
        match step {
            Step::Typed(1, block) => {
                let shown = match next {
                    Some(Step::Shown(1, shown)) => Some(&**shown),
                    _ => None,
                };
                asked = shown.is_some();
                desk.request(block, shown);
            }
            Step::Typed(number, block) => desk.terminal(*number).type_in(block),
            Step::Key(number, key) => desk.terminal(*number).press(key),
            // Seen with what was typed.
            Step::Shown(1, _) if asked => asked = false,
            Step::Shown(number, shown) => desk.wait_for(*number, shown),
        }
    }
    assert!(steps.len() > 40, "{} steps", steps.len());
    // The shells alone are left of it.
    let count = desk.terminals.len();
    let left = || (desk.processes().len() <= count).then_some(());
    let left = poll_until(SOON, left);
    assert!(left.is_some(), "{:?} are left", desk.processes());
}

#[test]
fn a_page_is_read_as_it_is_meant() {
    let page = "Text\n\n```sh\n# in the repository\nmake\n```\n\n```sh\n# terminal 2\nserve\n\
                run\n```\n\n```text\nup …\n```\n\n```sh\n# terminal 2: Ctrl-C\n```\n\n\
                ```sh\nlook\n```\n\n```text\n# terminal 3\nno\n```\n";
    let read = [
        Step::Typed(2, "serve\nrun".into()),
        Step::Shown(2, vec!["up …".into()]),
        Step::Key(2, "Ctrl-C"),
        Step::Typed(1, "look".into()),
        Step::Shown(3, vec!["no".into()]),
    ];
    assert_eq!(steps(page), read);
}

#[test]
fn what_is_shown_is_compared() {
    assert!(alike("a leads,   9 s left", "a leads, … left"));
    assert!(alike("ten  x  end", "… x …"));
    assert!(alike("same", "same"));
    assert!(!alike("same and more", "same"));
    assert!(!alike("b leads", "a …"));
    assert!(!alike("a leads", "… left"));
    assert!(shows("1\nx\n2\n", &["1".into(), "2".into()]));
    assert!(!shows("2\n1\n", &["1".into(), "2".into()]));
}
