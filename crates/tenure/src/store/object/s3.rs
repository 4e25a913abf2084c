//! `s3://`: Amazon S3, and servers that speak its protocol.

use std::path::Path;
use std::sync::Arc;

use object_store::aws::{
    AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, S3ConditionalPut,
};
use object_store::{Result, StaticCredentialProvider};

use super::bucket::Tagged;
use super::credentials::Kept;
use super::objects::Objects;
use super::settings::{Form, Settings};
use super::{Opened, send_once};
use crate::error::StoreError;
use crate::small;
use crate::store::{BoxFuture, Polled};

/// The longest file of credentials that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1_024;

const FORM: Form = Form {
    scheme: "s3",
    bucket: "bucket",
    options: &["region", "path_style"],
    credentials: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), name a \
                  file by credentials_file=, or run where a role is given by the instance, the \
                  container or a web identity",
    files: &[
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    ],
    token_file: Some("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    variables: &["AWS_"],
};

/// The store of an `s3://` URL. Nothing is sent before the first call.
pub(in crate::store) fn open(url: &str) -> Opened {
    let settings = Settings::parse(url, &FORM)?;
    let client = client(&settings)?;
    let objects = Objects::new(Arc::new(client), &settings);
    Ok(Polled::new(objects, settings.times))
}

fn client(settings: &Settings) -> Result<AmazonS3, StoreError> {
    let mut builder = AmazonS3Builder::from_env();
    let is_path_style = settings.option("path_style").map_or(Ok(true), path_style)?;
    if let Some(region) = settings.option("region") {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &settings.endpoint {
        let endpoint = if is_path_style {
            endpoint.clone()
        } else {
            // The client expects the bucket in it.
            endpoint.replacen("://", &format!("://{}.", settings.bucket), 1)
        };
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    if let Some(path) = &settings.credentials_file {
        let found = StaticCredentialProvider::new(in_file(path)?);
        builder = builder.with_credentials(Arc::new(found));
    }
    let of_environment = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let mut endpoints = of_environment
        .iter()
        .filter_map(|key| builder.get_config_value(key));
    let allow_http = endpoints.next().is_some_and(|it| it.starts_with("http://"));
    let builder = builder
        .with_bucket_name(&settings.bucket)
        .with_virtual_hosted_style_request(!is_path_style)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_skip_signature(false)
        .with_retry(send_once());
    check_container(&builder, settings.credentials_file.is_some())?;
    settings.client(allow_http, FORM.credentials, |options, connector| {
        let builder = builder.clone().with_http_connector(connector);
        let builder = builder.with_client_options(options);
        let source = Arc::clone(builder.clone().build()?.credentials());
        builder
            .with_credentials(Arc::new(Kept::new(source)))
            .build()
    })
}

/// Refuses the address of a container's credentials where the library would pass it over:
/// it asks there with a token out of a file alone. It would ask the instance, whose role
/// is another identity than was meant.
fn check_container(builder: &AmazonS3Builder, is_named: bool) -> Result<(), StoreError> {
    use AmazonS3ConfigKey as Key;
    let has = |key| builder.get_config_value(&key).is_some();
    let is_earlier = is_named
        || has(Key::AccessKeyId)
        || has(Key::SecretAccessKey)
        || has(Key::WebIdentityTokenFile) && has(Key::RoleArn)
        || has(Key::ContainerCredentialsRelativeUri);
    let is_whole = has(Key::ContainerAuthorizationTokenFile);
    if is_earlier || is_whole || !has(Key::ContainerCredentialsFullUri) {
        return Ok(());
    }
    Err(StoreError::broken(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI: expected AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE \
         beside it, found none (AWS_CONTAINER_AUTHORIZATION_TOKEN is not supported); write the \
         token to a file that this variable names, use AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, or \
         unset it for the role of the instance",
    ))
}

/// Whether the bucket is named in the path.
fn path_style(value: &str) -> Result<bool, StoreError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(StoreError::broken(format!(
            "path_style=: expected on (the bucket is in the path) or off (it is in the host), \
             found {value:?}"
        ))),
    }
}

/// The credentials in a file as Amazon's own tools have it: of the profile
/// `default`.
fn in_file(path: &Path) -> Result<AwsCredential, StoreError> {
    let wrong = |why: String| StoreError::broken(format!("credentials_file=: {why}"));
    let bytes = small::read_secret(path, FILE_BYTES_MAX).map_err(wrong)?;
    let text = String::from_utf8_lossy(&bytes);
    credentials_in(&text).ok_or_else(|| {
        wrong(format!(
            "{}: expected aws_access_key_id and aws_secret_access_key in the profile [default], \
             found none",
            path.display()
        ))
    })
}

fn credentials_in(text: &str) -> Option<AwsCredential> {
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    let mut is_ours = true;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_ours = line == "[default]";
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_ours) else {
            continue;
        };
        let value = Some(value.trim().to_owned());
        match name.trim() {
            "aws_access_key_id" => key_id = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => token = value,
            _ => {}
        }
    }
    Some(AwsCredential {
        key_id: key_id?,
        secret_key: secret_key?,
        token,
    })
}

impl Tagged for AmazonS3 {
    fn credentials(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Self::credentials(self).get_credential().await.map(drop) })
    }

    fn stranger(&self) -> &'static str {
        "\"00000000000000000000000000000000\""
    }

    fn advice(&self) -> &'static str {
        FORM.credentials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_default_profile() {
        let text = "# ours\n[other]\naws_access_key_id = o\naws_secret_access_key = o\n\
                    [default]\naws_access_key_id = id\naws_secret_access_key=a=b\n\
                    [more]\naws_session_token = no\n";
        let found = credentials_in(text).expect("credentials");
        assert_eq!(
            (found.key_id.as_str(), found.secret_key.as_str()),
            ("id", "a=b")
        );
        assert_eq!(found.token, None);
        for none in ["", "[other]\naws_access_key_id=o", "aws_access_key_id=o"] {
            assert!(credentials_in(none).is_none(), "{none}");
        }
    }

    #[test]
    fn the_address_of_a_container_without_a_token_is_not_passed_over() {
        use AmazonS3ConfigKey as Key;
        let with = |keys: &[Key]| {
            let builder = AmazonS3Builder::new().with_config(Key::ContainerCredentialsFullUri, "u");
            keys.iter()
                .fold(builder, |builder, key| builder.with_config(*key, "v"))
        };
        for keys in [&[][..], &[Key::RoleArn], &[Key::WebIdentityTokenFile]] {
            let refused = check_container(&with(keys), false).expect_err("another identity");
            let why = refused.to_string();
            assert!(
                why.contains("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
                "{why}"
            );
        }
        for keys in [
            &[Key::ContainerAuthorizationTokenFile][..],
            &[Key::ContainerCredentialsRelativeUri],
            &[Key::AccessKeyId, Key::SecretAccessKey],
            &[Key::RoleArn, Key::WebIdentityTokenFile],
        ] {
            check_container(&with(keys), false).expect("the library asks where it is told");
        }
        check_container(&with(&[]), true).expect("a file was named");
        check_container(&AmazonS3Builder::new(), false).expect("the instance was meant");
    }

    #[test]
    fn a_store_is_opened_without_a_word_to_the_server() {
        for url in [
            "s3://bucket/p?endpoint=http://127.0.0.1:1",
            "s3://bucket/p?endpoint=http://h:1&path_style=off&region=eu-central-1",
            "s3://bucket",
        ] {
            let store = open(url).expect("a store");
            assert!(url.starts_with(&store.to_string()), "{store} of {url}");
        }
        let refused = open("s3://bucket?path_style=maybe").expect_err("neither on nor off");
        assert!(refused.to_string().contains("expected on"), "{refused}");
    }
}
