"""Reads the modules of a Rust crate: what each one defines, imports and names.

The reader knows only as much of the grammar as it takes to find items and paths. It sees neither
calls of methods nor what macros generate. Items under `cfg(test)` are left out.
"""

import collections
import re
from pathlib import Path

TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<text>b?c?r(?P<hash>\#*)".*?"(?P=hash)|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\[^']*|[^'\\])')
  | (?P<lifetime>'\w+)
  | (?P<word>(?:r\#)?[A-Za-z_]\w*)
  | (?P<number>\d[\w.]*)
  | (?P<mark>::|->|=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
TYPES = {"struct", "enum", "union", "trait", "type"}
ITEMS = TYPES | {"fn", "const", "static", "macro_rules"}
QUALIFIERS = {"unsafe", "async", "extern", "default", "auto"}
OPEN, CLOSE = {"(", "[", "{"}, {")", "]", "}"}

# `text` is `""` for a string or character literal; its source is in `literal`.
Token = collections.namedtuple("Token", "text line is_word literal")
# `alias` is the name in the importing module; "*" stands for everything below `path`.
Import = collections.namedtuple("Import", "path alias line is_public")
Reference = collections.namedtuple("Reference", "path line")
Item = collections.namedtuple("Item", "kind line")


class Module:
    """One module. `path` begins with the crate's name."""

    def __init__(self, path, file, parent):
        self.path, self.file, self.parent = path, file, parent
        self.children = {}
        self.items = {}
        self.imports = []
        self.references = []

    def __str__(self):
        return "::".join(self.path)

    def root(self):
        return self if self.parent is None else self.parent.root()

    def with_descendants(self):
        yield self
        for child in self.children.values():
            yield from child.with_descendants()


def read_crate(name, file):
    """Reads the crate whose root is `file`, and returns its root module."""
    return read_file(file, (name,), None, file.parent)


def read_file(file, path, parent, folder):
    """Reads a module from its file; the files of its children are in `folder`."""
    module = Module(path, file, parent)
    Reader(module, tokens_of(file.read_text()), folder)
    return module


def tokens_of(text):
    tokens, line = [], 1
    for match in TOKEN.finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind == "text":
            tokens.append(Token('""', line, False, token))
        elif kind in ("word", "number", "mark"):
            tokens.append(Token(token.removeprefix("r#"), line, kind == "word", ""))
        line += token.count("\n")
    return tokens


class Reader:
    """Reads the items of one file into a module and into its inline children."""

    def __init__(self, module, tokens, folder):
        self.tokens, self.position = tokens, 0
        self.read_items(module, folder)

    def word(self, ahead=0):
        position = self.position + ahead
        return self.tokens[position].text if position < len(self.tokens) else ""

    def line(self):
        return self.tokens[self.position].line

    def read_items(self, module, folder):
        """Reads up to the brace that closes the module, or the end of the file."""
        while self.word() not in ("}", ""):
            is_test, file = self.read_attributes(module)
            is_public = self.skip_visibility()
            self.skip_qualifiers()
            into = Module(module.path, module.file, module.parent) if is_test else module
            self.read_item(into, folder, is_public, file)
        self.position += 1

    def read_attributes(self, module):
        """Returns whether the item is for tests only, and the file that `#[path]` names."""
        is_test, file = False, None
        while self.word() == "#":
            is_test |= self.is_test_attribute()
            if self.word(2) == "path":
                file = self.tokens[self.position + 4].literal.strip('"')
                file = (module.file.parent / file).resolve()
            self.position += 2 if self.word(1) == "!" else 1
            self.skip_group(module)
        return is_test, file

    def is_test_attribute(self):
        """Whether `#[cfg(test)]` begins here, alone or within all(…) or any(…)."""
        if self.word() != "#" or self.word(2) != "cfg":
            return False
        words = []
        while self.word(len(words)) not in ("]", ""):
            words.append(self.word(len(words)))
        return "test" in words and "not" not in words

    def skip_visibility(self):
        """Skips `pub` and what is in brackets after it. Returns whether there was a `pub`."""
        if self.word() != "pub":
            return False
        self.position += 1
        if self.word() == "(":
            self.skip_group(None)
        return True

    def skip_qualifiers(self):
        while self.word() in QUALIFIERS or (
            self.word() == "const" and self.word(1) in ("fn", "unsafe")
        ):
            self.position += 1
            # The ABI of `extern`.
            if self.word() == '""':
                self.position += 1

    def read_item(self, module, folder, is_public, file):
        kind = self.word()
        if kind == "use":
            self.read_import(module, is_public)
        elif kind == "mod":
            self.read_module(module, folder, file)
        elif kind in ITEMS:
            # `macro_rules! name`
            name = self.word(2 if kind == "macro_rules" else 1)
            module.items[name] = Item(kind, self.line())
            self.position += 3 if kind == "macro_rules" else 2
            # The paths in a macro are resolved where the macro is used.
            into = None if kind == "macro_rules" else module
            self.skip_rest(into, ends_with_brace=kind not in ("const", "static", "type"))
        elif kind:
            # An `impl`, or the use of a macro.
            self.position += 1
            self.skip_rest(module)

    def read_module(self, parent, folder, file):
        name, mark = self.word(1), self.word(2)
        self.position += 3
        path = (*parent.path, name)
        if mark == "{":
            child = Module(path, parent.file, parent)
            parent.children[name] = child
            self.read_items(child, folder / name)
            return
        if file:
            # As for a mod.rs, the files of its children are beside it.
            parent.children[name] = read_file(file, path, parent, file.parent)
            return
        for candidate in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if candidate.exists():
                parent.children[name] = read_file(candidate, path, parent, folder / name)

    def read_import(self, module, is_public):
        """Reads a `use` and its semicolon."""
        self.position += 1
        self.read_import_tree(module, (), is_public)
        self.position += 1

    def read_import_tree(self, module, path, is_public):
        """Reads one tree below `path`, up to the mark that follows it."""
        line = self.line()
        while True:
            if self.word() == "::":
                self.position += 1
            elif self.word() == "{":
                self.position += 1
                while self.word() != "}":
                    self.read_import_tree(module, path, is_public)
                    if self.word() == ",":
                        self.position += 1
                self.position += 1
                return
            elif self.word() == "*":
                self.position += 1
                module.imports.append(Import(path, "*", line, is_public))
                return
            else:
                if self.word() != "self" or not path:
                    path = (*path, self.word())
                self.position += 1
                if self.word() != "::":
                    break
        alias = path[-1]
        if self.word() == "as":
            alias = self.word(1)
            self.position += 2
        module.imports.append(Import(path, alias, line, is_public))

    def skip_group(self, module):
        """Skips a bracketed group that begins here, and adds its paths to the module."""
        depth = 0
        while self.word():
            depth += (self.word() in OPEN) - (self.word() in CLOSE)
            self.step(module)
            if depth == 0:
                return

    def skip_rest(self, module, ends_with_brace=True):
        """Skips the rest of an item, and adds its paths to the module."""
        depth = 0
        while word := self.word():
            if depth == 0 and word == "}":
                return
            depth += (word in OPEN) - (word in CLOSE)
            self.step(module)
            if depth == 0 and (word == ";" or (word == "}" and ends_with_brace)):
                return

    def step(self, module):
        """Reads one token, path, nested `use` or test-only statement."""
        token = self.tokens[self.position]
        before = self.tokens[self.position - 1].text if self.position else ""
        if self.is_test_attribute():
            self.position += 1
            self.skip_group(None)
            self.skip_rest(None)
        elif (
            module is None
            or not token.is_word
            or before in (".", "::")
            # The name of a field, a variable or a parameter.
            or self.word(1) == ":"
        ):
            self.position += 1
        elif token.text == "use" and before in ("{", "}", ";"):
            self.read_import(module, False)
        else:
            module.references.append(Reference(self.read_path(), token.line))

    def read_path(self):
        names = [self.word()]
        self.position += 1
        while self.word() == "::" and self.word(1) and self.tokens[self.position + 1].is_word:
            names.append(self.word(1))
            self.position += 2
        return tuple(names)


def resolve(module, path, seen=frozenset()):
    """Returns what a path means in a module: a Module, a pair of the module that defines the item
    and the item's name, or None for what is not of this crate.
    """
    first, rest = path[0], path[1:]
    if first == "crate":
        target = module.root()
    elif first == "self":
        target = module
    elif first == "super":
        target = module.parent
    else:
        target = look_up(module, first, seen)
    for name in rest:
        # The rest is a variant or an associated item.
        if not isinstance(target, Module):
            return target
        if name == "super":
            target = target.parent
        elif name != "self":
            # An item that is not found there was made by a macro.
            target = look_up(target, name, seen) or (target, name)
    return target


def look_up(module, name, seen):
    """Returns what one name means in a module, as resolve() does."""
    if (module, name) in seen:
        return None
    seen = seen | {(module, name)}
    if name in module.children:
        return module.children[name]
    if name in module.items:
        return module, name
    for imported in module.imports:
        if imported.alias == name:
            return resolve(module, imported.path, seen)
    for imported in module.imports:
        if imported.alias == "*":
            target = resolve(module, imported.path, seen)
            found = look_up(target, name, seen) if isinstance(target, Module) else None
            if found:
                return found
    return None
