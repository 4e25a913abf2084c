//! Ports for servers of tests.
//!
//! A server listens on its port some time after that was chosen, and again
//! after each restart. Meanwhile other tests open connections by the hundred,
//! and the kernel gives those ports from 32768 on: the ports of servers are
//! below. Test binaries run side by side: each has blocks of ports that no
//! other has while it runs.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The lowest port, how many blocks there are, and how many ports each has.
const FIRST: u16 = 10_000;
const BLOCKS: u16 = 220;
const BLOCK: u16 = 100;

/// The ports of one block that are not drawn yet, and what holds the block: a
/// socket whose name one process of the network's namespace can have. The system
/// frees it when the process ends.
struct Block {
    left: std::ops::Range<u16>,
    _held: UnixListener,
}

impl Block {
    /// One that no process has; the search begins where others seldom do.
    fn claim() -> Option<Self> {
        let begin = std::process::id() % u32::from(BLOCKS);
        let begin = u16::try_from(begin).expect("fewer");
        let claimed = |number: u16| {
            let number = (begin + number) % BLOCKS;
            let name = format!("tenure-test-ports-{number}");
            let name = SocketAddr::from_abstract_name(name).expect("a name");
            let first = FIRST + number * BLOCK;
            Some(Self {
                left: first..first + BLOCK,
                _held: UnixListener::bind_addr(&name).ok()?,
            })
        };
        (0..BLOCKS).find_map(claimed)
    }
}

/// The number of a port that is free now, and that no test draws as long as this
/// process lives.
///
/// Nothing has listened there to find out: a program that another thread starts at
/// that moment would hold a copy of the socket until it runs, and the port with it.
pub(crate) fn free() -> u16 {
    static BLOCKS_OF_THIS: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    let blocks = BLOCKS_OF_THIS.lock();
    let mut blocks = blocks.unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = blocks.last_mut().map(|it| &mut it.left);
        let is_free = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_err();
        if let Some(found) = left.and_then(|left| left.find(is_free)) {
            return found;
        }
        blocks.push(Block::claim().expect("a block of ports"));
    }
}

/// An address with one of them.
pub(crate) fn address() -> String {
    format!("127.0.0.1:{}", free())
}

/// What listens on one of them.
pub(crate) fn listener() -> TcpListener {
    listen(free())
}

/// What listens on this port, as soon as nothing else does.
pub(crate) fn listen(port: u16) -> TcpListener {
    let address = format!("127.0.0.1:{port}");
    await_free(&address);
    TcpListener::bind(address).expect("the port")
}

/// Waits until nothing listens at an address of this process: what has just stopped to
/// may have left a copy of its socket with a program that another thread starts.
pub(crate) fn await_free(address: &str) {
    let tries = (0..1_000).take_while(|_| TcpStream::connect(address).is_ok());
    tries.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
}
