//! Rules that can never begin a task, and other mistakes in files of rules.

use pace::parse_task_rules;

/// The messages of a file, each with the text that it is about.
fn problems(text: &str) -> Vec<(String, String)> {
    let found = parse_task_rules(text).err().unwrap_or_default();
    assert!(found.iter().all(|problem| problem.help.is_some()), "{found:?}");
    let of = |problem: toml_reader::Problem| (problem.message, text[problem.span].to_owned());
    found.into_iter().map(of).collect()
}

fn only(text: &str) -> (String, String) {
    let found = problems(text);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

fn rule(name: &str, rest: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\n{rest}\n")
}

#[test]
fn call_without_such_a_descriptor_is_a_problem() {
    let of = |rest: &str| only(&rule("a", rest));
    let (message, at) = of("calls = [\"read\", \"nanosleep\"]\ndescriptor = \"socket\"");
    assert_eq!(message, "nanosleep never has a descriptor of this kind: socket");
    assert_eq!(at, "\"nanosleep\"");
    let (message, _) = of("calls = \"epoll_wait\"\nport = 80");
    assert_eq!(message, "epoll_wait never has a descriptor of this kind: socket");
    let (message, at) = of("calls = \"read\"\nport = 80\ndescriptor = \"terminal\"");
    assert_eq!((message.as_str(), at.as_str()), ("only sockets have a port", "80"));
    let (message, at) = of("calls = \"read\"\ndescriptor = []");
    assert_eq!((message.as_str(), at.as_str()), ("descriptor is empty", "[]"));
    for good in ["calls = \"epoll_wait\"\ndescriptor = \"epoll\"", "calls = \"nanosleep\""] {
        assert!(problems(&rule("a", good)).is_empty());
    }
}

#[test]
fn shadowed_rule_is_a_problem() {
    let reads = rule("a", "calls = [\"read\", \"poll\"]");
    for later in ["", "program = \"x\"", "port = 80", "descriptor = \"pipe\""] {
        let later = rule("b", &format!("calls = \"read\"\n{later}"));
        let (message, _) = only(&format!("{reads}{later}"));
        assert_eq!(message, "this rule begins no task: \"a\" decides before it");
        assert!(problems(&format!("{later}{reads}")).is_empty());
    }
    for (earlier, later) in [
        ("descriptor = \"socket\"", ""),
        ("port = 80", "port = 81"),
        ("program = \"x\"", "program = \"y\""),
        ("descriptor = \"socket\"", "descriptor = [\"socket\", \"pipe\"]"),
    ] {
        let of = |name: &str, rest: &str| rule(name, &format!("calls = \"read\"\n{rest}"));
        assert!(problems(&format!("{}{}", of("a", earlier), of("b", later))).is_empty());
    }
    let sockets = rule("a", "calls = \"read\"\ndescriptor = \"socket\"");
    assert_eq!(problems(&(sockets + &rule("b", "calls = \"read\"\nport = 80"))).len(), 1);
}

/// The help texts for two rules, which have these names, programs and calls.
fn help_for(rules: [(&str, &str, &str); 2]) -> Vec<String> {
    let text = rules.map(|(name, program, call)| {
        rule(name, &format!("program = {program:?}\ncalls = {call:?}"))
    });
    let found = parse_task_rules(&text.concat()).err().unwrap_or_default();
    found.into_iter().map(|problem| problem.help.expect("help")).collect()
}

/// The kernel side keeps 15 bytes of a program's name.
#[test]
fn programs_are_compared_as_the_kernel_side_compares_them() {
    for (one, other, is_same) in [
        ("averyveryverylongprogramname", "averyveryverylongother", true),
        ("averyveryverylo1", "averyveryverylo2", true),
        ("averyveryveryl1", "averyveryveryl2", false),
    ] {
        let help = help_for([("a", one, "read"), ("b", other, "read")]);
        let shadowed = "only the first 15 bytes of a program's name are compared: remove one of \
            the rules";
        assert!(if is_same { help == [shadowed] } else { help.is_empty() }, "{help:?}");
        let help = help_for([("a", one, "read"), ("a", other, "poll")]);
        assert_eq!(help.len(), usize::from(is_same), "{help:?}");
        assert!(help.iter().all(|help| help.contains("the first 15 bytes are compared")));
    }
}

#[test]
fn one_of_two_identical_rules_is_to_be_removed() {
    let help = help_for([("a", "x", "read"), ("b", "x", "read")]);
    assert_eq!(help, ["both match the same calls: remove one of them"]);
    let first = rule("a", "calls = [\"read\", \"poll\"]");
    let found = parse_task_rules(&(first + &rule("b", "calls = \"read\""))).unwrap_err();
    let help = found[0].help.as_deref();
    assert_eq!(help, Some("the first rule that matches decides: put this one first"));
}

#[test]
fn impossible_names_are_problems() {
    let good = rule("a", "calls = \"read\"");
    for user in ["", "-1", "99999999999", "4294967295", "99999:99999"] {
        let (message, at) = only(&format!("users = [\"{user}\"]\n{good}"));
        assert_eq!((message, at), (format!("{user:?} is no user"), format!("{user:?}")));
    }
    assert_eq!(only(&format!("exempt = [\"\"]\n{good}")).0, "a program is empty");
    let long = format!("[[type]]\nname = {:?}", "n".repeat(64));
    assert_eq!(only(&long).0, "the name has 64 bytes");
    assert!(problems(&format!("[[type]]\nname = {:?}", "n".repeat(63))).is_empty());
}

#[test]
fn each_mistake_is_one_problem_with_help() {
    let good = rule("a", "calls = \"read\"");
    for (text, message, at) in [
        ("[rule]\nname = \"a\"", "rule must be an array of tables ([[…]]), not a table", ""),
        ("[[rules]]\nname = \"a\"", "unknown key \"rules\"", "rules"),
        ("[[type]]\nname = \"\"", "name is empty", "\"\""),
        ("[[type]]\nname = \"a\"\ndeadline = \"20ms\"", "unknown key \"deadline\"", "deadline"),
    ] {
        let (found, found_at) = only(text);
        assert_eq!(found, message);
        assert!(at.is_empty() || found_at == at, "{found_at}");
    }
    for line in ["levels = 5", "users = 7", "exempt = true", "actuator = [\"bounds\"]"] {
        only(&format!("{line}\n{good}"));
    }
    for line in ["port = 0", "port = 70000", "port = \"80\"", "port = 8.5", "deadline-ms = \"a\""] {
        only(&format!("{good}{line}"));
    }
    let entries = only("[[rule]]\nname = \"a\"\ncalls = 7");
    assert_eq!(entries.0, "calls must be a string or an array of strings, not 7");
    let twice = "descriptor = [1, 2]";
    let found = problems(&format!("{good}{twice}"));
    let messages: Vec<_> = found.iter().map(|(message, _)| message.as_str()).collect();
    assert_eq!(
        messages,
        [1, 2].map(|n| format!("each entry of descriptor must be a string, not {n}"))
    );
    for lists in ["users = [1, true]", "exempt = [1, {}]", "rule = [1, 2]"] {
        assert_eq!(problems(&format!("{lists}\n[[type]]\nname = \"b\"")).len(), 2, "{lists}");
    }
    assert_eq!(only(&format!("{good}name = \"b\"")).0, "duplicate key");
    only("[[rule]]\nname = a");
    let entry = parse_task_rules(&format!("users = [\"ann\", 1000]\n{good}")).unwrap_err();
    assert_eq!(entry[0].message, "each entry of users must be a string, not 1000");
    assert_eq!((entry[0].span.clone(), entry.len()), (16..20, 1));
}
