//! `tenure token`: a secret for a client, and what servers must know of it.
//!
//! The two go different ways: the token to the client alone, its
//! SHA-256 and its rights to every server's file.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tenure::core::ha::Keys;
use tenure_server::{
    TOKENS_DANGER, check_tokens, draw_token, fingerprint, warn_if_others_may_write,
};

use crate::Context;
use crate::args::{LogRight, Token};
use crate::failure::{Failure, usage};

pub(crate) fn token(context: &Context, args: &Token) -> Result<ExitCode, Failure> {
    let token = draw_token()?;
    let table = table(args, &token)?;
    let known = match &args.tokens {
        Some(file) => check(file, &args.name, &table)?,
        None => false,
    };
    if let Some(out) = &args.out {
        write_new(out, &format!("{token}\n"))?;
    }
    let mut text = Vec::new();
    if args.out.is_none() {
        text.push(token.clone());
    }
    match (&args.tokens, &args.out) {
        (None, None) => text.push(format!("\n{}", table.trim_end())),
        (None, Some(_)) => text.push(table.trim_end().to_owned()),
        (Some(_), _) => {}
    }
    if let (Some(tokens), Some(out)) = (&args.tokens, &args.out) {
        let (tokens, out) = (tokens.display(), out.display());
        text.push(format!(
            "{}: the token in {out}, its rights in {tokens}",
            args.name
        ));
    }
    let object = json!({
        "name": args.name,
        "token": args.out.is_none().then_some(&token),
        "sha256": fingerprint(&token),
        "table": table,
    });
    let print = || context.output.line(&text.join("\n"), &object);
    // A token that could not be printed must have no rights.
    if args.out.is_none() {
        print().map_err(|why| match &args.tokens {
            // An error also for a closed pipe, which ends other commands with 0.
            Some(file) => anyhow!("{why}; nothing was added to {}", file.display()),
            None => why.into(),
        })?;
    }
    if let Some(file) = &args.tokens {
        let gap = if known { "\n" } else { "" };
        let added = append(file, &format!("{gap}{table}"));
        if let (Err(_), Some(out)) = (&added, &args.out) {
            // A token without rights, and in the way of the next attempt.
            let _ = fs::remove_file(out);
        }
        added?;
    }
    if args.out.is_some() {
        print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the token to a file that is not there yet.
fn write_new(out: &Path, text: &str) -> Result<(), Failure> {
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(out);
    let mut file = opened.map_err(|why| usage(format!("--out {}: {why}", out.display())))?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.map_err(|why| {
        // A file without the token would only be in the way of the next attempt.
        let _ = fs::remove_file(out);
        Failure::Other(anyhow::Error::new(why).context(format!("--out {}", out.display())))
    })
}

/// Adds a table to the file that servers read. A server that reads half of it keeps
/// what it had, and reads again.
fn append(file: &Path, text: &str) -> Result<(), Failure> {
    let named = || format!("--tokens {}", file.display());
    let is_new = !file.exists();
    let mut options = fs::OpenOptions::new();
    // Who may write it gives himself every right, and who may read it
    // learns who has which.
    let opened = options.append(true).create(true).mode(0o600).open(file);
    let mut opened = opened.with_context(named)?;
    let before = opened.metadata().with_context(named)?.len();
    let written = opened
        .write_all(text.as_bytes())
        .and_then(|()| opened.sync_all());
    if written.is_err() {
        // With half a table in it no server would start.
        opened.set_len(before).with_context(named)?;
        if is_new {
            let _ = fs::remove_file(file);
        }
    }
    written.with_context(named)?;
    warn_if_others_may_write(file, TOKENS_DANGER);
    Ok(())
}

/// What servers must know, as a table of their file.
fn table(args: &Token, token: &str) -> Result<String, Failure> {
    let name = &args.name;
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(good) {
        return Err(usage(format!(
            "NAME: expected 1 to 64 letters, digits, - and _, found {name:?}"
        )));
    }
    let mut text = format!("[tokens.{name}]\nsha256 = \"{}\"\n", fingerprint(token));
    for (right, prefixes) in [
        ("read", &args.read),
        ("write", &args.write),
        ("campaign", &args.campaign),
        ("operate", &args.operate),
    ] {
        // Without it, `write` of these would include it.
        let groups = |it: &String| it.starts_with(Keys::PREFIX) || Keys::PREFIX.starts_with(&**it);
        let said = right == "operate" && args.write.iter().any(groups);
        if said || !prefixes.is_empty() {
            let list: Vec<_> = prefixes.iter().map(|it| toml::Value::from(&**it)).collect();
            text.push_str(&format!("{right} = {}\n", toml::Value::Array(list)));
        }
    }
    if let Some(log) = args.log_right {
        let right = match log {
            LogRight::Read => "read",
            LogRight::Append => "append",
        };
        text.push_str(&format!("log = \"{right}\"\n"));
    }
    for (key, most) in [
        ("quota_bytes", args.quota_bytes),
        ("quota_registers", args.quota_registers),
    ] {
        if let Some(most) = most {
            text.push_str(&format!("{key} = {most}\n"));
        }
    }
    if args.admin {
        text.push_str("admin = true\n");
    }
    check_tokens(&text).map_err(usage)?;
    Ok(text)
}

/// Refuses to add what servers would not read. Whether there is anything in
/// the file already.
fn check(file: &Path, name: &str, table: &str) -> Result<bool, Failure> {
    let wrong = |why: String| usage(format!("--tokens {}: {why}", file.display()));
    let text = match tenure::small::read_text(file) {
        Ok(text) => text,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(why) => return Err(wrong(why.to_string())),
    };
    // What is wrong with the file already is said before what is added to it.
    check_tokens(&text).map_err(wrong)?;
    let parsed: toml::Table = crate::config::parse(&text).map_err(wrong)?;
    let tokens = parsed.get("tokens").and_then(toml::Value::as_table);
    if tokens.is_some_and(|tokens| tokens.contains_key(name)) {
        return Err(wrong(format!(
            "expected a name that is not in it yet, found [tokens.{name}]; choose another name, \
             or take that table out first: its token is good for nothing from then on"
        )));
    }
    check_tokens(&format!("{text}\n{table}")).map_err(wrong)?;
    Ok(!text.is_empty())
}
