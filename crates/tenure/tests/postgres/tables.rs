//! Which tables are taken: one of a name, that the server keeps, and nothing
//! behind which another may stand.

use super::*;

#[tokio::test]
async fn a_table_is_resolved_once_and_two_of_one_name_are_refused() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    // The user's own schema comes first on the search path.
    server.sql("CREATE SCHEMA tenure");
    let late = opened(&server.url()).await;
    assert!(
        value(&late, &key("key")).await.is_some(),
        "made another table"
    );
    server.sql("CREATE TABLE tenure.tenure_register (LIKE public.tenure_register INCLUDING ALL)");
    assert!(
        value(&store, &key("key")).await.is_some(),
        "went over to it"
    );
    let refused = opened(&server.url()).await.read(&key("key"), WITHIN).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    let why = why.to_string();
    for words in [
        "tenure.tenure_register and public.tenure_register",
        "?table=",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    // Named with its schema it is one again.
    let url = |schema| format!("{}?table={schema}.tenure_register", server.url());
    assert!(
        value(&opened(&url("public")).await, &key("key"))
            .await
            .is_some()
    );
    assert!(
        value(&opened(&url("tenure")).await, &key("key"))
            .await
            .is_none()
    );
    // A schema whose name needs quotes.
    server.sql("CREATE SCHEMA \"It's\"; DROP TABLE tenure.tenure_register");
    server.sql("ALTER TABLE public.tenure_register SET SCHEMA \"It's\"");
    let odd = format!("{}?options=-c%20search_path%3D%22It%27s%22", server.url());
    let odd = opened(&odd).await;
    assert!(value(&odd, &key("key")).await.is_some());
    put(&odd, &key("other"), Expect::Absent, b"y").await;
}

#[tokio::test]
async fn a_table_that_a_crash_empties_is_refused() {
    let server = Postgres::start();
    let key = Key::new("key").expect("a key");
    let user = opened(&server.url()).await;
    put(&user, &key, Expect::Absent, b"x").await;
    server.sql("ALTER TABLE tenure_register SET UNLOGGED");
    // One that uses it notices when it connects again, as after a crash.
    cut(&server);
    let why = refusal(&user).await;
    assert!(why.contains("SET LOGGED"), "{why}");
    let refused = opened(&server.url()).await.read(&key, WITHIN).await;
    let Err(StoreError::Broken(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("SET LOGGED"), "{why}");
    server.sql("ALTER TABLE tenure_register SET LOGGED");
    assert!(value(&user, &key).await.is_some());
    assert!(value(&opened(&server.url()).await, &key).await.is_some());
}

/// Ends all connections but ours, as a crash of the server does.
pub(crate) fn cut(server: &Postgres) {
    server.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
    );
}

/// Why a call is refused for good, when the user has heard that its connection
/// has ended.
pub(crate) async fn refusal(user: &Arc<dyn Store>) -> String {
    let give_up = clock::boot().after(WITHIN);
    loop {
        match user.read(&key("key"), WITHIN).await {
            Err(StoreError::Broken(why)) => return why.to_string(),
            Err(StoreError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(clock::boot() < give_up, "it was not noticed");
    }
}

/// What the server keeps behind such a name, nobody sees: an `UNLOGGED`
/// partition or child, another table, another server.
#[tokio::test]
async fn whatever_is_not_an_ordinary_table_is_refused() {
    const AS: &str = "key text COLLATE \"C\", version bigint, value bytea, stamp timestamptz";
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    put(&user, &key("key"), Expect::Absent, b"x").await;
    server.sql("ALTER TABLE tenure_register RENAME TO kept");
    server
        .sql("CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER far FOREIGN DATA WRAPPER nothing");
    let odd = [
        (
            "a view",
            "CREATE VIEW tenure_register AS TABLE kept",
            "VIEW",
        ),
        (
            "a materialized view",
            "CREATE MATERIALIZED VIEW tenure_register AS TABLE kept",
            "MATERIALIZED VIEW",
        ),
        (
            "a partitioned table",
            &format!(
                "CREATE TABLE tenure_register ({AS}) PARTITION BY HASH (key); \
                 CREATE UNLOGGED TABLE part PARTITION OF tenure_register \
                 FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
            ),
            "TABLE",
        ),
        (
            "a foreign table",
            &format!("CREATE FOREIGN TABLE tenure_register ({AS}) SERVER far"),
            "FOREIGN TABLE",
        ),
        (
            "inherit from it",
            &format!(
                "CREATE TABLE tenure_register ({AS}); \
                 CREATE UNLOGGED TABLE child () INHERITS (tenure_register)"
            ),
            "TABLE",
        ),
        (
            "rules",
            &format!(
                "CREATE TABLE tenure_register ({AS}); CREATE RULE elsewhere AS ON INSERT \
                 TO tenure_register DO INSTEAD INSERT INTO kept (key, value) VALUES (new.key, '')"
            ),
            "TABLE",
        ),
    ];
    for (found, make, kind) in odd {
        server.sql(make);
        cut(&server);
        // One that uses it, when it connects again; and one that starts.
        for user in [&user, &opened(&server.url()).await] {
            let why = refusal(user).await;
            assert!(why.contains("expected public.tenure_register"), "{why}");
            assert!(why.contains(found), "{found}: {why}");
        }
        server.sql(&format!("DROP {kind} tenure_register CASCADE"));
    }
    server.sql("ALTER TABLE kept RENAME TO tenure_register");
    assert!(value(&user, &key("key")).await.is_some());
}

/// The server refuses every write to it, each with an error of its own.
#[tokio::test]
async fn a_table_whose_key_is_not_unique_is_refused() {
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    put(&user, &key("key"), Expect::Absent, b"x").await;
    server.sql("ALTER TABLE tenure_register DROP CONSTRAINT tenure_register_pkey");
    for (make, drop) in [
        ("", ""),
        (
            "CREATE UNIQUE INDEX part ON tenure_register (key) WHERE version > 0",
            "DROP INDEX part",
        ),
        (
            "ALTER TABLE tenure_register ADD CONSTRAINT two PRIMARY KEY (key, version)",
            "ALTER TABLE tenure_register DROP CONSTRAINT two",
        ),
        (
            "ALTER TABLE tenure_register ADD CONSTRAINT late UNIQUE (key) DEFERRABLE",
            "ALTER TABLE tenure_register DROP CONSTRAINT late",
        ),
    ] {
        server.sql(make);
        cut(&server);
        for user in [&user, &opened(&server.url()).await] {
            let why = refusal(user).await;
            assert!(why.contains("ADD PRIMARY KEY (key)"), "{make}: {why}");
        }
        server.sql(drop);
    }
    server.sql("ALTER TABLE tenure_register ADD PRIMARY KEY (key)");
    assert!(value(&user, &key("key")).await.is_some());
}

/// `Payroll` and `payroll` would be one election, and no register is found by its beginning.
#[tokio::test]
async fn a_table_that_takes_two_keys_for_one_is_refused() {
    let server = Postgres::start();
    let user = opened(&server.url()).await;
    put(&user, &key("key"), Expect::Absent, b"x").await;
    server.sql(
        "CREATE COLLATION alike (provider = icu, locale = 'und-u-ks-level2', \
         deterministic = false)",
    );
    server.sql("ALTER TABLE tenure_register ALTER COLUMN key TYPE text COLLATE alike");
    cut(&server);
    for user in [&user, &opened(&server.url()).await] {
        let why = refusal(user).await;
        assert!(why.contains("TYPE text COLLATE \"C\""), "{why}");
    }
    server.sql("ALTER TABLE tenure_register ALTER COLUMN key TYPE text COLLATE \"C\"");
    assert!(value(&user, &key("key")).await.is_some());
    server.sql("CREATE UNIQUE INDEX alike ON tenure_register (key COLLATE alike)");
    cut(&server);
    let why = refusal(&user).await;
    assert!(why.contains("its unique indexes"), "{why}");
}

/// To see what a table is takes no right but to read it.
#[tokio::test]
async fn a_table_is_recognised_by_whoever_may_read_it() {
    let server = Postgres::start();
    let owner = opened(&server.url()).await;
    put(&owner, &key("key"), Expect::Absent, b"x").await;
    server.sql("CREATE ROLE reader LOGIN PASSWORD 'open sesame'");
    server.sql("GRANT SELECT ON tenure_register TO reader");
    let reader = opened(&server.url().replace("//tenure:", "//reader:")).await;
    assert!(value(&reader, &key("key")).await.is_some());
    cut(&server);
    let give_up = clock::boot().after(WITHIN);
    while reader.read(&key("key"), WITHIN).await.is_err() {
        assert!(clock::boot() < give_up, "it did not come back");
    }
    // Of a schema without this right no table is found.
    server.sql("REVOKE USAGE ON SCHEMA public FROM PUBLIC");
    let url = server.url().replace("//tenure:", "//reader:");
    let looks = open_existing(&url).await.expect("a store");
    let nothing = looks.read(&key("key"), WITHIN).await.expect_err("no table");
    assert!(nothing.to_string().contains("has USAGE"), "{nothing}");
}

/// A user from whom policies hide the rows would say that nobody leads.
#[tokio::test]
async fn a_table_that_hides_rows_from_its_user_is_refused() {
    let server = Postgres::start();
    let owner = opened(&server.url()).await;
    put(&owner, &key("key"), Expect::Absent, b"x").await;
    server.sql("CREATE ROLE reader LOGIN PASSWORD 'open sesame'");
    server.sql("GRANT SELECT ON tenure_register TO reader");
    let reader = opened(&server.url().replace("//tenure:", "//reader:")).await;
    assert!(value(&reader, &key("key")).await.is_some());
    server.sql("ALTER TABLE tenure_register ENABLE ROW LEVEL SECURITY");
    cut(&server);
    for user in [
        &reader,
        &opened(&server.url().replace("//tenure:", "//reader:")).await,
    ] {
        let why = refusal(user).await;
        assert!(why.contains("DISABLE ROW LEVEL SECURITY"), "{why}");
    }
    // Its owner is shown all.
    assert!(
        value(&opened(&server.url()).await, &key("key"))
            .await
            .is_some()
    );
    server.sql("ALTER TABLE tenure_register DISABLE ROW LEVEL SECURITY");
    assert!(value(&reader, &key("key")).await.is_some());
}
