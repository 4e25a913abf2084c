//! Scripts drawn at random: three candidates, a store behind bad links, and
//! everything that may go wrong at once. Clocks run as far off as the drift
//! bound allows, and under silence that is all that may matter.

use std::collections::BTreeMap;

use tenure_core::rng::Rng;

const ACTORS: [&str; 3] = ["a", "b", "c"];

/// A script of `steps` mishaps, and then a store that works again; `extra` is
/// said of every candidate.
pub(crate) fn script(seed: u64, steps: u32, extra: &str) -> String {
    let mut rng = Rng::from_seed(seed);
    let mut text = String::new();
    for (index, actor) in ACTORS.iter().enumerate() {
        let rate = rng.between(0, 20_000) as i64 - 10_000;
        let watch = ["on", "off", "withheld"][rng.below(3) as usize];
        let work = ["ends", "runs"][rng.below(2) as usize];
        let seed = rng.below(1_000_000) + index as u64;
        text += &format!(
            "campaign {actor} lease=2s rate=\"{rate}\" boot={}s watch={watch} \
             work={work} seed={seed} {extra}\n",
            rng.below(10_000)
        );
    }
    for _ in 0..steps {
        text += &mishap(&mut rng);
        text += &format!("wait {}ms\n", rng.below(700));
    }
    for actor in ACTORS {
        text += &format!("resume {actor}\nlink {actor} up\nwork {actor}\n");
    }
    text += "wait 9s\nstate a\nstate b\nstate c\n---\n";
    text
}

fn mishap(rng: &mut Rng) -> String {
    let actor = ACTORS[rng.below(3) as usize];
    let other = ACTORS[rng.below(3) as usize];
    let links = [
        "up",
        "up",
        "up",
        "held",
        "silent",
        "deaf",
        "unavailable",
        "unknown",
        "broken",
    ];
    match rng.below(21) {
        0..=5 => format!("link {actor} {}\n", links[rng.below(9) as usize]),
        6 | 7 => format!("maybe ok {actor}\n"),
        8 => format!("maybe land {actor}\n"),
        9 => format!("maybe fail {actor} unknown\n"),
        10 => format!("maybe garble {actor}\n"),
        11 => format!("suspend {actor}\n"),
        12 | 13 => format!("resume {actor}\n"),
        14 => format!("resign {actor}\n"),
        15 => format!("transfer {actor} to={other}\n"),
        16 | 17 => format!("drained {actor}\n"),
        19 => format!("clock {actor} wall=\"{}s\"\n", rng.below(60) as i64 - 30),
        18 => "maybe request resign\n".to_string(),
        _ => format!("hint {actor}\n"),
    }
}

/// What must hold of every trace, whatever the mishaps.
pub(crate) fn check(trace: &str) -> Result<(), String> {
    let mut top_term = 0;
    let mut reigning: BTreeMap<&str, u64> = BTreeMap::new();
    for line in trace.lines() {
        if line.contains("LEAD AT ONCE") {
            return Err(line.to_string());
        }
        let mut words = line.split_whitespace().skip(1);
        let (Some(actor), Some(event)) = (words.next(), words.next()) else {
            continue;
        };
        let term = words.nth(1).unwrap_or_default();
        let term = term.trim_matches([',', ':', ';']).parse().unwrap_or(0);
        match event {
            // A term is led once, by one, and terms only grow.
            "ELECTED" if term <= top_term => return Err(format!("{line}: after {top_term}")),
            "ELECTED" => {
                top_term = term;
                if reigning.insert(actor, term).is_some() {
                    return Err(format!("{line}: it reigned already"));
                }
            }
            "renewed" | "DRAINING" if reigning.get(actor) != Some(&term) => {
                return Err(format!("{line}: it did not lead"));
            }
            "OUSTED" if reigning.remove(actor) != Some(term) => {
                return Err(format!("{line}: it did not lead"));
            }
            _ => {}
        }
    }
    // All is well again: somebody leads.
    let leading = trace
        .lines()
        .filter(|line| line.contains(" is leading as "));
    match leading.count() {
        1 => Ok(()),
        count => Err(format!("{count} lead in the end")),
    }
}
