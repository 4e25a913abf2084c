//! The statements that the document lists for other languages are those that
//! are tested.

use tenure_fence::sql::{MYSQL, POSTGRES, SQLITE, Statements};

/// What the document does not have.
fn undocumented(document: &str, all: &[Statements]) -> Vec<&'static str> {
    let of = |it: &Statements| [it.create, it.record, it.recorded, it.check];
    let statements = all.iter().flat_map(of);
    let is_there = |statement: &&str| document.contains(&format!("`{statement}`"));
    statements.filter(|it| !is_there(it)).collect()
}

#[test]
fn the_statements_are_documented() {
    let document = include_str!("../../../docs/how-to/fences.md");
    let all = [POSTGRES, MYSQL, SQLITE];
    assert_eq!(undocumented(document, &all), [""; 0]);
    assert!(document.contains(&format!("`{}`", MYSQL.check_by_update)));
    // The check sees one that is not there.
    let other = document.replace(POSTGRES.check, "");
    assert_eq!(undocumented(&other, &all), [POSTGRES.check]);
}
