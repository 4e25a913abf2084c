//! The statements on the two tables of the format `hpc`, and how their answers are
//! read.
//!
//! A write changes the row and its note in one statement, an `UPDATE` of both tables,
//! and so in one transaction; it changes them where the row is the one that the note is
//! on. No statement inserts into two tables, so both have to be there before: a vacant row,
//! which means to the other system what no row means, and a placeholder for the note, of
//! the kind [`NONE`]. A deletion leaves such a placeholder too: versions go on from its
//! version, so that no version is used twice.

use mysql_async::Row;
use tenure_core::cas::Bytes;
use tenure_core::ids::{Name, Term};

use super::sql::{self, column, unexpected_answer};
use crate::error::StoreError;
use crate::store::PAGE_MAX;
use crate::store::heartbeats::{Beat, Change, NEVER, Note};

/// What the two tables are called: safe to stand between backticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables<'a> {
    pub(super) beats: &'a str,
    pub(super) notes: &'a str,
}

/// Who wrote the row that a note is on.
const FOREIGN: &str = "hpc";
const OURS: &str = "tenure";
/// The origin of a placeholder for a note.
const NONE: &str = "none";

/// The statements that make the tables, for those whose database user may not.
pub(super) fn migration(tables: Tables<'_>) -> [String; 2] {
    let Tables { beats, notes } = tables;
    [
        format!(
            "CREATE TABLE IF NOT EXISTS `{beats}` (uuid VARCHAR(255), utype VARCHAR(255) NOT NULL \
             PRIMARY KEY, uname VARCHAR(255), `timestamp` DATETIME(3)) ENGINE=InnoDB \
             CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS `{notes}` (utype VARBINARY(512) NOT NULL PRIMARY KEY, \
             version BIGINT UNSIGNED NOT NULL, uuid BLOB, `timestamp` DATETIME(6), \
             term BIGINT UNSIGNED NOT NULL, origin VARBINARY(8) NOT NULL, \
             record MEDIUMBLOB NOT NULL) ENGINE=InnoDB"
        ),
    ]
}

/// The columns of the notes, in the words of [`describe_notes`].
pub(super) const NOTES: &str = "utype varbinary(512) primary, version bigint unsigned, uuid blob, \
     timestamp datetime(6), term bigint unsigned, origin varbinary(8), record mediumblob";

/// The columns of the notes with what their values depend on. In a narrower one a note
/// could not be written, or would not be that on its row: times lose their digits
/// without an error. (Widths of integers are printed by some servers and mean nothing.)
pub(super) fn describe_notes(table: &str) -> String {
    format!(
        "SELECT GROUP_CONCAT(CONCAT(LOWER(COLUMN_NAME), ' ', DATA_TYPE, CASE WHEN DATA_TYPE = \
         'varbinary' THEN CONCAT('(', CHARACTER_MAXIMUM_LENGTH, ')') WHEN DATA_TYPE = 'datetime' \
         THEN CONCAT('(', DATETIME_PRECISION, ')') WHEN COLUMN_TYPE LIKE '% unsigned%' THEN \
         ' unsigned' ELSE '' END, IF(COLUMN_KEY = 'PRI', ' primary', ''), IF(EXTRA = '', '', \
         CONCAT(' ', EXTRA))) ORDER BY ORDINAL_POSITION SEPARATOR ', ') FROM \
         information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
    )
}

/// The columns of the heartbeats with their types, the precision of the times, and
/// whether one `utype` has one row.
pub(super) fn describe_beats(table: &str) -> String {
    format!(
        "SELECT (SELECT GROUP_CONCAT(CONCAT(LOWER(COLUMN_NAME), ' ', DATA_TYPE) ORDER BY \
         COLUMN_NAME SEPARATOR ', ') FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = \
         DATABASE() AND TABLE_NAME = '{table}'), (SELECT MAX(DATETIME_PRECISION) FROM \
         information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' \
         AND COLUMN_NAME = 'timestamp'), (SELECT COUNT(*) FROM (SELECT INDEX_NAME FROM \
         information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}' \
         AND NON_UNIQUE = 0 GROUP BY INDEX_NAME HAVING COUNT(*) = 1 AND MAX(COLUMN_NAME) = \
         'utype') AS k)"
    )
}

/// A text of a foreign column, as bytes of UTF-8.
fn words(column: &str) -> String {
    format!("CAST(CONVERT({column} USING utf8mb4) AS BINARY)")
}

/// Whether the row `h` is the one that the note `n` is on.
fn noted() -> String {
    format!(
        "({} <=> n.uuid AND h.`timestamp` <=> n.`timestamp`)",
        words("h.uuid")
    )
}

/// Whether nobody holds the row `h`, as what is written here says it.
fn vacant() -> String {
    format!("(h.uuid = '' AND h.`timestamp` = '{NEVER}')")
}

/// Whether `h` is the row of an election. The first half finds it by the index, under
/// whatever the column takes for equal; the second says whether it is the one.
fn of_h(utype: &Name) -> String {
    let name = sql::bytes(utype.as_str().as_bytes());
    format!(
        "h.utype = CONVERT({name} USING utf8mb4) AND {} = {name}",
        words("h.utype")
    )
}

fn of_n(utype: &Name) -> String {
    format!("n.utype = {}", sql::bytes(utype.as_str().as_bytes()))
}

/// What the two tables say of an election.
pub(super) struct Entry {
    pub(super) beat: Option<Beat>,
    /// Nobody holds the row, or there is none.
    is_vacant: bool,
    /// Of the note, or of its placeholder.
    pub(super) version: Option<u64>,
    pub(super) note: Option<Note>,
    /// Whether the note is on the row that is there.
    is_noted: bool,
    /// The server's time, in milliseconds.
    pub(super) now: u64,
}

impl Entry {
    /// Whether the note is on the row that is there, or there is neither.
    pub(super) const fn is_plain(&self) -> bool {
        match self.note {
            Some(_) => self.is_noted,
            None => self.beat.is_none() || (self.version.is_some() && self.is_vacant),
        }
    }
}

pub(super) fn read(tables: Tables<'_>, utype: &Name) -> String {
    let Tables { beats, notes } = tables;
    format!(
        "{}, n.version, n.term, n.origin, n.record, h.utype IS NOT NULL, {}, {}, \
         IF(h.`timestamp` >= '1970-01-01' AND h.`timestamp` < '2500-01-01', \
         TIMESTAMPDIFF(MICROSECOND, '1970-01-01', h.`timestamp`) DIV 1000, NULL), {}, {} \
         FROM (SELECT 1) AS one LEFT JOIN `{beats}` AS h ON {} LEFT JOIN `{notes}` AS n ON {}",
        sql::state(),
        words("h.uuid"),
        words("h.uname"),
        noted(),
        vacant(),
        of_h(utype),
        of_n(utype)
    )
}

pub(super) fn entry(rows: &[Row]) -> Result<Entry, StoreError> {
    let row = rows.first().ok_or_else(unexpected_answer)?;
    let is = |at| column::<u64>(row, at).map(|it| it == Some(1));
    let text = |at| {
        let bytes = column::<Vec<u8>>(row, at)?.unwrap_or_default();
        Ok::<_, StoreError>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (version, origin) = (column(row, 2)?, text(4)?);
    let note = if version.is_none() || origin == NONE {
        None
    } else {
        let record: Vec<u8> = column(row, 5)?.ok_or_else(unexpected_answer)?;
        Some(Note {
            term: column(row, 3)?.and_then(Term::new).unwrap_or(Term::ZERO),
            is_foreign: origin == FOREIGN,
            record: Bytes::from(record),
        })
    };
    let beat = Beat {
        uuid: text(7)?,
        uname: text(8)?,
        millis: column(row, 9)?,
    };
    let is_there = is(6)?;
    Ok(Entry {
        beat: is_there.then_some(beat),
        is_vacant: is(11)?,
        version,
        note,
        is_noted: is(10)?,
        now: column::<u64>(row, 0)?.ok_or_else(unexpected_answer)? / 1_000,
    })
}

/// What a note's row gets, but for the row that it is on.
fn set(note: &Note) -> String {
    let [term, origin, record] = fields(note);
    format!("n.version = n.version + 1, n.term = {term}, n.origin = {origin}, n.record = {record}")
}

fn fields(note: &Note) -> [String; 3] {
    let origin = if note.is_foreign { FOREIGN } else { OURS };
    [
        note.term.get().to_string(),
        format!("'{origin}'"),
        sql::bytes(&note.record),
    ]
}

/// Writes a new note where `seen` was found, if that is there still.
pub(super) fn note(tables: Tables<'_>, utype: &Name, seen: &Entry, note: &Note) -> String {
    let Tables { beats, notes } = tables;
    let (h, n) = (of_h(utype), of_n(utype));
    let is_seen = |beat: &Beat| {
        let uuid = sql::bytes(beat.uuid.as_bytes());
        format!("COALESCE({}, x'') = {uuid}", words("h.uuid"))
    };
    match (seen.version, &seen.beat) {
        (Some(version), Some(beat)) => format!(
            "UPDATE `{notes}` AS n INNER JOIN `{beats}` AS h ON {h} SET {}, n.uuid = {}, \
             n.`timestamp` = h.`timestamp` WHERE {n} AND n.version = {version} AND {}",
            set(note),
            words("h.uuid"),
            is_seen(beat)
        ),
        (Some(version), None) => format!(
            "UPDATE `{notes}` AS n LEFT JOIN `{beats}` AS h ON {h} SET {}, n.uuid = NULL, \
             n.`timestamp` = NULL WHERE {n} AND n.version = {version} AND h.utype IS NULL",
            set(note)
        ),
        (None, beat) => {
            let is_seen = beat.as_ref().map_or_else(|| "TRUE".to_owned(), is_seen);
            let [term, origin, record] = fields(note);
            insert(tables, utype, [&term, &origin, &record], &is_seen)
        }
    }
}

/// Makes a note on the row that is there and of which `condition` holds, if there is no
/// note. Versions begin at the time, so that a table that was emptied by hand uses other
/// ones than before.
fn insert(tables: Tables<'_>, utype: &Name, note: [&str; 3], condition: &str) -> String {
    let Tables { beats, notes } = tables;
    let ([term, origin, record], micros) = (note, sql::MICROS);
    format!(
        "INSERT INTO `{notes}` (utype, version, uuid, `timestamp`, term, origin, record) SELECT \
         {}, {micros}, {}, h.`timestamp`, {term}, {origin}, {record} FROM `{beats}` AS h WHERE {} \
         AND {condition} ON DUPLICATE KEY UPDATE origin = `{notes}`.origin",
        sql::bytes(utype.as_str().as_bytes()),
        words("h.uuid"),
        of_h(utype)
    )
}

/// Makes a row that nobody holds, if there is no row.
pub(super) fn make_row(tables: Tables<'_>, utype: &Name) -> String {
    let beats = tables.beats;
    format!(
        "INSERT INTO `{beats}` (uuid, utype, uname, `timestamp`) VALUES ('', CONVERT({} USING \
         utf8mb4), '', '{NEVER}') ON DUPLICATE KEY UPDATE utype = `{beats}`.utype",
        sql::bytes(utype.as_str().as_bytes())
    )
}

/// Inserts a placeholder on a vacant row that has no note.
pub(super) fn make_note(tables: Tables<'_>, utype: &Name) -> String {
    insert(tables, utype, ["0", &format!("'{NONE}'"), "x''"], &vacant())
}

/// Writes an election whose note has this version; with `is_new`, one that has none.
/// The answer's last id is the time, in microseconds.
pub(super) fn write(tables: Tables<'_>, change: &Change, version: u64, is_new: bool) -> String {
    let Tables { beats, notes } = tables;
    let origin = match (is_new, change.row.is_some()) {
        (true, _) => format!("n.origin = '{NONE}'"),
        (false, true) => format!("n.origin <> '{NONE}'"),
        // A request, which programs of the other system do not hear.
        (false, false) => format!("n.origin = '{OURS}'"),
    };
    let row = change.row.as_ref().map_or_else(String::new, |row| {
        let is_held = !row.uuid.is_empty();
        let time = if is_held {
            "UTC_TIMESTAMP(3)".to_owned()
        } else {
            format!("'{NEVER}'")
        };
        format!(
            ", h.uuid = '{uuid}', h.uname = CONVERT({} USING utf8mb4), h.`timestamp` = {time}, \
             n.uuid = '{uuid}', n.`timestamp` = {time}",
            sql::bytes(row.uname.as_bytes()),
            uuid = row.uuid
        )
    });
    // The note on no row goes onto the one that was made for it.
    let is_new_row = format!(
        "(n.uuid IS NULL AND n.`timestamp` IS NULL AND {})",
        vacant()
    );
    format!(
        "UPDATE `{notes}` AS n INNER JOIN `{beats}` AS h ON {} SET {}{row} WHERE {} AND n.version \
         = {version} AND {origin} AND ({} OR {is_new_row}) AND LAST_INSERT_ID({}) IS NOT NULL",
        of_h(&change.utype),
        set(&change.note),
        of_n(&change.utype),
        noted(),
        sql::MICROS
    )
}

/// Takes an election away whose note has this version: of the note its kind is left, and
/// of the row what nobody holds.
pub(super) fn delete(tables: Tables<'_>, utype: &Name, version: u64) -> String {
    let Tables { beats, notes } = tables;
    let note = format!(
        "n.version = n.version + 1, n.term = 0, n.origin = '{NONE}', n.record = x'', n.uuid = \
         x'', n.`timestamp` = '{NEVER}'"
    );
    format!(
        "UPDATE `{notes}` AS n LEFT JOIN `{beats}` AS h ON {} SET {note}, h.uuid = '', h.uname = \
         '', h.`timestamp` = '{NEVER}' WHERE {} AND n.version = {version} AND n.origin <> \
         '{NONE}' AND (h.utype IS NULL OR {})",
        of_h(utype),
        of_n(utype),
        noted()
    )
}

/// Takes away a row that nobody holds: as good as none.
pub(super) fn delete_row(tables: Tables<'_>, utype: &Name) -> String {
    let beats = tables.beats;
    format!(
        "DELETE h FROM `{beats}` AS h WHERE {} AND {}",
        of_h(utype),
        vacant()
    )
}

/// The names of elections in their order, one more than a page has.
pub(super) fn utypes(tables: Tables<'_>, prefix: &str, after: Option<&str>) -> String {
    let Tables { beats, notes } = tables;
    let after = after.unwrap_or_default();
    let prefix = sql::bytes(prefix.as_bytes());
    format!(
        "{}, u.name FROM (SELECT {} AS name FROM `{beats}` AS h UNION SELECT n.utype FROM \
         `{notes}` AS n WHERE n.origin <> '{NONE}') AS u WHERE u.name > {} AND LEFT(u.name, \
         LENGTH({prefix})) = {prefix} ORDER BY u.name LIMIT {}",
        sql::state(),
        words("h.utype"),
        sql::bytes(after.as_bytes()),
        PAGE_MAX + 1
    )
}

pub(super) fn names(rows: &[Row]) -> Result<Vec<String>, StoreError> {
    let mut names = Vec::new();
    for row in rows {
        let name = column::<Vec<u8>>(row, 2)?.unwrap_or_default();
        names.push(String::from_utf8_lossy(&name).into_owned());
    }
    Ok(names)
}
