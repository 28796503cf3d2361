"""Reads the files and edits of a page that builds an example step by step, and applies them.

A paragraph that is only "`PATH`:" is followed by a code block with a new file. A paragraph that is
only "In `PATH`:" is followed by a `diff` block, whose lines begin with a space (context) or "+".
"""

import dataclasses
import re
from pathlib import Path

NEW_FILE = re.compile(r"^`([^`]+)`:$")
EDIT = re.compile(r"^In `([^`]+)`:$")


class PageError(Exception):
    """The page cannot be applied."""


@dataclasses.dataclass
class NewFile:
    path: str
    text: str

    def apply(self, root):
        target = root / self.path
        if target.exists():
            raise PageError(f"{self.path} exists already")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.text)


@dataclasses.dataclass
class Edit:
    path: str
    # Each with its first character: a space (context) or "+" (added).
    lines: list

    @property
    def added(self):
        return [line[1:] for line in self.lines if line.startswith("+")]

    def apply(self, root):
        target = root / self.path
        try:
            old = target.read_text().splitlines()
        except FileNotFoundError as error:
            raise PageError(f"{self.path} does not exist") from error
        context = [line[1:] for line in self.lines if line.startswith(" ")]
        length = len(context)
        places = [at for at in range(len(old)) if old[at : at + length] == context]
        if len(places) != 1:
            text = "\n".join(context)
            raise PageError(f"{self.path} has the context {len(places)} times, not once:\n{text}")
        old[places[0] : places[0] + length] = [line[1:] for line in self.lines]
        target.write_text("\n".join(old) + "\n")


def read(page):
    """Returns the new files and edits of a page's text, in their order."""
    steps, lines = [], iter(page.splitlines())
    for line in lines:
        new_file, edit = NEW_FILE.match(line), EDIT.match(line)
        if not new_file and not edit:
            if line.startswith("```"):
                list(block(lines))
            continue
        path = (new_file or edit)[1]
        fence = next((line for line in lines if line), "")
        if not fence.startswith("```"):
            raise PageError(f"no code block follows the name of {path}")
        code = list(block(lines))
        steps.append(NewFile(path, "\n".join(code) + "\n") if new_file else checked(path, code))
    return steps


def block(lines):
    """Yields the lines of a code block whose first fence was read."""
    for line in lines:
        if line.startswith("```"):
            return
        yield line


def checked(path, code):
    """Returns an edit. Checks that it only adds lines, and that it has context."""
    lines = [line or " " for line in code]
    if any(line[0] not in " +" for line in lines):
        raise PageError(f"the edit of {path} has a line that is neither context nor added")
    edit = Edit(path, lines)
    if not edit.added or len(edit.added) == len(lines):
        raise PageError(f"the edit of {path} needs context, and a line that is added")
    return edit


def apply(page, root):
    """Applies a page's steps to the files below a folder, and returns them."""
    steps = read(page)
    for step in steps:
        step.apply(Path(root))
    return steps
