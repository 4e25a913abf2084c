//! A user who may create something in a schema that a candidate's search path
//! names can put functions and operators there. None may run as the candidate.

use super::*;

/// A function and an operator for each of the server's own that can be made
/// by SQL, with the same types. Each counts that it is run (a sequence is
/// not rolled back), and fails.
const PLANT: &str = r"
    CREATE SCHEMA planted;
    DO $do$
    DECLARE f record;
    BEGIN
      FOR f IN SELECT p.oid, p.proname, p.prorettype
        FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f'
        AND p.provariadic = 0 AND NOT p.proretset
        AND p.proname IN ('encode', 'convert_from', 'clock_timestamp', 'current_setting',
          'set_config', 'starts_with', 'format_type', 'pg_notify', 'current_schemas',
          'to_regclass', 'hashtext', 'pg_advisory_xact_lock', 'pg_logical_emit_message',
          'date_part', 'extract')
      LOOP
        EXECUTE format('CREATE FUNCTION planted.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
          '$$ BEGIN PERFORM pg_catalog.nextval(''public.ran''); RAISE EXCEPTION ''planted''; END $$', f.proname,
          (SELECT coalesce(string_agg(format_type(t, NULL), ', ' ORDER BY at), '')
           FROM pg_proc p, unnest(p.proargtypes) WITH ORDINALITY a(t, at) WHERE p.oid = f.oid),
          format_type(f.prorettype, NULL));
      END LOOP;
      FOR f IN SELECT o.oid, o.oprname, o.oprleft, o.oprright, o.oprresult
        FROM pg_operator o JOIN pg_type l ON l.oid = o.oprleft JOIN pg_type r ON r.oid = o.oprright
        WHERE o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '*', '||', '&')
        AND l.typtype <> 'p' AND r.typtype <> 'p'
      LOOP
        EXECUTE format('CREATE FUNCTION planted.runs_%s(%s, %s) RETURNS %s '
          'LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.nextval(''public.ran''); RAISE EXCEPTION ''planted''; END $$',
          f.oid, format_type(f.oprleft, NULL), format_type(f.oprright, NULL),
          format_type(f.oprresult, NULL));
        EXECUTE format('CREATE OPERATOR planted.%s (LEFTARG = %s, RIGHTARG = %s, '
          'FUNCTION = planted.runs_%s)', f.oprname, format_type(f.oprleft, NULL),
          format_type(f.oprright, NULL), f.oid);
      END LOOP;
    END $do$";

/// An operator that fits the types better than any of the server's own, which
/// is preferred to them though they come first on the search path.
const FITS_BETTER: &str = "CREATE SEQUENCE public.ran; \
     CREATE FUNCTION public.runs(a numeric, b integer) RETURNS numeric LANGUAGE plpgsql AS \
     $$ BEGIN PERFORM pg_catalog.nextval('public.ran'); RAISE EXCEPTION 'planted'; END $$; \
     CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.runs)";

/// Every kind of statement.
async fn uses(store: &Arc<dyn Store>, name: &str) {
    let key = key(&format!("some/{name}/key"));
    let version = put(store, &key, Expect::Absent, b"x").await;
    // Live when what is followed was read: by its key, and by its prefix.
    for selector in [
        Selector::Key(key.clone()),
        Selector::Prefix(format!("some/{name}/")),
    ] {
        let mut watch = store.watch(selector);
        until(&mut watch, |seen| *seen == Sighting::Live).await;
    }
    let version = put(store, &key, Expect::Version(version), b"y").await;
    assert_eq!(value(store, &key).await.as_deref(), Some(&b"y"[..]));
    let page = store.list("some/", None, WITHIN).await.expect("a page");
    let after = Key::new("some/").expect("a key");
    let rest = store.list("some/", Some(&after), WITHIN).await;
    assert_eq!(page.registers, rest.expect("a page").registers);
    store.delete(&key, &version, WITHIN).await.expect("deleted");
    assert_eq!(value(store, &key).await, None);
}

#[tokio::test]
async fn nothing_that_others_put_on_the_search_path_is_run() {
    let server = Postgres::start();
    server.sql(FITS_BETTER);
    // The table is made, and found, by its name alone.
    uses(&opened(&server.url()).await, "own").await;
    let named = format!("{}?table=public.tenure_register", server.url());
    uses(&opened(&named).await, "named").await;
    // Before the server's own, what fits as well is taken.
    server.sql(PLANT);
    let path = "options=-c%20search_path%3Dplanted%2Cpublic%2Cpg_catalog";
    let first = opened(&format!("{}?{path}", server.url())).await;
    uses(&first, "first").await;
    let named = format!("{}?{path}&table=public.other", server.url());
    uses(&opened(&named).await, "made").await;
    let polls = format!("{}?{path}&watch=poll", server.url());
    uses(&opened(&polls).await, "polls").await;
    assert_eq!(
        server.sql("SELECT count(*) FROM public.tenure_register"),
        "0"
    );
}
