//! The registers of a group (`docs/design/groups.md` §1.7): what is written is read, what
//! was damaged is refused, and so is what another version or a person wrote,
//! if it is not what this version would write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::crc::crc32c;
use tenure_core::ids::Name;
use tenure_core::rng::Rng;
use tenure_group::{
    Assignment, CodecError, DEPARTURES_MAX, Departure, Digest, Heartbeat, INSTANCES_MAX,
    LABELS_MAX, MARKS_MAX, MEMBERS_MAX, Member, NodeId, Place, STATUS_BYTES_MAX, Target, View,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// What people might call things; some of it looks like a part of the format.
fn any_name(rng: &mut Rng) -> Name {
    const ODD: [&str; 10] = [
        "crc32c 00000000",
        "a=b=c",
        "*",
        "0>1",
        "tenure-ha 1",
        "zürich 東京",
        " ",
        "#",
        "h=0",
        "n",
    ];
    let number = rng.below(1 << 40);
    let odd = usize::try_from(rng.below(40)).expect("few");
    match ODD.get(odd) {
        Some(odd) => name(odd),
        None if rng.chance(5) => name(&"x".repeat(255)),
        None => name(&format!("name-{number:x}")),
    }
}

fn any_names(rng: &mut Rng, most: u64) -> Vec<Name> {
    let count = rng.below(most + 1);
    let mut names: Vec<Name> = (0..count).map(|_| any_name(rng)).collect();
    names.sort();
    names
}

/// Small ones as a rule, and now and then any.
fn any_number(rng: &mut Rng) -> u64 {
    if rng.chance(70) {
        return rng.below(4);
    }
    rng.next_u64() >> 1 >> rng.below(63)
}

fn any_u32(rng: &mut Rng) -> u32 {
    u32::try_from(any_number(rng) & u64::from(u32::MAX)).expect("cut")
}

fn any_id(rng: &mut Rng) -> NodeId {
    NodeId::from_u128(rng.next_u128() >> (32 * rng.below(4)))
}

fn any_member(rng: &mut Rng) -> Member {
    Member {
        id: any_id(rng),
        name: any_name(rng),
        ha: rng.chance(70),
        draining: rng.chance(20),
        lease: Duration::from_millis(any_number(rng)),
        max: rng.chance(30).then(|| any_u32(rng)),
        serial: any_number(rng),
        labels: any_names(rng, 3),
    }
}

fn any_place(rng: &mut Rng, members: &[Member]) -> Place {
    let bound = u64::try_from(members.len()).expect("few");
    let node = |rng: &mut Rng| {
        let chosen = usize::try_from(rng.below(bound)).expect("fewer");
        members[chosen].id
    };
    if members.is_empty() || rng.chance(20) {
        return Place::Waiting;
    }
    let from = node(rng);
    match rng.below(5) {
        0 => Place::Releasing {
            from,
            to: Target::Anyone,
        },
        1 => Place::Releasing {
            from,
            to: Target::Nowhere,
        },
        2 => Place::Releasing {
            from,
            to: Target::Node(node(rng)),
        },
        _ => Place::Assigned(from),
    }
}

fn any_assignment(rng: &mut Rng, members: &[Member]) -> Assignment {
    let digest = format!("{:x}_-", rng.next_u128());
    let instances = 1 + rng.below(u64::from(INSTANCES_MAX));
    Assignment {
        digest: Digest::new(&digest).expect("a digest"),
        instances: u32::try_from(instances).expect("few"),
        ha: rng.chance(70),
        order: any_u32(rng),
        fails: any_u32(rng),
        needs: any_names(rng, 2),
        place: any_place(rng, members),
    }
}

fn any_view(rng: &mut Rng, members: u64, workloads: u64) -> View {
    let mut view = View::empty(any_name(rng), any_u32(rng), rng.chance(50));
    view.epoch = any_number(rng);
    view.members = (0..rng.below(members + 1))
        .map(|_| any_member(rng))
        .collect();
    let mut ids = BTreeSet::new();
    view.members.retain(|member| ids.insert(member.id));
    let departures = rng.below(DEPARTURES_MAX as u64 + 1);
    let departure = |rng: &mut Rng| Departure {
        id: any_id(rng),
        died: rng.chance(50),
    };
    view.departures = (0..departures).map(|_| departure(rng)).collect();
    let mut all = BTreeMap::new();
    for _ in 0..rng.below(workloads + 1) {
        all.insert(any_name(rng), any_assignment(rng, &view.members));
    }
    view.workloads = all;
    // Most views have no mark.
    let marks = rng.below(9).saturating_sub(5);
    let mark = |rng: &mut Rng| Digest::new(&format!("{:x}", rng.next_u128()));
    view.marks = (0..marks).map(|_| mark(rng).expect("a digest")).collect();
    view
}

fn any_heartbeat(rng: &mut Rng, status: u64) -> Heartbeat {
    let status: Vec<u8> = (0..rng.below(status + 1))
        .map(|_| rng.next_u64().to_le_bytes()[0])
        .collect();
    Heartbeat {
        node: any_id(rng),
        sequence: any_number(rng),
        lease: Duration::from_nanos(any_number(rng)),
        status: status.into(),
        dead: rng.chance(30).then(|| any_id(rng)),
    }
}

/// A text with the checksum that belongs to it.
fn sealed(body: &str) -> Vec<u8> {
    let sum = crc32c(body.as_bytes());
    format!("{body}crc32c {sum:08x}\n").into_bytes()
}

/// Without its last line.
fn body(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).expect("text");
    let (body, _) = text.split_at(text.rfind("crc32c ").expect("a checksum"));
    body.to_owned()
}

#[test]
fn a_view_is_read_as_it_was_written() {
    let rng = &mut Rng::from_seed(1);
    for _ in 0..500 {
        let view = any_view(rng, 6, 12);
        let bytes = view.encode();
        assert_eq!(View::decode(&bytes), Ok(view.clone()));
        assert_eq!(sealed(&body(&bytes)), bytes.to_vec());
    }
    for _ in 0..4 {
        let view = any_view(rng, MEMBERS_MAX as u64, 2_000);
        assert_eq!(View::decode(&view.encode()), Ok(view));
    }
}

#[test]
fn a_heartbeat_is_read_as_it_was_written() {
    let rng = &mut Rng::from_seed(2);
    for most in (0..500).map(|_| 8).chain([STATUS_BYTES_MAX as u64; 4]) {
        let beat = any_heartbeat(rng, most);
        assert_eq!(Heartbeat::decode(&beat.encode()), Ok(beat));
    }
}

/// Every prefix, every single bit, and what was written over or behind.
fn is_never_read_damaged<T: std::fmt::Debug>(
    rng: &mut Rng,
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, CodecError>,
) {
    for end in 0..bytes.len() {
        let read = decode(&bytes[..end]);
        assert!(read.is_err(), "cut at {end}: {read:?}");
    }
    let mut damaged = bytes.to_vec();
    for bit in 0..8 * bytes.len() {
        damaged[bit / 8] ^= 1 << (bit % 8);
        let read = decode(&damaged);
        assert!(read.is_err(), "bit {bit}: {read:?}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for _ in 0..200 {
        let mut damaged = bytes.to_vec();
        let bound = u64::try_from(bytes.len()).expect("few");
        let at = usize::try_from(rng.below(bound)).expect("fewer");
        // A burst that is not longer than the checksum is always found.
        for byte in damaged.iter_mut().skip(at).take(4) {
            *byte ^= rng.next_u64().to_le_bytes()[0];
        }
        assert!(damaged == bytes || decode(&damaged).is_err());
        damaged = bytes.to_vec();
        damaged.extend(rng.next_u64().to_le_bytes());
        assert!(decode(&damaged).is_err());
    }
}

#[test]
fn what_was_cut_or_flipped_is_never_read() {
    let rng = &mut Rng::from_seed(3);
    for _ in 0..12 {
        let view = any_view(rng, 3, 4).encode();
        is_never_read_damaged(rng, &view, View::decode);
        let beat = any_heartbeat(rng, 8).encode();
        is_never_read_damaged(rng, &beat, Heartbeat::decode);
    }
}

/// Something else in place of a part of it, as another version or a person
/// with an editor might have it.
fn forge(rng: &mut Rng, body: &str) -> String {
    let mut lines: Vec<String> = body.lines().map(str::to_owned).collect();
    let bound = u64::try_from(lines.len()).expect("few");
    let [one, two] = [0; 2].map(|_| usize::try_from(rng.below(bound)).expect("fewer"));
    let parts: Vec<&str> = lines[one].split('\t').collect();
    let part = usize::try_from(rng.below(parts.len() as u64)).expect("few");
    let odd = [
        "",
        "9",
        "0>0",
        "18446744073709551616",
        "-1",
        "*",
        "é",
        "h=1",
    ];
    let odd = odd[usize::try_from(rng.below(odd.len() as u64)).expect("few")];
    match rng.below(6) {
        0 => lines.swap(one, two),
        1 => drop(lines.remove(one)),
        2 => lines.insert(two, lines[one].clone()),
        3 => lines[one] = format!("{}\t{odd}", lines[one]),
        4 => lines[one] = lines[one].replacen(parts[part], odd, 1),
        _ => lines[one] = lines[two].clone(),
    }
    lines.join("\n") + "\n"
}

#[test]
fn what_was_forged_is_refused_or_is_what_could_have_been_written() {
    let rng = &mut Rng::from_seed(4);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let view = any_view(rng, 3, 4);
        let bytes = sealed(&forge(rng, &body(&view.encode())));
        match View::decode(&bytes) {
            Ok(view) => {
                assert_eq!(View::decode(&view.encode()), Ok(view));
                read += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("expected"), "{error}");
                refused += 1;
            }
        }
        let beat = any_heartbeat(rng, 4);
        let bytes =
            sealed(&forge(rng, &body(&beat.encode()).replace(' ', "\t")).replace('\t', " "));
        if let Ok(beat) = Heartbeat::decode(&bytes) {
            assert_eq!(Heartbeat::decode(&beat.encode()), Ok(beat));
        }
    }
    assert!(read > 1_000 && refused > 1_000, "{read} and {refused}");
}

/// Versions of before marks read views without them, and refuse one with a
/// mark, as any line that they do not know.
#[test]
fn marks_are_lines_of_their_own() {
    let rng = &mut Rng::from_seed(6);
    let mut view = any_view(rng, 3, 4);
    view.marks.clear();
    let without = body(&view.encode());
    assert!(!without.contains("\ng\t"), "{without}");
    for number in 0..MARKS_MAX {
        let digest = Digest::new(&format!("d{number:02}")).expect("a digest");
        view.marks.insert(digest);
    }
    let with = body(&view.encode());
    let marks = with.strip_prefix(&without).expect("the rest is the same");
    assert_eq!(marks.lines().next(), Some("g\td00"));
    assert_eq!(marks.lines().count(), MARKS_MAX);
    assert_eq!(View::decode(&sealed(&with)), Ok(view));
    for more in ["g\td00\n", "g\tmore\n", "g\n", "g\td\te\n"] {
        assert!(View::decode(&sealed(&(with.clone() + more))).is_err());
        let alone = View::decode(&sealed(&(without.clone() + more)));
        assert_eq!(alone.is_ok(), more.matches('\t').count() == 1, "{more:?}");
    }
}

#[test]
fn what_a_later_version_wrote_is_refused_and_says_so() {
    let rng = &mut Rng::from_seed(5);
    let later = |bytes: &[u8]| sealed(&body(bytes).replacen(" 1\n", " 2\n", 1));
    let view = View::decode(&later(&any_view(rng, 3, 4).encode())).expect_err("later");
    let beat = Heartbeat::decode(&later(&any_heartbeat(rng, 4).encode())).expect_err("later");
    for error in [view, beat] {
        assert_eq!(error, CodecError::Newer { format: 2 });
        let said = error.to_string();
        for word in ["expected format 1", "found format 2", "upgrade"] {
            assert!(said.contains(word), "{said}");
        }
    }
    // The rest of it may be anything: it is not looked at.
    let alien = View::decode(b"tenure-ha 7\n\xc2\xa7 whatever");
    assert_eq!(alien, Err(CodecError::Newer { format: 7 }));
}

#[test]
fn what_is_no_view_is_refused_with_what_was_found() {
    let foreign: [&[u8]; 5] = [
        b"",
        b"\xff\xfe",
        b"{}",
        b"tenure-ha-node 1\n",
        b"tenure-ha x\n",
    ];
    for bytes in foreign {
        let error = View::decode(bytes).expect_err("foreign");
        assert!(matches!(error, CodecError::Foreign { .. }), "{error:?}");
        assert!(error.to_string().contains("begins with \"tenure-ha 1\""));
    }
    let id = "0".repeat(32);
    let node = |number: usize| format!("n\t{number:032x}\tx\t1000\n");
    let times =
        |count: usize, line: &dyn Fn(usize) -> String| -> String { (0..count).map(line).collect() };
    let labels = "\tl=a".repeat(LABELS_MAX + 1);
    let needs = "\tc=a".repeat(LABELS_MAX + 1);
    let cases = [
        (times(MEMBERS_MAX + 1, &node), "no more lines of this kind"),
        (
            times(DEPARTURES_MAX + 1, &|_| format!("d\t{id}\tdied\n")),
            "no more lines of this kind",
        ),
        (format!("n\t{id}\tx\t1{labels}\n"), "a node within limits"),
        (node(1) + &node(1), "a node once"),
        (format!("w\ta\td\t*{needs}\n"), "a workload within limits"),
        ("w\ta\td\t*\ti=0\n".into(), "a workload within limits"),
        ("w\ta\td\t*\ti=10001\n".into(), "a workload within limits"),
        ("w\ta\td\t*\nw\ta\td\t*\n".into(), "a workload once"),
        ("w\ta\td\t0\n".into(), "a place"),
        ("w\ta\t!\t*\n".into(), "a digest"),
        ("w\ta\td\t*\tz=1\n".into(), "a field of a workload"),
        (format!("n\t{id}\tx\t1\tz=1\n"), "a field of a node"),
        ("q\tz\n".into(), "a line of a view"),
        (format!("d\t{id}\tslept\n"), "a departure"),
    ];
    for (lines, word) in cases {
        let text = format!("tenure-ha 1\ngroup\tg\nepoch\t1\nquorum\t0\n{lines}");
        let error = View::decode(&sealed(&text)).expect_err(word);
        let CodecError::Field { expected, found } = &error else {
            panic!("{error:?}");
        };
        assert!(*expected == word && found.len() <= 60, "{error:?}");
    }
    let status = "7b".repeat(STATUS_BYTES_MAX + 1);
    let text = format!("tenure-ha-node 1\nnode {id}\nsequence 1\nlease_ns 1\nstatus {status}\n");
    let error = Heartbeat::decode(&sealed(&text)).expect_err("too long");
    assert!(error.to_string().contains("expected a status"), "{error}");
}
