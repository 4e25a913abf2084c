//! Deterministic simulator and checkers.
