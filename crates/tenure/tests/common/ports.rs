//! Ports for servers of tests.
//!
//! A server listens on its port some time after that was chosen, and again
//! after each restart, while other tests open connections by the hundred. So
//! it is below those that the kernel gives to connections (from 32768 on), any
//! of which might have it by then.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port that is free now, and that this process draws once. Held until this
/// is dropped. Another program may take it in between; it would have to be
/// quick.
pub(crate) fn port() -> TcpListener {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let own = 7_919 * u64::from(std::process::id());
        AtomicU64::new(own + tenure::clock::boot().as_nanos())
    });
    let port = |number: u64| 10_000 + u16::try_from(number % 22_000).expect("fewer");
    let bound = || TcpListener::bind(("127.0.0.1", port(NEXT.fetch_add(1, Ordering::Relaxed))));
    let mut tries = std::iter::repeat_with(bound).take(1_000);
    tries.find_map(Result::ok).expect("a port")
}
