//! Lease election.
