//! A writer in a process of its own: what the process does, and how it is asked.
//!
//! The order comes on its standard input, since a URL may have a password in it and
//! command lines are read by all users of a machine: lines of a word and its value,
//! and an empty one. It opens the store, says `ready`, waits for another line, races,
//! and prints its log in the same form. Without the other side its input ends, and so
//! does it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connection::{Connection, Meter};
use super::writer::{Log, Order, count};
use crate::store::{Key, Registry};

/// The word by which a program is started as [`worker`]: its only argument.
pub const WORKER: &str = "__check-writer";

/// The most that either side reads of the other.
const BYTES_MAX: u64 = 16 << 20;

/// What a process is asked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) url: String,
    pub(super) within: Duration,
    pub(super) budget: u64,
    pub(super) order: Order,
}

/// What it says in the end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Said {
    pub(super) log: Log,
    pub(super) reads: u64,
    pub(super) writes: u64,
}

impl Asked {
    fn lines(&self) -> String {
        let Order {
            key,
            writes,
            lasting,
            pause,
        } = &self.order;
        format!(
            "url {}\nwithin_ms {}\nbudget {}\nkey {key}\nwrites {writes}\nlasting_ms {}\n\
             pause_ms {}\n\n",
            self.url,
            self.within.as_millis(),
            self.budget,
            lasting.as_millis(),
            pause.as_millis()
        )
    }

    fn read(input: &mut impl BufRead) -> Option<Self> {
        let mut take = |word: &str| {
            let mut line = String::new();
            input.read_line(&mut line).ok()?;
            let value = line.trim_end_matches('\n').strip_prefix(word)?;
            Some(value.strip_prefix(' ').unwrap_or(value).to_owned())
        };
        let millis = |text: String| text.parse().ok().map(Duration::from_millis);
        let asked = Self {
            url: take("url")?,
            within: millis(take("within_ms")?)?,
            budget: take("budget")?.parse().ok()?,
            order: Order {
                key: Key::new(&take("key")?).ok()?,
                writes: take("writes")?.parse().ok()?,
                lasting: millis(take("lasting_ms")?)?,
                pause: millis(take("pause_ms")?)?,
            },
        };
        take("").map(|_| asked)
    }
}

impl Said {
    fn lines(&self) -> String {
        let numbers = |word: &str, all: &[u64]| -> String {
            all.iter().map(|it| format!("{word} {it}\n")).collect()
        };
        let log = &self.log;
        let mut text = numbers("acknowledged", &log.acknowledged);
        text += &numbers("unknown", &log.unknown);
        if let Some((known, shown)) = log.stale {
            text += &format!("known {known}\nshown {shown}\n");
        }
        if let Some(why) = &log.stopped {
            text += &format!("stopped {}\n", why.replace('\n', " "));
        }
        text += &numbers("conflicts", &[log.conflicts]);
        text + &format!("reads {}\nwrites {}\n", self.reads, self.writes)
    }

    /// `None` if it does not come to its end.
    fn read(input: impl BufRead) -> Option<Self> {
        let mut said = Self::default();
        let (mut known, mut shown) = (None, None);
        for line in input.lines().map_while(Result::ok) {
            let (word, value) = line.split_once(' ')?;
            if word == "stopped" {
                said.log.stopped = Some(value.to_owned());
                continue;
            }
            let number = value.parse().ok()?;
            match word {
                "acknowledged" => said.log.acknowledged.push(number),
                "unknown" => said.log.unknown.push(number),
                "known" => known = Some(number),
                "shown" => shown = Some(number),
                "conflicts" => said.log.conflicts = number,
                "reads" => said.reads = number,
                "writes" => {
                    said.writes = number;
                    said.log.stale = known.zip(shown);
                    return Some(said);
                }
                _ => return None,
            }
        }
        None
    }
}

/// Races as the process that started this one asks, with the stores of `registry`.
/// The whole work of a process that was started with [`WORKER`].
pub fn worker(registry: &Registry) -> ExitCode {
    match work(registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(registry: &Registry) -> io::Result<()> {
    let mut input = io::stdin().lock().take(BYTES_MAX);
    let asked = Asked::read(&mut input).ok_or(io::ErrorKind::InvalidInput)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut output = io::stdout().lock();
    runtime.block_on(async {
        let opened = registry.open(&asked.url).await;
        let store = opened.map_err(|error| io::Error::other(error.to_string()))?;
        let meter = Meter::new(asked.budget);
        let store = Connection::new(store, meter, asked.within);
        // The connection is made before the race.
        drop(store.read(&asked.order.key).await);
        writeln!(output, "ready")?;
        output.flush()?;
        let mut go = String::new();
        if input.read_line(&mut go)? == 0 {
            return Ok(());
        }
        let log = count(&store, &asked.order, || false).await;
        let (reads, writes) = store.meter().used();
        let said = Said { log, reads, writes };
        output.write_all(said.lines().as_bytes())?;
        output.flush()
    })
}

/// A process that is ready to race. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Ready {
    child: Arc<Mutex<Child>>,
    input: ChildStdin,
    output: BufReader<io::Take<ChildStdout>>,
}

impl Ready {
    /// Starts a process, and waits until it is ready. It may take long.
    pub(super) fn start(mut command: Command, asked: &Asked) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.stderr(Stdio::null()).spawn();
        let mut child = child.map_err(|error| format!("a process did not start: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or("a process has no pipes")?;
        let mut ready = Self {
            child: Arc::new(Mutex::new(child)),
            input,
            output: BufReader::new(output.take(BYTES_MAX)),
        };
        let mut line = String::new();
        let asked = ready.input.write_all(asked.lines().as_bytes());
        match asked.and_then(|()| ready.output.read_line(&mut line)) {
            Ok(_) if line == "ready\n" => Ok(ready),
            _ => Err("a process that was to write ended before it began".to_owned()),
        }
    }

    /// Has it race, and waits for its log. It may take long.
    pub(super) fn race(mut self) -> Result<Said, String> {
        let said = match self.input.write_all(b"go\n") {
            Ok(()) => Said::read(&mut self.output),
            Err(_) => None,
        };
        said.ok_or_else(|| "a process that wrote ended before it said what it did".to_owned())
    }

    /// The process, for those who end it.
    pub(super) fn child(&self) -> Arc<Mutex<Child>> {
        Arc::clone(&self.child)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        drop(child.kill());
        drop(child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_and_said_comes_across() {
        let asked = Asked {
            url: "postgres://u:p w@h/db?x=y".to_owned(),
            within: Duration::from_millis(1_500),
            budget: 7,
            order: Order {
                key: Key::new("check/a b").expect("a key"),
                writes: 9,
                lasting: Duration::from_secs(30),
                pause: Duration::from_millis(5),
            },
        };
        let found = Asked::read(&mut asked.lines().as_bytes()).expect("an order");
        assert_eq!((found.url, found.within), (asked.url.clone(), asked.within));
        assert_eq!((found.budget, found.order), (7, asked.order.clone()));
        let cut = asked.lines().replace("writes 9\n", "");
        assert!(Asked::read(&mut cut.as_bytes()).is_none());

        let log = Log {
            acknowledged: vec![1, 5],
            unknown: vec![4],
            conflicts: 3,
            stale: Some((5, 2)),
            stopped: Some("two\nlines".to_owned()),
        };
        let said = Said {
            log,
            reads: 10,
            writes: 6,
        };
        let text = said.lines();
        let mut found = Said::read(text.as_bytes()).expect("a log");
        assert_eq!(found.log.stopped.take().as_deref(), Some("two lines"));
        found.log.stopped.clone_from(&said.log.stopped);
        assert_eq!(found, said);
        let cut = text.replace("writes 6\n", "");
        assert_eq!(Said::read(cut.as_bytes()), None);
    }
}
