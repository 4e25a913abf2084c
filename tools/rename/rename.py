#!/usr/bin/env python3
"""Applies a table of words to the tree: `tools/rename/rename.py TABLE…`.

A table is text. `#` begins a comment, and other lines are one of:

    in PATH…          the files (globs of git) that the lines below are about
    not PATH…         without these
    OLD NEW           a word of the code of these files
    A::OLD A::NEW     the same of two words, or of `a.old`, `.old`, `old:` and
                      `fn~old` (`~` is a space); in the order of the table,
                      before the words, and in comments and strings too
    text OLD NEW      a word of everything in them, comments and strings too
    move OLD NEW      a file; also every `mod` and path that names it is a word
                      of the table, which the table says by itself

All words of one `in` are replaced at the same time, so two may change places.
In Rust the code is what stands outside of comments and strings, and in these
what stands between backticks and, in strings, between braces.

Before it writes, it names each file in which NEW was there before OLD became
it: two things would have one name then, which the compiler may not notice
(one binding hides another). `both OLD` in the table says that this was looked
at, and is well.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<string>b?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\[^']+|[^'\\])')
      | (?P<word>(?:r\#)?[A-Za-z_][A-Za-z0-9_]*)""",
    re.S | re.X,
)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fail(message):
    sys.exit(f"tools/rename/rename.py: {message}")


def files(globs, without):
    args = ["git", "ls-files", "--"]
    args += [f":(glob){it}" if "*" in it else it for it in globs]
    args += [f":(exclude){it}" for it in without]
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


class Scope:
    def __init__(self, globs):
        self.globs, self.without = globs, []
        self.code, self.text, self.pairs, self.both = {}, {}, {}, set()


def read(table):
    scopes, moves = [], []
    for number, line in enumerate(open(table), 1):
        words = line.split("#")[0].split()
        match words:
            case []:
                continue
            case ["in", *globs]:
                scopes.append(Scope(globs))
            case ["not", *globs]:
                scopes[-1].without += globs
            case ["both", *old]:
                scopes[-1].both.update(old)
            case ["move", old, new]:
                moves.append((old, new))
            case ["text", old, new]:
                scopes[-1].text[old] = new
            case [old, new] if WORD.fullmatch(old) and WORD.fullmatch(new):
                if old in scopes[-1].code:
                    fail(f"{table}:{number}: {old} is there twice")
                scopes[-1].code[old] = new
            case [old, new] if re.search(r"[:.~]", old):
                scopes[-1].pairs[old.replace("~", " ")] = new.replace("~", " ")
            case _:
                fail(f"{table}:{number}: expected a line of a table, found {line!r}")
    return scopes, moves


def replace(source, rust, scope):
    code, text = scope.code, scope.text

    def words(part, table):
        return WORD.sub(lambda it: table.get(it[0], it[0]), part)

    def within(part, pattern):
        return re.sub(pattern, lambda it: words(it[0], code), part)

    def token(found):
        if found["comment"]:
            return words(within(found[0], r"`[^`\n]*`"), text)
        if found["string"]:
            return words(within(found[0], r"(?<!\{)\{[a-z_][a-z0-9_]*(?=[:}])"), text)
        return words(words(found[0], code), text)

    if rust:
        return TOKEN.sub(token, source)
    return words(words(source, text), code) if not code else words(within(source, r"`[^`\n]*`"), text)


def apply(table):
    scopes, moves = read(table)
    twice, used, changed = [], defaultdict(int), {}
    for scope in scopes:
        for path in files(scope.globs, scope.without):
            source = changed.get(path) or open(path, encoding="utf-8").read()
            there = set(WORD.findall(re.sub(r"//[^\n]*", "", source)))
            for old, new in (scope.code | scope.text).items():
                used[old] += old in there
                moved = new in scope.code or new in scope.text
                if old in there and new in there and not moved and old not in scope.both:
                    twice.append(f"{path}: {old} becomes {new}, which is there")
            after = source
            for old, new in scope.pairs.items():
                pattern = r"(?<!\w)" * old[0].isalnum() + re.escape(old) + r"(?!\w)" * old[-1].isalnum()
                after, count = re.subn(pattern, lambda _, new=new: new, after)
                used[old] += count
            after = replace(after, path.endswith(".rs"), scope)
            if after != source:
                changed[path] = after
    for scope in scopes:
        for old in scope.code | scope.text | scope.pairs:
            if not used[old]:
                twice.append(f"{old} is nowhere")
    if twice:
        fail("\n".join([f"{table}:", *twice]))
    for path, source in changed.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
    for old, new in moves:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        subprocess.run(["git", "mv", old, new], check=True)
    print(f"{table}: {len(changed)} files, {len(moves)} moved")


for table in sys.argv[1:] or fail("expected a table"):
    apply(table)
