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
    let entry = parse_task_rules(&format!("users = [\"ann\", 1000]\n{good}")).unwrap_err();
    assert_eq!(entry[0].message, "each entry of users must be a string, not 1000");
    assert_eq!((entry[0].span.clone(), entry.len()), (16..20, 1));
}
