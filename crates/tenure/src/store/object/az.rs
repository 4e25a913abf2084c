//! `az://`: the Blob service of Azure, and servers that speak its protocol.

use std::path::Path;
use std::sync::Arc;

use object_store::azure::{AzureAccessKey, AzureConfigKey, AzureCredential};
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::{Result, StaticCredentialProvider};

use super::bucket::Tagged;
use super::credentials::Kept;
use super::objects::Objects;
use super::settings::{Form, Settings};
use super::{Opened, send_once};
use crate::error::StoreError;
use crate::small;
use crate::store::{BoxFuture, Polled};

/// The longest file with a key that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1_024;

const FORM: Form = Form {
    scheme: "az",
    bucket: "container",
    options: &["account"],
    credentials: "set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID, AZURE_TENANT_ID and \
                  AZURE_CLIENT_SECRET, name a file by credentials_file=, or run where the machine \
                  has an identity",
    files: &["AZURE_FEDERATED_TOKEN_FILE"],
    token_file: None,
    variables: &["AZURE_", "IDENTITY_HEADER", "MSI_"],
};

/// The store of an `az://` URL. Nothing is sent before the first call.
pub(in crate::store) fn open(url: &str) -> Opened {
    let settings = Settings::parse(url, &FORM)?;
    let client = client(&settings)?;
    let objects = Objects::new(Arc::new(client), &settings);
    Ok(Polled::new(objects, settings.times))
}

fn client(settings: &Settings) -> Result<MicrosoftAzure, StoreError> {
    let mut builder = MicrosoftAzureBuilder::from_env();
    if let Some(account) = settings.option("account") {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if let Some(path) = &settings.credentials_file {
        let found = StaticCredentialProvider::new(in_file(path)?);
        builder = builder.with_credentials(Arc::new(found));
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let allow_http = endpoint.is_some_and(|it| it.starts_with("http://"));
    let builder = builder
        .with_container_name(&settings.bucket)
        .with_use_emulator(false)
        .with_skip_signature(false)
        .with_retry(send_once());
    let advice = format!(
        "the account is that of account=, else that of AZURE_STORAGE_ACCOUNT_NAME; {}",
        FORM.credentials
    );
    settings.client(allow_http, &advice, |options, connector| {
        let builder = builder.clone().with_http_connector(connector);
        let builder = builder.with_client_options(options);
        let source = Arc::clone(builder.clone().build()?.credentials());
        builder
            .with_credentials(Arc::new(Kept::new(source)))
            .build()
    })
}

/// The account's key, in a file that holds nothing else.
fn in_file(path: &Path) -> Result<AzureCredential, StoreError> {
    let wrong = |why: String| StoreError::broken(format!("credentials_file=: {why}"));
    let bytes = small::read_secret(path, FILE_BYTES_MAX).map_err(wrong)?;
    let text = String::from_utf8_lossy(&bytes);
    let key = AzureAccessKey::try_new(text.trim()).ok();
    let key = key.filter(|_| !text.trim().is_empty()).ok_or_else(|| {
        wrong(format!(
            "{}: expected the key of a storage account (base64), found none",
            path.display()
        ))
    });
    Ok(AzureCredential::AccessKey(key?))
}

impl Tagged for MicrosoftAzure {
    fn credentials(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Self::credentials(self).get_credential().await.map(drop) })
    }

    fn stranger(&self) -> &'static str {
        "\"0x8D0000000000000\""
    }

    fn advice(&self) -> &'static str {
        FORM.credentials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_opened_without_a_word_to_the_server() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key");
        std::fs::write(&file, "c2VjcmV0\n").expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("a mode");
        let own = "account=name&endpoint=http://127.0.0.1:1/name";
        let url = format!("az://container/p?{own}&credentials_file={}", file.display());
        let store = open(&url).expect("a store");
        assert_eq!(
            store.to_string(),
            "az://container/p?endpoint=http://127.0.0.1:1/name"
        );
        std::fs::write(&file, "no key!").expect("written");
        let refused = open(&url).expect_err("no key").to_string();
        assert!(
            refused.contains("expected the key") && !refused.contains("no key!"),
            "{refused}"
        );
    }
}
