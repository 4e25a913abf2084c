//! Which file of a crate takes names from which, and the circles among them.
//!
//! The source is read as tokens, without the compiler: `use` items, and paths
//! in the code. A name that a file only passes on (`pub use`) counts for the
//! file that defines it. Code for tests alone does not count.
//!
//! Left out: macros, which are found by their text alone, and methods, which
//! need types; both need a path to their type or module, which is read here.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

/// A file, what it takes names from, and the names.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A path of names; one that is absolute begins below the root of the crate.
type Names = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    file: String,
    /// What `use` calls by a name here, and whether it only passes it on.
    aliases: BTreeMap<String, Names>,
    globs: Vec<Names>,
    defined: BTreeSet<String>,
    /// Paths as the code writes them: those of private `use`, and those of
    /// expressions and types.
    paths: Vec<Names>,
}

impl Module {
    /// Reads what is behind `use`.
    fn takes(&mut self, tree: &[String], public: bool) {
        let mut found = Vec::new();
        leaves(tree, &[], &mut found);
        for (name, path) in found {
            if !public {
                self.paths.push(path.clone());
            }
            if name == "*" {
                self.globs.push(path);
            } else {
                self.aliases.insert(name, path);
            }
        }
    }

    /// Reads the path that `tokens` begins with, and says how long it is.
    fn names(&mut self, tokens: &[String], last: &str) -> usize {
        const DEFINES: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static"];
        let name = &tokens[0];
        if DEFINES.contains(&last) {
            self.defined.insert(name.clone());
        }
        let further = tokens[1..].chunks_exact(3);
        let further = further.take_while(|it| it[0] == ":" && it[1] == ":" && is_name(&it[2]));
        let path: Names = once(name)
            .chain(further.map(|it| &it[2]))
            .cloned()
            .collect();
        let length = 3 * path.len() - 2;
        // A name alone may be that of a value; as a call it is not.
        let calls = tokens.get(length).is_some_and(|it| it == "(");
        if path.len() > 1 || calls || !name.starts_with(char::is_lowercase) {
            self.paths.push(path);
        }
        length
    }
}

/// The modules of a crate by their paths.
type Modules = BTreeMap<Names, Module>;

/// Words and signs, without comments, texts, characters and lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let mut rest = text;
    let mut found = Vec::new();
    while let Some(first) = rest.chars().next() {
        let word = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (token, after) = match first {
            '/' if rest.starts_with("//") => ("", rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => ("", rest.find("*/").map_or(rest.len(), |at| at + 2)),
            '"' => ("", quoted(rest)),
            'r' | 'b' if raw(rest).is_some() => ("", raw(rest).unwrap_or(1)),
            '\'' => ("", character(rest)),
            _ if word > 0 => (&rest[..word], word),
            _ if first.is_whitespace() => ("", first.len_utf8()),
            _ => (&rest[..first.len_utf8()], first.len_utf8()),
        };
        if !token.is_empty() {
            found.push(token.to_owned());
        }
        rest = &rest[after..];
    }
    found
}

/// Where a text in quotes ends.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Where a text with a prefix ends, such as `r#"…"#` or `b"…"`.
fn raw(text: &str) -> Option<usize> {
    let body = text.trim_start_matches(['r', 'b']);
    let prefix = text.len() - body.len();
    let hashes = body.len() - body.trim_start_matches('#').len();
    if prefix > 2 || !body[hashes..].starts_with('"') {
        return None;
    }
    if !text[..prefix].contains('r') {
        return Some(prefix + quoted(body));
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let inner = &body[hashes + 1..];
    let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
    Some(prefix + hashes + 1 + length)
}

/// Where a character or a lifetime ends.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            let from = at + c.len_utf8();
            text[from..]
                .find('\'')
                .map_or(text.len(), |it| from + it + 1)
        }
        (_, Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Where the group ends that `tokens` begins with.
fn group(tokens: &[String]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match &**token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Where the item ends that `tokens` begins with.
fn item(tokens: &[String]) -> usize {
    let mut at = 0;
    while at < tokens.len() {
        match &*tokens[at] {
            ";" => return at + 1,
            "{" => {
                at += group(&tokens[at..]);
                // `use a::{b, c};`
                return at + usize::from(tokens.get(at).is_some_and(|it| it == ";"));
            }
            "(" | "[" => at += group(&tokens[at..]),
            _ => at += 1,
        }
    }
    at
}

/// The same without the items that only tests have.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute = &tokens[at..];
        if attribute.starts_with(&["#".to_owned(), "[".to_owned()]) {
            let end = 1 + group(&attribute[1..]);
            let text = attribute[..end].join("");
            at += end;
            if text == "#[cfg(test)]" || text.starts_with("#[cfg(all(test,") {
                at += item(&tokens[at..]);
            }
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The paths of a tree of `use`, each with the name that it gets here; `*` for
/// all names.
fn leaves(tree: &[String], before: &[String], found: &mut Vec<(String, Names)>) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tree.len() {
        match &*tree[at] {
            ":" => {}
            "{" => {
                let end = at + group(&tree[at..]) - 1;
                let mut branch = at + 1;
                for here in at + 1..=end {
                    let inside = &tree[at + 1..here];
                    let opened = inside.iter().filter(|it| *it == "{").count();
                    let closed = inside.iter().filter(|it| *it == "}").count();
                    if opened == closed && (tree[here] == "," || here == end) {
                        leaves(&tree[branch..here], &path, found);
                        branch = here + 1;
                    }
                }
                return;
            }
            "as" => {
                found.push((tree[at + 1].clone(), path));
                return;
            }
            "*" => {
                found.push(("*".to_owned(), path));
                return;
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    if let Some(name) = path.last().filter(|_| !tree.is_empty()) {
        found.push((name.clone(), path));
    }
}

/// Reads a module and those within it.
fn read(modules: &mut Modules, at: &[String], file: &str, tokens: &[String]) {
    let mut module = Module {
        file: file.to_owned(),
        ..Module::default()
    };
    let mut here = 0;
    let mut public = false;
    while let Some(token) = tokens.get(here) {
        let rest = &tokens[here..];
        let next = |ahead: usize| rest.get(ahead).map_or("", String::as_str);
        let last = here.checked_sub(1).map_or("", |it| &*tokens[it]);
        here += match &**token {
            "pub" if next(1) == "(" => 1 + group(&rest[1..]),
            "mod" if next(2) == "{" => {
                let end = 2 + group(&rest[2..]);
                let inner = [at, &rest[1..2]].concat();
                read(modules, &inner, file, &rest[3..end - 1]);
                end
            }
            "use" => {
                let end = item(rest);
                module.takes(&rest[1..end - 1], public);
                end
            }
            name if is_name(name) && last != "." => module.names(rest, last),
            _ => 1,
        };
        public = token == "pub";
    }
    modules.insert(at.to_vec(), module);
}

/// An absolute path for one that the code of a module writes, if it leads to
/// this crate.
fn absolute(modules: &Modules, at: &[String], path: &[String]) -> Option<Names> {
    let (first, rest) = path.split_first()?;
    let from = match &**first {
        "crate" => Vec::new(),
        "self" => at.to_vec(),
        "super" => {
            let parent = &at[..at.len().checked_sub(1)?];
            return match rest.first().map(String::as_str) {
                Some("super") => absolute(modules, parent, rest),
                _ => Some(parent.iter().chain(rest).cloned().collect()),
            };
        }
        name => {
            let child: Names = at.iter().cloned().chain(once(name.to_owned())).collect();
            let alias = modules[at].aliases.get(name);
            match alias.filter(|alias| *alias != path && alias.first() != Some(first)) {
                Some(alias) => absolute(modules, at, alias)?,
                None if modules.contains_key(&child) => child,
                None => match alias {
                    Some(_) => return None,
                    None => return of_globs(modules, at, path),
                },
            }
        }
    };
    Some(from.iter().chain(rest).cloned().collect())
}

/// The same for a name that `use …::*` brings.
fn of_globs(modules: &Modules, at: &[String], path: &[String]) -> Option<Names> {
    let module = &modules[at];
    if module.defined.contains(&path[0]) {
        return None;
    }
    module.globs.iter().find_map(|glob| {
        let target = absolute(modules, at, glob)?;
        let target_module = modules.get(&target)?;
        let known = target_module.defined.contains(&path[0])
            || target_module.aliases.contains_key(&path[0]);
        known.then(|| target.iter().chain(path).cloned().collect())
    })
}

/// The file that defines what an absolute path names, and the name there.
fn definition<'a>(modules: &'a Modules, path: &[String], hops: usize) -> Option<(&'a str, String)> {
    let depth = (0..=path.len()).rfind(|depth| modules.contains_key(&path[..*depth]))?;
    let (at, rest) = path.split_at(depth);
    let module = &modules[at];
    let name = rest.first()?;
    let passed_on = (!module.defined.contains(name)).then(|| {
        let by_name = module.aliases.contains_key(name);
        match by_name {
            true => absolute(modules, at, rest),
            false => of_globs(modules, at, rest),
        }
    });
    match passed_on.flatten() {
        Some(elsewhere) if hops > 0 && elsewhere != path => {
            definition(modules, &elsewhere, hops - 1)
        }
        _ if module.defined.contains(name) => Some((&module.file, name.clone())),
        _ => None,
    }
}

/// The path of the module that a file is, below the folder of sources.
fn module_path(name: &str) -> Names {
    let name = name.trim_end_matches(".rs");
    let mut path: Names = name.split('/').map(str::to_owned).collect();
    path.pop_if(|last| ["lib", "main", "mod"].contains(&&**last));
    path
}

/// What the files of a crate take from each other. `files` has their texts by
/// their names below the folder of sources.
pub(crate) fn imports(files: &BTreeMap<&str, &str>) -> Imports {
    let mut modules = Modules::new();
    for (name, text) in files {
        let tokens = without_tests(&tokens(text));
        read(&mut modules, &module_path(name), name, &tokens);
    }
    let mut found = Imports::new();
    for (at, module) in &modules {
        for path in &module.paths {
            let target = absolute(&modules, at, path);
            let target = target.and_then(|it| definition(&modules, &it, 8));
            let Some((file, name)) = target.filter(|(file, _)| *file != module.file) else {
                continue;
            };
            let of = found.entry(module.file.clone()).or_default();
            of.entry(file.to_owned()).or_default().insert(name);
        }
    }
    found
}

/// The files that each file reaches.
fn reach<'a>(imports: &'a Imports, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut ahead = vec![from];
    while let Some(file) = ahead.pop() {
        for next in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(&**next) {
                ahead.push(next);
            }
        }
    }
    reached
}

/// The sets of files that reach each other.
pub(crate) fn circles(imports: &Imports) -> BTreeSet<Vec<&str>> {
    let files = imports.keys().map(String::as_str);
    let reached: BTreeMap<_, _> = files.map(|file| (file, reach(imports, file))).collect();
    let back = |from: &str, to: &str| reached.get(to).is_some_and(|it| it.contains(from));
    let all = reached.iter().map(|(from, to)| {
        let both = to.iter().copied().filter(|it| back(from, it));
        both.collect::<Vec<_>>()
    });
    all.filter(|it| it.len() > 1).collect()
}
