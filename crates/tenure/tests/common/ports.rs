//! Ports for servers of tests.
//!
//! A server listens on its port some time after that was chosen, and again
//! after each restart, while other tests open connections by the hundred. So
//! it is below those that the kernel gives to connections (from 32768 on), any
//! of which might have it by then. Test binaries run side by side: each draws
//! from blocks of ports that it holds for as long as it lives.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

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

/// A port that is free now, and that no test draws as long as this process lives.
/// Held until this is dropped.
pub(crate) fn port() -> TcpListener {
    static BLOCKS_OF_THIS: Mutex<Vec<Block>> = Mutex::new(Vec::new());
    let blocks = BLOCKS_OF_THIS.lock();
    let mut blocks = blocks.unwrap_or_else(PoisonError::into_inner);
    loop {
        let left = blocks.last_mut().map(|it| &mut it.left);
        let bound = |port| TcpListener::bind(("127.0.0.1", port)).ok();
        if let Some(found) = left.and_then(|left| left.find_map(bound)) {
            return found;
        }
        blocks.push(Block::claim().expect("a block of ports"));
    }
}
