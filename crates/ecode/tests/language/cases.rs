//! Test cases for the meaning of programs.

use super::{outcome, result};

#[track_caller]
fn gives(expression: &str, value: i64) {
    assert_eq!(result(&format!("on call {{ return {expression}; }}")), value, "{expression}");
    // The result is the same if the condition is not known at compile time.
    let written = format!("int one = 1; on call {{ if (one) return {expression}; return 0; }}");
    assert_eq!(result(&written), value, "{expression}");
}

/// Tests an operator with constant operands and with operands in variables.
#[track_caller]
fn operates(of: &str, left: &str, operator: &str, right: &str, value: i64) {
    gives(&format!("({of}) {left} {operator} ({of}) {right}"), value);
    let text = format!(
        "{of} left = {left}; {of} right = {right}; on call {{ return left {operator} right; }}"
    );
    assert_eq!(result(&text), value, "{text}");
}

#[test]
fn operators_bind_as_in_c() {
    gives("1 + 2 * 3", 7);
    gives("(1 + 2) * 3", 9);
    gives("10 - 4 - 3", 3);
    gives("1 << 2 + 1", 8);
    gives("7 & 3 == 3", 1);
    gives("1 | 2 ^ 3 & 2", 1);
    gives("-2 * -3", 6);
    gives("!0 + !5", 1);
    gives("~5", -6);
    gives("1 ? 2 : 0 ? 3 : 4", 2);
    gives("0 ? 2 : 0 ? 3 : 4", 4);
    gives("5 > 3 == 1", 1);
    gives("2 || 0 && 0", 1);
    gives("(1, 2)", 2);
}

/// Each variable is once at the end of readable memory.
#[test]
fn unused_values_are_not_read() {
    const ARRAY: &str = "char a[2][1];";
    const STRUCTS: &str = "struct s u[2];";
    let places = ["a", "a[1]", "a[n]", "u[1]", "u[1].b", "(n ? u[1] : u[n])", "(a[1], u[1])"];
    let left_away = places.iter().flat_map(|place| [(*place).into(), format!("(void) {place}")]);
    for place in left_away {
        for statement in
            [format!("{place};"), format!("({place}, n);"), format!("strlen(({place}, \"ab\"));")]
        {
            for variables in [[ARRAY, STRUCTS], [STRUCTS, ARRAY]] {
                let text = format!(
                    "struct s {{ char c; char b[2]; }}; int n = 1; {} on call {{ {statement} \
                    return 4; }}",
                    variables.concat()
                );
                assert_eq!(result(&text), 4, "{text}");
            }
        }
    }
    // Lvalues are resolved nevertheless.
    assert_eq!(
        result("char a[2][1]; int n; on call { a[n++]; (void) a[n++]; (a[n++], 1); return n; }"),
        3
    );
}

#[test]
fn numbers_are_converted_as_in_c() {
    operates("int", "2147483647", "+", "1", -2_147_483_648);
    operates("unsigned", "0", "-", "1", 4_294_967_295);
    operates("u8", "200", "+", "100", 300);
    operates("i8", "-128", "*", "-1", 128);
    operates("u16", "65535", "*", "65535", -131_071);
    operates("long", "-1", "/", "2", 0);
    operates("u64", "-1", "/", "2", i64::MAX);
    operates("int", "-1", ">>", "1", -1);
    operates("unsigned", "-1", ">>", "31", 1);
    gives("-1 < 0u", 0);
    gives("(i64) -1 < 0u", 1);
    gives("(u8) 300", 44);
    gives("(i8) 200", -56);
    gives("(bool) 256", 1);
    gives("sizeof(long) + sizeof(char)", 9);
    gives("sizeof(1 ? 1 : 1l)", 8);
    gives("sizeof(1 ? (char) 1 : (char) 2)", 4);
    gives("sizeof(1 ? true : false)", 4);
    gives("(0 ? (u8) 1 : (u8) 255) + 1", 256);
    gives("'a'", 97);
    gives("0xffffffff", 4_294_967_295);
    gives("2147483648", 2_147_483_648);
    gives("-2147483648", -2_147_483_648);
    let text =
        "on call(long n) { return (n == -1) + (n > -2) * 10 + ((u64) n <= (u64) -2) * 100; }";
    for (n, value) in [(-1_i64, 11), (-2, 100), (0xffff_ffff, 110), (1, 110)] {
        assert_eq!(outcome(text, &[n as u64]).0, value, "{n}");
    }
}

/// The compiler knows the value of `(x = 1)` and folds it, which must not change the result.
#[test]
fn constant_folding_changes_nothing() {
    const NUMBERS: [&str; 4] = ["0", "1", "-1", "40"];
    let same = |of: &str, known: &str, unknown: &str| {
        let text = |expression| format!("{of} x, y; on call {{ return {expression}; }}");
        assert_eq!(result(&text(known)), result(&text(unknown)), "{of}: {known}");
    };
    for of in ["int", "unsigned", "long", "u8", "i8"] {
        for one in NUMBERS {
            for unary in ["~", "-", "!", "+", "(unsigned) ~", "(u64) -", "(i16) ~", "(u8) -"] {
                // The value of a variable that is read is not known.
                same(of, &format!("{unary} (x = {one})"), &format!("(x = {one}, {unary} x)"));
            }
            for other in NUMBERS {
                for operator in [
                    "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", "==", "&&", "||",
                ] {
                    let known = format!("(u64) ((x = {one}) {operator} (y = {other}))");
                    same(of, &known, &format!("(x = {one}, y = {other}, (u64) (x {operator} y))"));
                }
            }
        }
    }
}

#[test]
fn undefined_behaviour_is_defined() {
    operates("int", "-2147483648", "/", "-1", -2_147_483_648);
    operates("int", "-2147483648", "%", "-1", 0);
    operates("int", "1", "<<", "33", 2);
    operates("long", "1", "<<", "64", 1);
    for (operator, value) in [("/", 0), ("%", -7)] {
        for zero in ["zero", "(zero++, 0)", "(zero++, 0ul)"] {
            let text = format!("int zero; on call {{ long n = -7; return n {operator} {zero}; }}");
            assert_eq!(result(&text), value, "{text}");
        }
    }
    // A variable without an initializer is 0, and a function without a `return` returns 0.
    assert_eq!(
        result(
            "int f() { } on call { int i; for (int n = 0; n < 3; n++) { int k; k += 1; i += k; } \
            return i + f(); }"
        ),
        3
    );
}

#[test]
fn short_circuit_evaluation() {
    gives("(\"a\", (1 ? \"b\" : \"c\"), 3)", 3);
    let count = "int done; int yes() { done++; return 1; } int no() { done++; return 0; }";
    for (expression, value) in [
        ("no() && yes()", 1),
        ("yes() && no()", 2),
        ("yes() || no()", 1),
        ("no() || yes()", 2),
        ("yes() ? no() : yes() + yes()", 2),
    ] {
        let text = format!("{count} on call {{ {expression}; return done; }}");
        assert_eq!(result(&text), value, "{expression}");
    }
}

#[test]
fn control_flow_as_in_c() {
    assert_eq!(
        result(
            "on call { int n = 0; for (int i = 0; i < 10; i++) { if (i == 3) continue; if (i == \
            6) break; n += i; } return n; }"
        ),
        12
    );
    assert_eq!(result("on call { int n = 5; do n--; while (n > 2); return n; }"), 2);
    assert_eq!(
        result(
            "on call { int n = 0; do { n++; if (n < 4) continue; break; } while (n); return n; }"
        ),
        4
    );
    let switch = "int f(int n) { int sum = 0; switch (n) { case 1: sum += 1; case 2: sum += 2; \
        break; default: sum = 9; case 3: sum++; } return sum; }";
    for (n, sum) in [(1, 3), (2, 2), (3, 1), (7, 10)] {
        assert_eq!(result(&format!("{switch} on call {{ return f({n}); }}")), sum);
    }
    assert_eq!(result("on call { if (0) return 1; else if (1) { return 2; } return 3; }"), 2);
}

#[test]
fn lvalues_are_evaluated_once() {
    assert_eq!(
        result(
            "int n; int a[4]; int at() { n++; return n; } on call { a[at()] += 5; a[at()]++; \
            return n * 100 + a[1] * 10 + a[2]; }"
        ),
        251
    );
    assert_eq!(result("on call { int i = 5; return i++ * 10 + i--; }"), 56);
    assert_eq!(result("on call { u8 i = 255; return ++i; }"), 0);
    assert_eq!(result("on call { int a; int b; a = b = 4; return a + b; }"), 8);
}

#[test]
fn array_and_struct_initializers() {
    let point = "struct point { char c; int x, y; }; struct line { struct point from, to; };";
    for (body, value) in [
        (
            "struct point p = { .y = 2, .x = 1 }; struct point q = p; q.x = 5; return p.x * 100 + \
            q.x * 10 + q.y;",
            152,
        ),
        (
            "struct line l = { { 'a', 1, 2 }, { .y = 4 } }; return l.from.c + l.from.y + l.to.y;",
            103,
        ),
        ("int a[] = { 1, [3] = 4, 5 }; return sizeof(a) * 100 + a[0] + a[2] + a[3] + a[4];", 2010),
        (
            "char t[] = { \"abc\" }, u[2][4] = { \"ab\", { \"cd\" } }; return sizeof t * 1000 + \
            t[2] + u[1][1];",
            4199,
        ),
        ("char t[] = \"abc\"; return sizeof t * 1000 + t[2];", 4099),
        ("int m[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } }; return m[1][2] * 10 + m[0][1];", 62),
        (
            "long sum = 0; for (int i = 0; i < 2; i++) { struct line l = { 0 }; \
            int m[2][2] = { 0 }; sum += l.from.x + l.to.y + m[1][1]; \
            l.from.x = l.to.y = m[1][1] = 3; } return sum;",
            0,
        ),
        ("return sizeof(struct point) * 100 + sizeof(struct line);", 1224),
        ("return sizeof(struct point[2]) * 100 + sizeof(int[3][5]);", 2460),
        (
            "struct point p = { 'p', 1, 2 }; struct line l = { .to.x = 9, .from = p, .from.c = 3, \
            .to = p, .to = { .y = 7 } }; return l.from.c * 1000 + l.from.y * 100 + l.to.x * 10 + \
            l.to.y;",
            3207,
        ),
        (
            "struct line l = { .to.y = 4, .from = { .x = 1 }, .to.x = 3 }; int m[2][3] = { [1][2] \
            = 5, [1] = { 6 } }; return l.to.y * 1000 + l.to.x * 100 + l.from.x * 10 + m[1][2] + \
            m[1][0];",
            4316,
        ),
        (
            "struct point p = { 'p', 1 }, q = { 'q', 2 }, r; int n = 1; r = n ? p : q; int was = \
            r.x; r = n - 1 ? p : q; return was * 10 + r.x;",
            12,
        ),
        (
            "struct point p = { 'p', 1, 3 }, q, r; r = q = p; p.x = 9; int n = (q = p, r.x); \
            return r.y * 100 + q.x * 10 + n;",
            391,
        ),
        (
            "struct point p[2] = { { 'p', 1 }, { 'q', 2 } }, q[2], r; q[(r = p[1], 0)] = p[0]; \
            return q[0].x * 10 + r.x;",
            12,
        ),
    ] {
        assert_eq!(result(&format!("{point} on call {{ {body} }}")), value, "{body}");
    }
    assert_eq!(
        result(
            "struct s { u8 a[3]; u16 b; } ; struct s all[2] = { { { 1, 2, 3 }, 4 }, { .b = 515 } \
            }; on call { return all[0].a[2] + all[1].b; }"
        ),
        518
    );
    assert_eq!(
        result(
            "struct big { u64 words[32]; }; struct big x, y, z; on call { x.words[31] = 4; y = x; \
            z = y; y.words[31] = 7; x = z = y; return x.words[31] + z.words[31]; }"
        ),
        14
    );
}

#[test]
fn byte_order_mark_is_ignored() {
    assert_eq!(result("\u{feff}on call { return 3; }"), 3);
}

#[test]
fn out_of_bounds_reads_0_and_is_counted() {
    let (value, state, _) = outcome(
        "int a[4] = { 1, 2, 3, 4 }; on call(int i) { a[i] = 9; return a[i] + a[3]; }",
        &[4],
    );
    assert_eq!((value, state.faults.outside), (4, 2));
    let (value, state, _) = outcome("int a[4]; on call(int i) { return a[i]; }", &[-1_i64 as u64]);
    assert_eq!((value, state.faults.outside), (0, 1));
}

#[test]
fn endless_loop_is_cut_short() {
    let (value, state, _) = outcome(
        "on call { int n = 0; bool before = cut_short(); while (1) n++; return before * 10 + \
        cut_short(); }",
        &[],
    );
    assert_eq!((value, state.faults.cut_short), (1, 1));
}

#[test]
fn maps_are_empty_at_first_and_bounded() {
    let map =
        "map<u32, u64> hits[2]; struct key { u32 a; u8 b; }; map<struct key, struct key> pairs[8];";
    let (value, state, _) = outcome(
        &format!(
            "{map} on call {{ hits[1]++; hits[1] += 2; hits[2] = 5; hits[3] = 7; return has(hits, \
            3) * 1000 + hits[1] * 10 + hits[2] + hits[3]; }}"
        ),
        &[],
    );
    assert_eq!((value, state.faults.full), (35, 1));
    assert_eq!(
        result(&format!(
            "{map} on call {{ hits[1] = 1; return erase(hits, 1) * 10 + erase(hits, 1) + hits[1]; \
            }}"
        )),
        10
    );
    assert_eq!(
        result(&format!(
            "{map} on call {{ struct key k = {{ 1, 2 }}; pairs[k].a = 5; pairs[k].b += 3; struct \
            key got = pairs[k]; return got.a * 10 + got.b; }}"
        )),
        53
    );
}

#[test]
fn globals_and_statics_persist() {
    let text = "int next() { static int n = 10; return n++; } int other() { static int n; return \
        ++n; } on call { next(); other(); return next() * 10 + other(); }";
    assert_eq!(result(text), 112);
}

#[test]
fn strlen_strcmp_strncmp() {
    gives("strlen(\"\")", 0);
    gives("strlen(\"abc\")", 3);
    gives("strcmp(\"abc\", \"abc\")", 0);
    gives("strcmp(\"abc\", \"abd\")", -1);
    gives("strcmp(\"abc\", \"ab\")", 1);
    gives("strcmp(\"\", \"a\")", -1);
    gives("strcmp(\"\\xff\", \"a\")", 1);
    gives("strncmp(\"abc\", \"abd\", 2)", 0);
    gives("strncmp(\"abc\", \"abd\", 3)", -1);
    gives("strncmp(\"abc\", \"abc\", 100)", 0);
    gives("strncmp(\"abc\", \"x\", 0)", 0);
    gives("\"a\" == \"a\"", 1);
    gives("\"a\" == \"b\"", 0);
    gives("(1 ? \"a\" : \"b\") != \"a\"", 0);
    gives("strlen(2 < 1 ? \"a\" : (3, \"four\"))", 4);
    let text = |what: &str| {
        format!(
            "char a[8] = \"abc\"; struct s {{ char b[4]; u8 c; }}; struct s s = {{ \"abcd\", 1 }}; \
             char rows[2][4] = {{ \"ab\", \"abc\" }};
             on call(int n) {{ char l[6] = \"abc\"; return {what}; }}"
        )
    };
    for (what, n, value) in [
        ("strlen(a)", 0, 3),
        // The array has no NUL.
        ("strlen(s.b)", 0, 4),
        ("strlen(l)", 0, 3),
        ("strcmp(a, l)", 0, 0),
        ("strcmp(s.b, a)", 0, 1),
        ("strcmp(rows[n], a)", 0, -1),
        ("strcmp(rows[n], a)", 1, 0),
        ("strlen(rows[n])", 1, 3),
        ("strlen(rows[n])", 2, 0),
        ("strcmp(rows[n], rows[n - 1])", 1, 1),
        ("strcmp(rows[n], \"\")", -1, 0),
        ("strncmp(rows[n], rows[1 - n], n + 2)", 0, 0),
        ("strcmp(n ? \"abc\" : \"x\", l)", 1, 0),
        ("strcmp(n ? \"abc\" : \"x\", l)", 0, 1),
    ] {
        assert_eq!(outcome(&text(what), &[n as u64]).0, value, "{what} {n}");
    }
}

#[test]
fn memset_memcpy_memcmp() {
    for (what, value) in [
        ("memset(a, 7, 3); return a[0] + a[2] * 10 + a[3] * 100", 77),
        ("memset(a, 7, 1000); return a[4] * 10 + b[0]", 71),
        ("memset(l, 7, 1000); return l[4] * 10 + k[0]", 79),
        ("memset(rows[n], 5, 2); return rows[1][1] * 10 + rows[0][1]", 50),
        ("memset(rows[n + 1], 5, 2); return rows[1][1] * 10 + rows[0][1]", 0),
        ("memset(m[3].b, 5, 2); return m[3].b[1] * 10 + m[3].b[2] + has(m, 3) * 100", 150),
        ("memset(a, 0x1234, 1); return a[0]", 0x34),
        ("memcpy(a, b, 2); return a[0] * 100 + a[1] * 10 + a[2]", 120),
        ("memcpy(a, b, 1000); return a[0] * 1000 + a[2] * 100 + a[3] * 10 + a[4]", 1300),
        ("memcpy(l, b, 3); memcpy(a, l, 5); return a[2] * 10 + a[3]", 30),
        ("memcpy(a, rows[n + 4], 5); return a[0]", 0),
        ("memcpy(words, b, 3); return words[0]", 0x3_0201),
        ("return memcmp(a, b, 3)", -1),
        ("return memcmp(b, a, 1000)", 1),
        ("return memcmp(a, a, 1000) + memcmp(a, b, 0)", 0),
        ("return memcmp(b, k, 3)", -1),
        // Numbers.
        ("long one = 3; memset(one, n, 8); return one == 0x0101010101010101", 1),
        ("memset(n, 2, 2); return n", 0x202),
        (
            "short one = 3; memcpy(one, b, 2); return one * 10 + memcmp(one, b, 2) + taken(n, one)",
            5133,
        ),
        (
            "int sum = 0; for (int i = 0; i < 3; i++) { char c = i; memset(c, c + 1, 1); sum = \
            sum * 10 + c; } return sum",
            123,
        ),
        ("bool is = false; memset(is, 2, 1); memset(flag, 3, 1); return is * 10 + flag", 1),
        // Memory that is set or copied by words.
        (
            "memset(wide, n + 0x1fe, sizeof(wide)); return wide[0].at + wide[1].at + \
            wide[1].after * 2",
            -4,
        ),
        (
            "memset(wide[n].text, 3, 8); return wide[1].text[7] * 10 + wide[1].after + wide[1].at",
            30,
        ),
        ("memset(wide[n + 1].text, 3, 8); return wide[1].text[7] + wide[0].at", 0),
        ("memset(m[3], 5, 1000); memset(f[3], 4, 1000); return m[3].b[2] * 10 + f[3].text[7]", 54),
        (
            "struct w s = { 7, \"a text\", 9 }; memcpy(wide[n], s, sizeof(s)); return \
            wide[1].text[5] + wide[1].after",
            125,
        ),
        ("struct w s = { 7 }; memcpy(s, wide[n + 1], sizeof(s)); return s.at", 0),
        (
            "struct w s[2] = { { 7 }, { 8 } }; memcpy(s[n - 1], s[n], 1000); memset(l, 1, 5); \
            return s[0].at * 10 + s[1].at",
            88,
        ),
        ("struct w s = { 7 }; memcpy(s, f[4], sizeof(s)); return s.at + has(f, 4)", 0),
    ] {
        let text = format!(
            "u8 a[5]; u8 b[3] = {{ 1, 2, 3 }}; u8 rows[2][3]; u32 words[2]; bool flag; \
             int taken(int n, u8 by) {{ memset(by, n, 1); memcpy(n, a, 1); \
             return n * 256 + by + 2; }} \
             struct w {{ long at; char text[8]; int after; }}; struct w wide[2]; \
             map<int, struct w> f[4]; struct v {{ u8 b[3]; }}; map<int, struct v> m[4];
             on call(int n) {{ u8 l[5]; u8 k[3] = {{ 9 }}; {what}; }}"
        );
        assert_eq!(outcome(&text, &[1]).0, value, "{what}");
    }
}
