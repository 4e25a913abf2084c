//! What differs between providers: how an object is read and written on a condition,
//! how objects are listed, and where credentials are had.
//!
//! S3 and Azure tell an object's state by its `ETag`, and share a client ([`Tagged`]).
//! Google tells it by a number, the generation, and has a client of its own.

use std::fmt;

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload, Result, UpdateVersion,
};

use crate::store::BoxFuture;

/// An object that was read.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) size: u64,
    /// What says which state of the object it is.
    pub(super) tag: Option<String>,
    /// What is in it; `None` if that is more than was asked for.
    pub(super) bytes: Option<Vec<u8>>,
}

/// On what an object is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condition<'a> {
    /// There is none of this name.
    Absent,
    /// It still has this tag.
    Tag(&'a str),
}

/// The objects of a page, and what the next page is asked for by.
pub(super) type Listed = (Vec<ObjectMeta>, Option<String>);

/// The client of one bucket. It sends each request once.
pub(super) trait Bucket: fmt::Debug + Send + Sync {
    /// Has credentials, so that a failure to get some is told from one of the write
    /// that needs them.
    fn credentials(&self) -> BoxFuture<'_, Result<()>>;

    /// Reads an object of at most `bytes_max` bytes.
    fn read<'a>(&'a self, object: &'a Path, bytes_max: usize) -> BoxFuture<'a, Result<Got>>;

    /// Writes an object on a condition; gives its new tag.
    fn write<'a>(
        &'a self,
        object: &'a Path,
        payload: PutPayload,
        condition: Condition<'a>,
    ) -> BoxFuture<'a, Result<Option<String>>>;

    /// A page of the objects whose names begin so. Its tags are as those of reads, or
    /// as those without quotes.
    fn page<'a>(
        &'a self,
        beginning: &'a str,
        token: Option<String>,
    ) -> BoxFuture<'a, Result<Listed>>;

    /// A tag that no object has.
    fn stranger(&self) -> &'static str;

    /// Where credentials are found, for people.
    fn advice(&self) -> &'static str;

    /// What the tag is called there, for people.
    fn tag_name(&self) -> &'static str;

    /// What conditions are called there, for people.
    fn condition_name(&self) -> &'static str;
}

/// A provider that tells an object's state by its `ETag`.
pub(super) trait Tagged: ObjectStore + PaginatedListStore {
    /// As of [`Bucket`].
    fn credentials(&self) -> BoxFuture<'_, Result<()>>;

    /// As of [`Bucket`].
    fn stranger(&self) -> &'static str;

    /// As of [`Bucket`].
    fn advice(&self) -> &'static str;
}

impl<T: Tagged> Bucket for T {
    fn credentials(&self) -> BoxFuture<'_, Result<()>> {
        Tagged::credentials(self)
    }

    fn read<'a>(&'a self, object: &'a Path, bytes_max: usize) -> BoxFuture<'a, Result<Got>> {
        Box::pin(async move {
            let got = self.get_opts(object, GetOptions::default()).await?;
            let (size, tag) = (got.meta.size, got.meta.e_tag.clone());
            let fits = usize::try_from(size).is_ok_and(|size| size <= bytes_max);
            let bytes = match fits {
                true => Some(got.bytes().await?.into()),
                false => None,
            };
            // A weak one says that the bytes mean the same, and no condition holds for it.
            let tag = tag.filter(|tag| !tag.starts_with("W/"));
            Ok(Got { size, tag, bytes })
        })
    }

    fn write<'a>(
        &'a self,
        object: &'a Path,
        payload: PutPayload,
        condition: Condition<'a>,
    ) -> BoxFuture<'a, Result<Option<String>>> {
        let mode = match condition {
            Condition::Absent => PutMode::Create,
            Condition::Tag(tag) => PutMode::Update(UpdateVersion {
                e_tag: Some(tag.to_owned()),
                version: None,
            }),
        };
        Box::pin(async move {
            let stored = self
                .put_opts(object, payload, PutOptions::from(mode))
                .await?;
            Ok(stored.e_tag.filter(|tag| !tag.starts_with("W/")))
        })
    }

    fn page<'a>(
        &'a self,
        beginning: &'a str,
        token: Option<String>,
    ) -> BoxFuture<'a, Result<Listed>> {
        let options = PaginatedListOptions {
            page_token: token,
            ..PaginatedListOptions::default()
        };
        Box::pin(async move {
            let page = self.list_paginated(Some(beginning), options).await?;
            Ok((page.result.objects, page.page_token))
        })
    }

    fn stranger(&self) -> &'static str {
        Tagged::stranger(self)
    }

    fn advice(&self) -> &'static str {
        Tagged::advice(self)
    }

    fn tag_name(&self) -> &'static str {
        "a strong ETag"
    }

    fn condition_name(&self) -> &'static str {
        "If-None-Match or If-Match"
    }
}
