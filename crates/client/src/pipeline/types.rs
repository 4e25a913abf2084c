//! What a pipeline takes in and gives out.

use std::sync::Mutex;
use std::sync::PoisonError;

use tenure_api::v1::{answer, command, request};
use tenure_core::time::Instant;
use tokio::sync::oneshot;

use crate::Error;

/// What became of a request.
pub(crate) type Outcome = Result<answer::What, Error>;

/// Who is told.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A caller that waits for this one.
    One(oneshot::Sender<Outcome>),
    /// A caller that waits for many, of which this is one.
    Part(std::sync::Arc<Gather>, usize),
    /// Nobody (any more).
    Nobody,
}

impl Reply {
    /// Tells of the outcome.
    pub(crate) fn tell(self, outcome: Outcome) {
        match self {
            // A caller that has gone does not want to know.
            Self::One(waiter) => drop(waiter.send(outcome)),
            Self::Part(gather, index) => gather.tell(index, outcome),
            Self::Nobody => {}
        }
    }

    pub(super) fn is_nobody(&self) -> bool {
        match self {
            Self::One(waiter) => waiter.is_closed(),
            Self::Part(gather, _) => gather.is_abandoned(),
            Self::Nobody => true,
        }
    }
}

/// What is wanted.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// Something that takes effect, once.
    Change(command::Operation),
    /// Something that only looks, and may be asked as often as need be.
    Query(request::What),
}

/// One request.
#[derive(Debug)]
pub(crate) struct PendingRequest<T> {
    pub(crate) what: T,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
}

/// The answers of many appends, collected without a channel for each.
#[derive(Debug)]
pub(crate) struct Gather {
    inner: Mutex<Gathered>,
}

#[derive(Debug)]
struct Gathered {
    left: usize,
    numbers: Vec<u64>,
    appended: usize,
    error: Option<Error>,
    waiter: Option<oneshot::Sender<Result<Vec<u64>, Error>>>,
}

impl Gather {
    /// Waits for `count` answers, at least one.
    pub(crate) fn new(count: usize) -> (Self, oneshot::Receiver<Result<Vec<u64>, Error>>) {
        let (waiter, answer) = oneshot::channel();
        let inner = Gathered {
            left: count,
            numbers: vec![0; count],
            appended: 0,
            error: None,
            waiter: Some(waiter),
        };
        let inner = Mutex::new(inner);
        (Self { inner }, answer)
    }

    fn is_abandoned(&self) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.waiter.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn tell(&self, index: usize, outcome: Outcome) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match outcome {
            Ok(answer::What::Appended(number)) => Ok(number),
            Ok(_) => Err(Error::Unknown("the answer was to another question".into())),
            Err(error) => Err(error),
        };
        match number {
            Ok(number) => {
                inner.numbers[index] = number;
                inner.appended += 1;
            }
            // One that is in doubt says more than one that is not.
            Err(error) => match (&inner.error, &error) {
                (Some(Error::Unknown(_)), _) => {}
                (None, _) | (_, Error::Unknown(_)) => inner.error = Some(error),
                _ => {}
            },
        }
        inner.left -= 1;
        if inner.left > 0 {
            return;
        }
        let Some(waiter) = inner.waiter.take() else {
            return;
        };
        let numbers = std::mem::take(&mut inner.numbers);
        let outcome = match inner.error.take() {
            None => Ok(numbers),
            // Some are in the log: a caller that hears "no" would append all
            // again.
            Some(error) if inner.appended > 0 => Err(Error::Unknown(format!(
                "{} of {} entries were appended; of the others: {error}",
                inner.appended,
                numbers.len()
            ))),
            Some(error) => Err(error),
        };
        drop(inner);
        drop(waiter.send(outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(outcomes: Vec<Outcome>) -> Result<Vec<u64>, Error> {
        let (gather, mut answer) = Gather::new(outcomes.len());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            assert!(answer.try_recv().is_err(), "told too early");
            gather.tell(index, outcome);
        }
        answer.try_recv().expect("an answer after the last")
    }

    #[test]
    fn a_part_that_is_in_doubt_puts_the_whole_in_doubt() {
        let done = |number| Ok(answer::What::Appended(number));
        let no = || Err(Error::Unavailable("no".into()));
        let perhaps = || Err(Error::Unknown("perhaps".into()));
        let refused = || Err(Error::invalid("never"));
        assert_eq!(told(vec![done(4), done(5)]), Ok(vec![4, 5]));
        assert_eq!(told(vec![no(), no()]), Err(Error::Unavailable("no".into())));
        for in_doubt in [
            vec![no(), perhaps()],
            vec![perhaps(), no()],
            vec![done(4), no()],
            vec![no(), done(4)],
            vec![refused(), perhaps()],
        ] {
            let found = told(in_doubt);
            assert!(matches!(found, Err(Error::Unknown(_))), "{found:?}");
        }
    }
}
