import tempfile
import unittest
from pathlib import Path

import tutorial

PAGE = """\
# A page

`a/new.h`:

```c
int x;
```

In `old.c`:

```diff
 one
+two
 three
```

```sh
In `other`:
```
"""


def applied(page, text="zero\none\nthree\n"):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "old.c").write_text(text)
        steps = tutorial.apply(page, root)
        files = [path for path in root.rglob("*") if path.is_file()]
        return steps, {str(path.relative_to(root)): path.read_text() for path in files}


class Pages(unittest.TestCase):
    def test_files_and_edits(self):
        steps, files = applied(PAGE)
        self.assertEqual(files, {"a/new.h": "int x;\n", "old.c": "zero\none\ntwo\nthree\n"})
        self.assertEqual([step.path for step in steps], ["a/new.h", "old.c"])

    def test_context_must_be_there_once(self):
        for text in ("zero\n", "one\nthree\none\nthree\n", "none\nthree\n"):
            with self.subTest(text), self.assertRaisesRegex(tutorial.PageError, "not once"):
                applied(PAGE, text)

    def test_edits_only_add(self):
        for line in ("-one", "one"):
            with self.subTest(line), self.assertRaises(tutorial.PageError):
                applied(PAGE.replace(" one\n", f"{line}\n"))

    def test_new_files_are_new(self):
        with self.assertRaisesRegex(tutorial.PageError, "exists already"):
            applied(PAGE.replace("a/new.h", "old.c"))

    def test_a_name_without_code(self):
        with self.assertRaisesRegex(tutorial.PageError, "no code block"):
            applied("`a.h`:\n\ntext\n")


if __name__ == "__main__":
    unittest.main()
