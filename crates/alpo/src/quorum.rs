//! The arithmetic of majorities, which knows only ids and numbers.
//!
//! A majority of `n` is `n / 2 + 1`, for even `n` too. Two of four are no
//! majority: the other two could elect another leader at the same time
//! (`docs/design/alpo.md`, H18).

use alloc::vec::Vec;

use super::ids::{ServerId, StorageId};
use super::membership::Membership;

/// How many of `voters` are a majority.
pub const fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

/// Whether the voters among `those` are a majority of `members`. `those` are
/// distinct.
pub fn is_majority(members: &Membership, those: impl IntoIterator<Item = ServerId>) -> bool {
    let count = those.into_iter().filter(|id| members.is_voter(*id)).count();
    count >= majority(members.voters().count())
}

/// Whether the voters among `those` are a majority of `members`, each with
/// the disk that it was admitted with. `those` are distinct. What a majority
/// rests on is that two of them share a *disk*, which remembers what it
/// promised; another disk under the same number remembers nothing of it.
pub fn is_majority_of_disks(
    members: &Membership,
    those: impl IntoIterator<Item = (ServerId, StorageId)>,
) -> bool {
    let voters = those
        .into_iter()
        .filter(|(id, storage)| members.is_voter_with(*id, *storage));
    voters.count() >= majority(members.voters().count())
}

/// The largest number that a majority of `numbers` has reached: of `n`
/// numbers in ascending order, the one at `(n - 1) / 2`. `None` of none.
pub fn reached_by_majority(mut numbers: Vec<u64>) -> Option<u64> {
    numbers.sort_unstable();
    numbers.get(numbers.len().checked_sub(1)? / 2).copied()
}
