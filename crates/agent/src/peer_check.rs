//! Who is heard at the sockets of an agent and of its shim: the user that they run
//! as, and root.
//!
//! The modes of the directory and of the socket keep other users away. They can
//! be opened under an agent that runs (`chmod -R`, a restored backup), and who
//! commands an agent runs commands as its user. So the kernel is asked as well:
//! it notes the user of a process when that process connects.
//!
//! In a user namespace all users that it does not map have one number (65534). An
//! agent that runs there as that number cannot tell them from itself.

use std::fmt;

use rustix::process::geteuid;
use tokio::net::UnixStream;

const ROOT: u32 = 0;

/// A user that is not heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PeerRefused {
    owner: u32,
    found: Option<u32>,
}

impl fmt::Display for PeerRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            ROOT => f.write_str("expected root, found ")?,
            owner => write!(f, "expected user {owner} or root, found ")?,
        }
        match self.found {
            Some(user) => write!(f, "user {user}"),
            None => f.write_str("one that the system does not name"),
        }
    }
}

impl PeerRefused {
    /// What the refused command prints.
    pub(super) fn advice(self) -> String {
        let owner = self.owner;
        format!(
            "{self}; nothing was done: an agent hears only the user that it runs as, and root: \
             ask as user {owner}, such as with `sudo -u '#{owner}' tenure …`"
        )
    }
}

/// Whether the process at the other end is heard.
pub(super) fn check_peer(stream: &UnixStream) -> Result<(), PeerRefused> {
    let found = stream.peer_cred().ok().map(|it| it.uid());
    check_user(geteuid().as_raw(), found)
}

fn check_user(owner: u32, found: Option<u32>) -> Result<(), PeerRefused> {
    if found.is_some_and(|user| user == owner || user == ROOT) {
        Ok(())
    } else {
        Err(PeerRefused { owner, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_and_root_are_heard() {
        for (owner, found) in [(7, 7), (7, 0), (0, 0)] {
            assert_eq!(check_user(owner, Some(found)), Ok(()));
        }
        for (owner, found) in [(7, Some(8)), (0, Some(7)), (7, Some(65_534)), (7, None)] {
            let refused = check_user(owner, found).expect_err("a stranger");
            assert!(refused.advice().contains(&format!("ask as user {owner}")));
        }
    }

    #[tokio::test]
    async fn this_process_hears_itself() {
        let (one, _two) = UnixStream::pair().expect("a pair");
        assert_eq!(check_peer(&one), Ok(()));
    }
}
