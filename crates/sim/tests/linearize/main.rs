//! The linearizability checker, tried before it is trusted: on histories
//! that a person can judge, on histories that a real register made, on the
//! same with one answer changed, and against another's checker.

mod appends;
mod by_hand;
mod generate;
mod random;
mod script;
mod second_opinion;
