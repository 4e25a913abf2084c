//! The one place where system time is read.
//!
//! Everything else gets time as a parameter or asks here. Deadlines are kept
//! on the boot-time clock, which unlike Rust's `Instant` on Linux goes on
//! while the machine is suspended: a laptop that slept through its lease
//! wakes up knowing it.
//!
//! A hypervisor that freezes the whole machine stops this clock too. Nothing
//! inside the machine can see that; there only a fence protects.

use std::sync::OnceLock;
use std::time::Duration;

use tenure_core::fnv::fnv1a;
use tenure_core::time::{ClockId, Instant, Now, StoreTime, WallTime};

/// Now on the boot-time clock. Below 50 ns: no system call where the kernel
/// offers the clock in user space.
#[inline]
pub fn boot() -> Instant {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = rustix::time::ClockId::Boottime;
    // Elsewhere (macOS) the monotonic clock is the one that goes on in sleep.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = rustix::time::ClockId::Monotonic;
    Instant::from_nanos(nanos(rustix::time::clock_gettime(id)))
}

/// Now on the calendar.
pub fn wall() -> WallTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let millis = nanos(now) / 1_000_000;
    #[cfg(debug_assertions)]
    let millis = millis.saturating_add_signed(stepped_for_a_test());
    WallTime::from_millis(millis)
}

/// Lets a test step the calendar of a process while it runs, by as many
/// milliseconds as a file says. No release does this.
#[cfg(debug_assertions)]
fn stepped_for_a_test() -> i64 {
    static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("TENURE_TEST_CALENDAR_FILE"));
    let text = file.as_ref().map(std::fs::read_to_string);
    let millis = text.and_then(|text| text.ok()?.trim().parse().ok());
    millis.unwrap_or(0)
}

/// Now on both.
pub fn now() -> Now {
    Now {
        boot: boot(),
        wall: wall(),
    }
}

/// How long this thread has had a processor. A system call, of some 200 ns.
pub fn thread_cpu() -> Duration {
    let id = rustix::time::ClockId::ThreadCPUTime;
    Duration::from_nanos(nanos(rustix::time::clock_gettime(id)))
}

/// How long this machine has been suspended since it booted. Grows while it
/// sleeps, and so tells a process that it has slept.
pub fn suspended() -> Duration {
    let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::from_nanos(boot().as_nanos().saturating_sub(nanos(monotonic)))
}

/// Now on the boot-time clock, as the clock of a store that every process of
/// this machine shares; `None` where it cannot be said which clock it is
/// ([`id`]).
pub fn shared() -> Option<StoreTime> {
    Some(StoreTime {
        clock: id()?,
        nanos: boot().as_nanos(),
    })
}

/// Which boot of which machine this is, and which time namespace: two
/// processes whose ids are equal read the very same boot-time clock, if no two
/// machines have one boot id (two copies of one frozen machine do).
///
/// `None` where one of the two cannot be read: a container may mask it, a
/// sandbox or `ProcSubset=pid` hides it, a chroot has no `/proc`, or one of
/// which only some files are shown. Such a process stamps nothing and dates
/// nothing. A stand-in, such as the hash of nothing, would be one clock for
/// all the processes of all the machines that hide theirs. A kernel without
/// time namespaces looks the same as a `/proc` that hides them, so it counts
/// as one: there a judge waits out a lease.
pub fn id() -> Option<ClockId> {
    static ID: OnceLock<Option<ClockId>> = OnceLock::new();
    *ID.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = std::fs::read_link("/proc/self/ns/time").ok()?;
        Some(ClockId {
            boot: boot_of(&boot)?,
            namespace: namespace_of(namespace.as_os_str().as_encoded_bytes())?,
        })
    })
}

/// Waits until `at`, for ever if there is none. A timer may be late after the
/// machine was suspended, since it stands still meanwhile.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep(at.since(boot())).await,
        None => std::future::pending().await,
    }
}

/// The hash of a boot id as the kernel writes it, a random UUID and a newline.
/// What stands in for one (an empty file, zeroes, `/dev/null` mounted over it)
/// is the same everywhere, and is none.
fn boot_of(text: &[u8]) -> Option<u64> {
    let uuid = text.trim_ascii();
    let digits = uuid.iter().filter(|byte| byte.is_ascii_hexdigit()).count();
    let dashes = uuid.iter().filter(|byte| **byte == b'-').count();
    let zero = uuid.iter().all(|byte| matches!(byte, b'0' | b'-'));
    (digits == 32 && dashes == 4 && uuid.len() == 36 && !zero).then(|| hash(text))
}

/// The hash of a time namespace as the kernel names it: `time:[4026531834]`.
fn namespace_of(link: &[u8]) -> Option<u64> {
    let number = link.strip_prefix(b"time:[")?.strip_suffix(b"]")?;
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    is_number.then(|| hash(link))
}

fn nanos(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Stable between builds, unlike the standard hasher.
fn hash(bytes: &[u8]) -> u64 {
    fnv1a(bytes.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::{boot_of, hash, namespace_of};

    #[test]
    fn only_a_time_namespace_is_one() {
        let link = b"time:[4026531834]";
        // As it was hashed before.
        assert_eq!(namespace_of(link), Some(hash(link)));
        let none: [&[u8]; 4] = [b"", b"time:[]", b"mnt:[4026531832]", b"/dev/null"];
        for text in none {
            assert_eq!(namespace_of(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_boot_id_is_one() {
        let id = b"0d9cf3a2-6b0f-4f6e-9d1a-8a4a2f3b5c6d\n";
        // As it was hashed before: stamps of processes of an older release are
        // dated still.
        assert_eq!(boot_of(id), Some(hash(id)));
        let none: [&[u8]; 5] = [
            b"",
            b"\n",
            b"00000000-0000-0000-0000-000000000000\n",
            b"0d9cf3a2-6b0f-4f6e-9d1a\n",
            b"cat: boot_id: No such file or directory\n",
        ];
        for text in none {
            assert_eq!(boot_of(text), None, "{text:?}");
        }
    }
}
