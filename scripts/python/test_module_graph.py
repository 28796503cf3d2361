"""Tests of rust_modules and module_graph."""

import tempfile
import unittest
from pathlib import Path

import module_graph
import rust_modules


class ModuleGraph(unittest.TestCase):
    def dependencies(self, **files):
        """Reads a crate x of these files: `lib` is its root, `a__b` is a/b.rs."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder, f"{name.replace('__', '/')}.rs")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            root = rust_modules.read_crate("x", Path(folder, "lib.rs"))
        modules = root.with_descendants()
        return [d for module in modules for d in module_graph.dependencies_of(module)]

    def assert_dependencies(self, expected, **files):
        found = {(str(d.source), str(d.target), d.name) for d in self.dependencies(**files)}
        self.assertEqual(found, expected)

    def assert_cycles(self, expected, **files):
        cycles = module_graph.cycles(self.dependencies(**files))
        self.assertEqual([sorted(map(str, cycle)) for cycle in cycles], expected)

    def test_two_modules_that_use_each_other_are_a_cycle(self):
        self.assert_cycles(
            [["x::a", "x::b"]],
            lib="mod a; mod b;",
            a="use crate::b::B; pub struct A;",
            b="fn f(_: super::a::A) {} pub struct B;",
        )

    def test_a_re_export_is_followed_to_the_definition(self):
        self.assert_dependencies(
            {("x::c", "x::a::b", "B")},
            lib="mod a; mod c;",
            a="mod b; pub use b::B;",
            a__b="pub struct B;",
            c="use crate::a; fn f(_: a::B) {}",
        )

    def test_a_module_that_only_declares_its_children_is_in_no_cycle_with_them(self):
        self.assert_cycles(
            [],
            lib="mod a;",
            a="mod b; pub use b::B; pub fn now() {}",
            a__b="pub struct B; fn f() { super::now() }",
        )

    def test_a_module_that_calls_its_child_and_is_called_by_it_is_in_a_cycle(self):
        self.assert_cycles(
            [["x::a", "x::a::b"]],
            lib="mod a;",
            a="mod b; fn f() { b::g() } pub fn now() {}",
            a__b="pub fn g() { super::now() }",
        )

    def test_nested_imports_and_other_names_are_followed(self):
        self.assert_dependencies(
            {("x::b", "x::a", "A"), ("x::b", "x::a::c", "g")},
            lib="mod a; mod b;",
            a="pub mod c { pub fn g() {} } pub struct A;",
            b="use crate::a::{self, A as Other, c::{g}}; fn f(_: Other, _: a::A) { g() }",
        )

    def test_a_public_glob_is_a_re_export(self):
        self.assert_dependencies(
            {("x::c", "x::a", "A")},
            lib="mod a; mod b { pub use crate::a::*; } mod c { fn f(_: crate::b::A) {} }",
            a="pub struct A; pub struct D;",
        )

    def test_a_path_attribute_names_the_file(self):
        self.assert_dependencies(
            {("x", "x::a", "A")},
            lib='#[path = "other/name.rs"] mod a; fn f(_: a::A) {}',
            other__name="pub struct A;",
        )

    def test_what_is_for_tests_only_is_left_out(self):
        self.assert_dependencies(
            set(),
            lib="mod a; mod b;",
            a="pub fn f() {} #[cfg(test)] mod tests { use crate::b::B; }",
            b="pub struct B; fn f() { #[cfg(test)] crate::a::f(); }",
        )

    def test_texts_comments_characters_and_lifetimes_are_no_code(self):
        self.assert_dependencies(
            set(),
            lib="mod a; mod b;",
            a=r'''// crate::b::B
                /* crate::b::B */
                fn f<'a>(_: &'a str) -> char {
                    let _ = "crate::b::B \" "; let _ = r#"" crate::b::B"#; '"'
                }''',
            b="pub struct B;",
        )

    def test_paths_in_attributes_count(self):
        self.assert_dependencies(
            {("x::a", "x::b", "parse")},
            lib="mod a; mod b;",
            a="#[arg(parser = crate::b::parse)] struct A;",
            b="pub fn parse() {}",
        )

    def test_names_of_fields_and_of_other_crates_do_not_count(self):
        self.assert_dependencies(
            {("x::a", "x::b", "text")},
            lib="mod a; mod b;",
            a="use crate::b::text; fn f(a: A) { let text: u8 = std::text::f(); text() }",
            b="pub fn text() {}",
        )

    def test_a_cut_has_the_dependency_that_closes_the_cycle(self):
        found = self.dependencies(
            lib="mod a; mod b; mod c;",
            a="pub fn f() { crate::b::f(); crate::c::f() }",
            b="pub fn f() { crate::c::f(); crate::c::g() }",
            c="pub fn f() { crate::a::f() } pub fn g() {}",
        )
        (cycle,) = module_graph.cycles(found)
        cut = [(str(d.source), str(d.target)) for d in module_graph.cut(cycle, found)]
        self.assertEqual(cut, [("x::c", "x::a")])

    def test_dependencies_between_modules_that_are_to_be_apart_are_found(self):
        found = self.dependencies(
            lib="mod a; mod b; mod bb;",
            a="mod c; pub fn f() { c::f() }",
            a__c="pub fn f() { crate::b::f(); crate::bb::f() }",
            b="pub fn f() {}",
            bb="pub fn f() {}",
        )
        apart = module_graph.between(found, ["x::a", "x::b"])
        self.assertEqual([(str(d.source), str(d.target)) for d in apart], [("x::a::c", "x::b")])


if __name__ == "__main__":
    unittest.main()
