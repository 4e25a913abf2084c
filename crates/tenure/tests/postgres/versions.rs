//! Each write must give its row a version above the one before. Where a table
//! does not, several candidates would each find the version that they expect.

use super::tables::{cut, refusal};
use super::*;

/// A trigger function that keeps the version as it was.
const KEEP: &str = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS \
     $$ BEGIN NEW.version := OLD.version; RETURN NEW; END $$";
const BEFORE: &str = "CREATE TRIGGER keep BEFORE UPDATE ON tenure_register \
     FOR EACH ROW EXECUTE FUNCTION keep()";

/// By each process when it starts, and when it connects again.
#[tokio::test]
async fn a_table_whose_versions_need_not_rise_is_refused() {
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    let mut version = put(&user, &key("key"), Expect::Absent, b"x").await;
    server.sql(KEEP);
    let column = "ALTER TABLE tenure_register ALTER COLUMN version";
    let identity = format!(
        "{column} DROP DEFAULT, ALTER COLUMN version ADD GENERATED ALWAYS AS IDENTITY; \
         SELECT setval('tenure_register_version_seq', max(version)) FROM tenure_register"
    );
    let odd = [
        (
            "to be an identity",
            format!("{column} DROP IDENTITY; {column} SET DEFAULT 1"),
            identity,
        ),
        ("found trigger keep", BEFORE.to_owned(), {
            "ALTER TABLE tenure_register DISABLE TRIGGER keep".to_owned()
        }),
        (
            "SET NO CYCLE",
            format!("{column} SET CYCLE"),
            format!("{column} SET NO CYCLE"),
        ),
        (
            "SET CACHE 1",
            format!("{column} SET CACHE 20"),
            format!("{column} SET CACHE 1"),
        ),
        (
            "SET LOGGED",
            "ALTER SEQUENCE tenure_register_version_seq SET UNLOGGED".to_owned(),
            "ALTER SEQUENCE tenure_register_version_seq SET LOGGED".to_owned(),
        ),
    ];
    for (found, make, mend) in odd {
        server.sql(&make);
        cut(&server);
        for user in [&user, &opened(&server.url()).await] {
            let why = refusal(user).await;
            assert!(why.contains("table public.tenure_register"), "{why}");
            assert!(why.contains(found), "{found}: {why}");
        }
        server.sql(&mend);
        let next = put(&user, &key("key"), Expect::Version(version.clone()), b"y").await;
        assert!(next.to_u64() > version.to_u64(), "{next:?}, {version:?}");
        version = next;
    }
}

/// What comes after a row is written, or is there for the statement, changes
/// nothing of what was written.
#[tokio::test]
async fn a_table_with_an_audit_trigger_is_used() {
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    let version = put(&user, &key("key"), Expect::Absent, b"x").await;
    server.sql("CREATE TABLE audit (key text, version bigint)");
    server.sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO audit VALUES (NEW.key, NEW.version); RETURN NULL; END $$; \
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON tenure_register \
         FOR EACH ROW EXECUTE FUNCTION note(); \
         CREATE TRIGGER look BEFORE UPDATE ON tenure_register \
         FOR EACH STATEMENT EXECUTE FUNCTION look()",
    );
    let fresh = opened(&server.url()).await;
    let version = put(&fresh, &key("key"), Expect::Version(version), b"y").await;
    put(&user, &key("key"), Expect::Version(version), b"z").await;
    assert_eq!(server.sql("SELECT count(*) FROM audit"), "2");
}

/// A table that is changed under a process that has it open: such a write is
/// rolled back, or the next candidate would find the version that it expects.
#[tokio::test]
async fn a_write_whose_version_does_not_rise_is_not_done() {
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    let first = put(&user, &key("key"), Expect::Absent, b"w").await;
    let version = put(&user, &key("key"), Expect::Version(first), b"x").await;
    server.sql(KEEP);
    let column = "ALTER TABLE tenure_register ALTER COLUMN version";
    let odd = [
        (BEFORE.to_owned(), "DROP TRIGGER keep ON tenure_register"),
        (
            format!("{column} RESTART"),
            "SELECT setval('tenure_register_version_seq', 100)",
        ),
    ];
    for (make, mend) in odd {
        server.sql(&make);
        let change = write(&key("key"), Expect::Version(version.clone()), b"y");
        let refused = user.compare_and_swap(change, WITHIN).await;
        let Err(StoreError::Broken(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(why.contains("nothing was written"), "{why}");
        assert_eq!(value(&user, &key("key")).await.as_deref(), Some(&b"x"[..]));
        server.sql(mend);
    }
    put(&user, &key("key"), Expect::Version(version), b"y").await;
}
