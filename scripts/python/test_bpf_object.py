"""Tests of bpf_object, on an object that clang makes."""

import os
import subprocess
import unittest

import bpf_object

CLANG = os.environ.get("CLANG", "clang-19")
SOURCE = """
static void (*const use)(void *) = (void *)1;
static long (*const loop)(unsigned, void *, void *, long) = (void *)181;
extern int kernel_function(void) __attribute__((section(".ksyms")));

static __attribute__((noinline)) int inner(int n) { long a[12]; a[n & 1] = n; use(a); return a[0]; }
static __attribute__((noinline)) int middle(int n) { return inner(n + 1) + 1; }
static __attribute__((noinline)) int wide(int n) { long a[30]; a[n & 1] = n; use(a); return a[0]; }
static int callback(int n, void *context) { return wide(n); }
__attribute__((noinline)) int global(int n) { return middle(n) * 3; }

__attribute__((section("program.one"))) int one(int *n) { return global(*n) + middle(*n); }
__attribute__((section("program.two"))) int two(int *n) { return loop(4, callback, 0, 0); }
__attribute__((section("program.three"))) int three(int *n) { return kernel_function(); }
"""


class BpfObject(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = [CLANG, "-O2", "-target", "bpf", "-mcpu=v3", "-xc", "-", "-c", "-o", "-"]
        result = subprocess.run(command, input=SOURCE.encode(), capture_output=True, check=True)
        cls.data = result.stdout
        (functions,) = bpf_object.objects_in(cls.data)
        cls.functions = {function.name: function for function in functions}

    def deepest(self, name, measure):
        return [f.name for f in self.functions[name].deepest(measure)]

    def test_programs_are_the_functions_with_a_section_of_their_own(self):
        programs = {name for name, function in self.functions.items() if function.is_program}
        self.assertEqual(programs, {"one", "two", "three"})

    def test_calls_of_static_and_of_global_functions_are_followed(self):
        self.assertEqual(self.deepest("one", lambda _: 1), ["one", "global", "middle", "inner"])

    def test_a_callback_is_a_call(self):
        self.assertEqual(self.deepest("two", lambda f: f.stack), ["two", "callback", "wide"])

    def test_a_function_of_the_kernel_is_none_of_the_program(self):
        self.assertEqual(self.functions["three"].callees, set())

    def test_the_stack_of_a_frame_covers_its_variables(self):
        self.assertEqual(self.functions["inner"].stack, 96)
        self.assertEqual(self.functions["wide"].stack, 240)
        self.assertEqual(self.functions["one"].stack, 0)

    def test_instructions_of_all_reachable_functions_are_found(self):
        names = {function.name for function in self.functions["one"].reachable()}
        self.assertEqual(names, {"one", "global", "middle", "inner"})
        self.assertEqual(self.functions["three"].instructions, 2)

    def test_objects_within_another_file_are_found(self):
        data = b"\x7fELF" + bytes(99) + self.data + b"text" + self.data
        self.assertEqual(len(bpf_object.objects_in(data)), 2)


if __name__ == "__main__":
    unittest.main()
