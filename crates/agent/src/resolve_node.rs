//! Which node of a group a name or an id stands for. The beginning of an id, such
//! as `tenure ps` shows, is enough.
//!
//! A name comes first: a node may well be called `cafe`. What fits more than one
//! node is refused, with their ids: the order of a list must not decide which of
//! two nodes is drained.

use tenure::ha::{Member, NodeId, View};

/// The fewest digits of an id that name a node.
const DIGITS_MIN: usize = 4;
/// How many `tenure ps` shows.
const SHOWN: usize = 8;

/// The node that is meant; never `former`, the id that this node gave up.
///
/// # Errors
/// If none fits, or more than one do: what would have.
pub(super) fn resolve_node<'a>(
    view: &'a View,
    former: Option<NodeId>,
    meant: &str,
) -> Result<&'a Member, String> {
    let members = view.members.iter().filter(|it| Some(it.id) != former);
    let members: Vec<&Member> = members.collect();
    let named = |it: &&&Member| it.name.as_str() == meant;
    let mut found: Vec<&Member> = members.iter().filter(named).copied().collect();
    if found.is_empty() {
        let digits = meant.to_ascii_lowercase();
        let begins =
            |it: &&&Member| digits.len() >= DIGITS_MIN && it.id.to_string().starts_with(&digits);
        found = members.iter().filter(begins).copied().collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(format!(
            "expected a node of the group ({}), found {meant}; name one, or give at least \
             {DIGITS_MIN} digits of the id that `tenure ps` shows",
            list_names(&members)
        )),
        more => {
            let ids: Vec<String> = more.iter().map(|it| it.id.to_string()).collect();
            Err(format!(
                "expected one node called {meant}, found {}; name one by its id: {}",
                more.len(),
                ids.join(", ")
            ))
        }
    }
}

/// Their names, with the ids of those that share one.
fn list_names(members: &[&Member]) -> String {
    let shown = |it: &&Member| {
        let namesakes = members.iter().filter(|other| other.name == it.name);
        if namesakes.count() == 1 {
            return it.name.to_string();
        }
        let id: String = it.id.to_string().chars().take(SHOWN).collect();
        format!("{} {id}", it.name)
    };
    let shown: Vec<String> = members.iter().map(shown).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::Name;

    use super::*;

    fn view() -> View {
        let mut view = View::empty(Name::new("town").expect("a name"), 0, false);
        let members = [
            ("a", 0x7379_6a7e_u128),
            ("a", 0x7379_ffff),
            ("b", 0x1234_5678),
            // Its name is the beginning of another one's id.
            ("1234", 0xcafe_cafe),
        ];
        for (name, begins) in members {
            view.members.push(Member {
                id: NodeId::from_u128(begins << 96),
                name: Name::new(name).expect("a name"),
                ha: true,
                draining: false,
                lease: Duration::from_secs(3),
                max: None,
                serial: 0,
                labels: Vec::new(),
            });
        }
        view
    }

    #[test]
    fn a_node_is_meant_by_its_name_its_id_or_the_beginning_of_that() {
        let view = view();
        let found = |meant: &str| {
            let member = resolve_node(&view, None, meant)?;
            let at = view.members.iter().position(|it| it.id == member.id);
            Ok::<_, String>(at.expect("a member"))
        };
        let whole = view.members[1].id.to_string();
        for (meant, at) in [
            ("b", 2),
            ("73796a7e", 0),
            ("7379F", 1),
            (&*whole, 1),
            ("12345", 2),
            ("1234", 3),
        ] {
            assert_eq!(found(meant), Ok(at), "{meant}");
        }
        for (meant, words) in [
            ("a", &["found 2", &whole] as &[&str]),
            ("7379", &["found 2", &whole]),
            // Too short, and no node at all.
            ("caf", &["a 73796a7e, a 7379ffff, b, 1234", "found caf"]),
            ("six", &["found six", "at least 4 digits"]),
            ("", &["found ;"]),
        ] {
            let why = found(meant).expect_err(meant);
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        // The id was given up, and one node of the name is left.
        let former = Some(view.members[1].id);
        let other = resolve_node(&view, former, "a").expect("one");
        assert_eq!(other.id, view.members[0].id);
    }
}
