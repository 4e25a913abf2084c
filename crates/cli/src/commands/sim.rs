//! `tenure sim`.
