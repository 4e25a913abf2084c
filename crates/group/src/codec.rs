//! The format of a view in its register.
//!
//! It is text that a person can read in a database console, and ends with a
//! checksum. Tabs separate the fields of a line, because no name has a tab.
//! Usual values are left out, and nodes are named by their line, because a group
//! of thousands of workloads has to fit into [`VIEW_BYTES_MAX`]:
//!
//! ```text
//! tenure-ha 1
//! group    payroll
//! epoch    7
//! quorum   2
//! n  00c0…ffee  web-1  10000  s=3  l=zone=a     node 0
//! n  00c1…ffee  web-2  10000  h=0  d=1  m=5     node 1: not HA, draining, at most 5
//! d  00bf…ffee  died
//! w  pay   q83v…  0                             on node 0
//! w  post  7Jk2…  0>1  i=3  o=2  c=zone=a       being moved from 0 to 1
//! w  mail  9cQa…  *                             waiting
//! g  Xw0b…                                      content about to be deleted
//! crc32c 1a2b3c4d
//! ```
//!
//! A format, a line or a field that this version does not know is refused. It is
//! neither guessed at nor overwritten.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::str::Lines;
use core::time::Duration;

use tenure_core::cas::{Bytes, MAX_VALUE_BYTES};
use tenure_core::crc::crc32c;
use tenure_core::ids::Name;

use super::view::{
    Assignment, DEPARTURES_MAX, Departure, INSTANCES_MAX, LABELS_MAX, MARKS_MAX, MEMBERS_MAX,
    Member, Place, Target, View,
};
use super::{Digest, NodeId};

const MAGIC: &str = "tenure-ha";
const FORMAT: u64 = 1;

/// The largest encoded view: what every store takes.
pub const VIEW_BYTES_MAX: usize = MAX_VALUE_BYTES;
/// The largest view that may still get a new node or workload. What is above
/// is kept free, so that moving what is there never fails.
pub const VIEW_BYTES_ROOM: usize = VIEW_BYTES_MAX - 16 * 1024;

/// Why bytes are not what they should be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CodecError {
    /// They do not begin like one.
    Foreign {
        /// What they should begin with.
        magic: &'static str,
    },
    /// They were written by another version of the format.
    Newer {
        /// Its number.
        format: u64,
    },
    /// They are damaged: the checksum does not match.
    Checksum,
    /// A line is not what it should be.
    Field {
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { magic } => write!(
                f,
                "expected a register that begins with \"{magic} {FORMAT}\", found something \
                 else; the program that wrote it should use another prefix or table"
            ),
            Self::Newer { format } => write!(
                f,
                "expected format {FORMAT}, found format {format}, written by another version \
                 of tenure; upgrade this one"
            ),
            Self::Checksum => f.write_str(
                "expected a register whose checksum matches, found a damaged one; it is left \
                 as it is: restore it, or stop all nodes of the group and delete it",
            ),
            Self::Field { expected, found } => write!(
                f,
                "expected {expected}, found {found:?}; it was written by another version of \
                 tenure or by hand"
            ),
        }
    }
}

impl core::error::Error for CodecError {}

pub(super) fn field(expected: &'static str, found: &str) -> CodecError {
    let found = found.chars().take(60).collect();
    CodecError::Field { expected, found }
}

/// Closes a text by its checksum.
pub(super) fn seal(mut text: String) -> Bytes {
    let sum = crc32c(text.as_bytes());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "crc32c {sum:08x}");
    Bytes::from(text.into_bytes())
}

/// The lines between the first, which must name the format, and the checksum.
pub(super) fn unseal<'a>(bytes: &'a [u8], magic: &'static str) -> Result<Lines<'a>, CodecError> {
    let foreign = || CodecError::Foreign { magic };
    let text = core::str::from_utf8(bytes).map_err(|_| foreign())?;
    let first = text.lines().next().unwrap_or_default();
    let format = first
        .strip_prefix(magic)
        .and_then(|rest| rest.strip_prefix(' ')?.parse::<u64>().ok())
        .ok_or_else(foreign)?;
    if format != FORMAT {
        return Err(CodecError::Newer { format });
    }
    let body = text.rfind("crc32c ").ok_or(CodecError::Checksum)?;
    let (body, sum) = text.split_at(body);
    let mut line = String::new();
    let _ = writeln!(line, "crc32c {:08x}", crc32c(body.as_bytes()));
    if line != sum {
        return Err(CodecError::Checksum);
    }
    let mut lines = body.lines();
    lines.next();
    Ok(lines)
}

impl View {
    /// The bytes to store.
    pub fn encode(&self) -> Bytes {
        let mut text = String::with_capacity(128 + 80 * self.members.len());
        let _ = self.write(&mut text);
        seal(text)
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "{MAGIC} {FORMAT}")?;
        writeln!(out, "group\t{}", self.group)?;
        writeln!(out, "epoch\t{}", self.epoch)?;
        writeln!(out, "quorum\t{}", self.quorum)?;
        if self.spread {
            writeln!(out, "spread")?;
        }
        for member in &self.members {
            member.write(out)?;
        }
        for gone in &self.departures {
            let how = if gone.died { "died" } else { "left" };
            writeln!(out, "d\t{}\t{how}", gone.id)?;
        }
        let places = self.members.iter().enumerate();
        let places: BTreeMap<NodeId, usize> =
            places.map(|(index, member)| (member.id, index)).collect();
        for (name, assignment) in &self.workloads {
            write!(out, "w\t{name}\t{}\t", assignment.digest)?;
            place(out, &places, assignment.place)?;
            assignment.write(out)?;
        }
        for digest in &self.marks {
            writeln!(out, "g\t{digest}")?;
        }
        Ok(())
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If the bytes are anything else, with what was expected where.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut lines = unseal(bytes, MAGIC)?;
        let mut head = |key: &'static str| {
            let line = lines.next().unwrap_or_default();
            line.strip_prefix(key)
                .and_then(|rest| rest.strip_prefix('\t'))
                .ok_or_else(|| field(key, line))
        };
        let group = head("group")?;
        let group = Name::new(group).map_err(|_| field("the name of a group", group))?;
        let epoch = number(head("epoch")?)?;
        let quorum = number(head("quorum")?)?;
        let mut view = Self::empty(group, quorum, false);
        view.epoch = epoch;
        for line in lines {
            view.line(line)?;
        }
        Ok(view)
    }

    fn line(&mut self, line: &str) -> Result<(), CodecError> {
        let mut cells = line.split('\t');
        let full = || field("no more lines of this kind", line);
        match cells.next() {
            Some("spread") if !self.spread && cells.next().is_none() => self.spread = true,
            Some("n") if self.members.len() < MEMBERS_MAX => {
                let member = member(line, &mut cells)?;
                if self.member(member.id).is_some() {
                    return Err(field("a node once", line));
                }
                self.members.push(member);
            }
            Some("d") if self.departures.len() < DEPARTURES_MAX => {
                self.departures.push(departure(line, &mut cells)?);
            }
            Some("w") => {
                let (name, assignment) = self.workload(line, &mut cells)?;
                if self.workloads.insert(name, assignment).is_some() {
                    return Err(field("a workload once", line));
                }
            }
            Some("g") if self.marks.len() < MARKS_MAX => {
                let digest = cells.next().and_then(Digest::new);
                let digest = digest.filter(|_| cells.next().is_none());
                let digest = digest.ok_or_else(|| field("a digest", line))?;
                if !self.marks.insert(digest) {
                    return Err(field("a mark once", line));
                }
            }
            Some("n" | "d" | "g") => return Err(full()),
            _ => return Err(field("a line of a view", line)),
        }
        Ok(())
    }

    fn workload<'a>(
        &self,
        line: &str,
        cells: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(Name, Assignment), CodecError> {
        let name = name(cells.next().unwrap_or_default())?;
        let digest = cells.next().and_then(Digest::new);
        let digest = digest.ok_or_else(|| field("a digest", line))?;
        let place = cells.next().unwrap_or_default();
        let place = self.place(place).ok_or_else(|| field("a place", line))?;
        let mut assignment = Assignment {
            digest,
            instances: 1,
            ha: true,
            order: 0,
            fails: 0,
            needs: Vec::new(),
            place,
        };
        for cell in cells {
            match cell.split_once('=') {
                Some(("i", text)) => assignment.instances = number(text)?,
                Some(("h", "0")) => assignment.ha = false,
                Some(("o", text)) => assignment.order = number(text)?,
                Some(("f", text)) => assignment.fails = number(text)?,
                Some(("c", text)) => assignment.needs.push(self::name(text)?),
                _ => return Err(field("a field of a workload", cell)),
            }
        }
        let countable = (1..=INSTANCES_MAX).contains(&assignment.instances);
        if !countable || assignment.needs.len() > LABELS_MAX {
            return Err(field("a workload within limits", line));
        }
        Ok((name, assignment))
    }

    fn place(&self, text: &str) -> Option<Place> {
        let node = |text: &str| {
            let index: usize = text.parse().ok()?;
            Some(self.members.get(index)?.id)
        };
        Some(match text.split_once('>') {
            None if text == "*" => Place::Waiting,
            None => Place::Assigned(node(text)?),
            Some((from, to)) => Place::Releasing {
                from: node(from)?,
                to: match to {
                    "*" => Target::Anyone,
                    "-" => Target::Nowhere,
                    to => Target::Node(node(to)?),
                },
            },
        })
    }
}

impl Member {
    fn write(&self, out: &mut String) -> fmt::Result {
        let lease = self.lease.as_millis();
        write!(out, "n\t{}\t{}\t{lease}", self.id, self.name)?;
        if self.serial > 0 {
            write!(out, "\ts={}", self.serial)?;
        }
        if !self.ha {
            write!(out, "\th=0")?;
        }
        if self.draining {
            write!(out, "\td=1")?;
        }
        if let Some(max) = self.max {
            write!(out, "\tm={max}")?;
        }
        for label in &self.labels {
            write!(out, "\tl={label}")?;
        }
        writeln!(out)
    }
}

impl Assignment {
    fn write(&self, out: &mut String) -> fmt::Result {
        if self.instances != 1 {
            write!(out, "\ti={}", self.instances)?;
        }
        if !self.ha {
            write!(out, "\th=0")?;
        }
        if self.order > 0 {
            write!(out, "\to={}", self.order)?;
        }
        if self.fails > 0 {
            write!(out, "\tf={}", self.fails)?;
        }
        for need in &self.needs {
            write!(out, "\tc={need}")?;
        }
        writeln!(out)
    }
}

fn place(out: &mut String, places: &BTreeMap<NodeId, usize>, place: Place) -> fmt::Result {
    let node = |id: NodeId| {
        // Only members are ever named.
        let index = places.get(&id).copied();
        debug_assert!(index.is_some(), "{id} is named but no member");
        index.unwrap_or(usize::MAX)
    };
    match place {
        Place::Waiting => write!(out, "*"),
        Place::Assigned(id) => write!(out, "{}", node(id)),
        Place::Releasing { from, to } => {
            write!(out, "{}>", node(from))?;
            match to {
                Target::Anyone => write!(out, "*"),
                Target::Nowhere => write!(out, "-"),
                Target::Node(id) => write!(out, "{}", node(id)),
            }
        }
    }
}

fn member<'a>(line: &str, cells: &mut impl Iterator<Item = &'a str>) -> Result<Member, CodecError> {
    let id = cells.next().and_then(NodeId::parse);
    let id = id.ok_or_else(|| field("the id of a node", line))?;
    let name = name(cells.next().unwrap_or_default())?;
    let lease = number(cells.next().unwrap_or_default())?;
    let mut member = Member {
        id,
        name,
        ha: true,
        draining: false,
        lease: Duration::from_millis(lease),
        max: None,
        serial: 0,
        labels: Vec::new(),
    };
    for cell in cells {
        match cell.split_once('=') {
            Some(("s", text)) => member.serial = number(text)?,
            Some(("h", "0")) => member.ha = false,
            Some(("d", "1")) => member.draining = true,
            Some(("m", text)) => member.max = Some(number(text)?),
            Some(("l", text)) => member.labels.push(self::name(text)?),
            _ => return Err(field("a field of a node", cell)),
        }
    }
    if member.labels.len() > LABELS_MAX {
        return Err(field("a node within limits", line));
    }
    Ok(member)
}

fn departure<'a>(
    line: &str,
    cells: &mut impl Iterator<Item = &'a str>,
) -> Result<Departure, CodecError> {
    let id = cells.next().and_then(NodeId::parse);
    let died = match cells.next() {
        Some("died") => Some(true),
        Some("left") => Some(false),
        _ => None,
    };
    let end = cells.next().is_none();
    match (id, died) {
        (Some(id), Some(died)) if end => Ok(Departure { id, died }),
        _ => Err(field("a departure", line)),
    }
}

/// The largest number that is read. What is added to it still fits, so no
/// register makes a node panic, or wrap around. No group gets there by itself:
/// the largest numbers that nodes write begin at 2^62.
pub(super) const NUMBER_MAX: u64 = u64::MAX >> 1;

pub(super) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, CodecError> {
    let number = text.parse().ok().filter(|number| *number <= NUMBER_MAX);
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    // Of the two kinds of numbers, what this one may be.
    let expected = match T::try_from(NUMBER_MAX) {
        Ok(_) => "a number below 2^63",
        Err(_) => "a number below 2^32",
    };
    number.ok_or_else(|| field(expected, text))
}

pub(super) fn name(text: &str) -> Result<Name, CodecError> {
    Name::new(text).map_err(|_| field("a name", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_large_is_told_what_it_may_be() {
        assert_eq!(number::<u32>("4294967295"), Ok(u32::MAX));
        let of_32 = number::<u32>("4294967296").expect_err("too large");
        assert_eq!(of_32, field("a number below 2^32", "4294967296"));
        assert_eq!(number::<u64>("9223372036854775807"), Ok(NUMBER_MAX));
        let of_63 = number::<u64>("9223372036854775808").expect_err("too large");
        assert_eq!(of_63, field("a number below 2^63", "9223372036854775808"));
    }
}
