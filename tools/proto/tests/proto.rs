//! The code of the interface is that of its `.proto` file.

use std::fs;
use std::path::Path;

use prost::Message as _;

#[test]
fn the_generated_code_is_that_of_the_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/api");
    let proto = root.join("proto");
    let descriptor = protox::compile(["tenure/v1/tenure.proto"], [&proto]).expect("it compiles");
    let fresh = tempfile::tempdir().expect("a directory");
    let json = "#[derive(serde::Serialize, serde::Deserialize)]";
    let base64 = "#[serde(with = \"super::base64\")]";
    let mut builder = tonic_prost_build::configure()
        .codec_path("super::super::codec::Codec")
        .bytes(".")
        .message_attribute(
            ".",
            format!("{json} #[serde(default, deny_unknown_fields)]"),
        )
        .enum_attribute(".", format!("{json} #[serde(rename_all = \"snake_case\")]"));
    for field in [
        "Register.value",
        "Swap.value",
        "AtEnd.value",
        "LogEntry.data",
        "BackupResponse.part",
        "Numbered.secret",
        "OpenSessionRequest.secret",
        "Request.secret",
    ] {
        builder = builder.field_attribute(field, base64);
    }
    builder
        .field_attribute(
            "AppendRequest.entries",
            "#[serde(with = \"super::base64::many\")]",
        )
        .out_dir(fresh.path())
        .compile_fds(descriptor.clone())
        .expect("code");
    let name = "tenure.v1.rs";
    let code = fs::read(fresh.path().join(name)).expect("the code");
    let kept = root.join("src/generated");
    let files = [
        (kept.join(name), code),
        (kept.join("descriptor.bin"), descriptor.encode_to_vec()),
    ];
    let update = std::env::var_os("UPDATE_GOLDENFILES").is_some();
    for (file, wanted) in files {
        if update {
            fs::create_dir_all(&kept).expect("a directory");
            fs::write(&file, &wanted).expect("written");
        }
        let found = fs::read(&file).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is not what the .proto file says: run this test with UPDATE_GOLDENFILES=1",
            file.display()
        );
    }
}
