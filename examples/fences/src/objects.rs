//! A leader that keeps its state in one object of S3, which it claims first.
//! Credentials are those of the environment (`AWS_ACCESS_KEY_ID`, …).

use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use tenure_fence::Term;
use tenure_fence::objects::{Error, claim};

use crate::{pause, say};

/// Claims the object `payroll/state` of the bucket at this server, and adds a
/// line to it.
pub(crate) async fn write(server: &str, term: Term, is_paused: bool) -> Result<()> {
    let store = AmazonS3Builder::from_env()
        .with_endpoint(server)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name("bucket")
        .build()?;
    let path = Path::from("payroll/state");
    let mut state = claim(Arc::new(store), path, term).await.map_err(refusal)?;
    let found = String::from_utf8_lossy(state.content()).into_owned();
    say(&format!(
        "claimed in term {term}, found {} lines",
        found.lines().count()
    ))?;
    pause(is_paused)?;
    let next = Bytes::from(format!("{found}paid in term {term}\n"));
    state.write(next).await.map_err(refusal)?;
    say("written")
}

/// Keeps apart what a fence has refused from what has failed.
fn refusal(error: Error) -> anyhow::Error {
    match error {
        Error::Deposed(deposed) => deposed.into(),
        error => error.into(),
    }
}
