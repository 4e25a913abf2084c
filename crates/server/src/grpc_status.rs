//! The errors of a server as gRPC carries them.

use prost::Message as _;
use tenure_api::ERROR_TRAILER;
use tenure_api::v1::{self, Cause};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// An error as gRPC carries it: with its cause in the trailers.
pub(super) fn status(error: v1::Error) -> Status {
    let code = match error.cause() {
        Cause::NotLeader | Cause::NotReady => Code::Unavailable,
        Cause::Busy | Cause::TooManySessions | Cause::Window | Cause::TooSlow => {
            Code::ResourceExhausted
        }
        Cause::Interrupted => Code::Aborted,
        Cause::SessionExpired => Code::NotFound,
        Cause::OutOfOrder
        | Cause::OtherContent
        | Cause::Members
        | Cause::NotHandedOver
        | Cause::Held => Code::FailedPrecondition,
        Cause::TooOld | Cause::Compacted | Cause::Restored => Code::OutOfRange,
        Cause::TooLarge if error.quota => Code::ResourceExhausted,
        Cause::TooLarge | Cause::Invalid => Code::InvalidArgument,
        Cause::Denied | Cause::NotOwner => Code::PermissionDenied,
        Cause::Unauthenticated => Code::Unauthenticated,
        Cause::Unspecified => Code::Internal,
    };
    let mut status = Status::new(code, &error.message);
    let bytes = MetadataValue::from_bytes(&error.encode_to_vec());
    status.metadata_mut().insert_bin(ERROR_TRAILER, bytes);
    status
}
