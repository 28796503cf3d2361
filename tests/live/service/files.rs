//! Services by opened files.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::harness::report::none_lost;
use crate::harness::services::{ActiveServices, assert_charged, programs};
use crate::harness::{Job, NOBODY, Running, eventually};

const RULES: &str = r#"
[service.shop]
[service.blog]

[[rule]]
name = "the shop's data"
exe = "FOLDER/opener"
file = "FOLDER/data/shop"
belongs-to = "shop"

[[rule]]
exe = "FOLDER/opener"
file = "FOLDER/data/shop/blog"
belongs-to = "blog"

[[rule]]
exe = "FOLDER/opener"
file = "FOLDER/data/blog.txt"
belongs-to = "blog"

[[rule]]
exe = "FOLDER/opener"
file = "FOLDER/data/nobody's"
belongs-to = "root"
"#;

const FILES: [&str; 5] = ["shop/a", "shop/blog/a", "blog.txt", "other", "nobody's"];

/// A process that opens files on command, in a folder with these files.
struct Opener<'a> {
    services: &'a ActiveServices,
    running: Running,
    requests: usize,
}

fn active(rules: &str) -> ActiveServices {
    let folder = programs(&["opener"]);
    let data = folder.path().join("data");
    fs::create_dir_all(data.join("shop/blog")).expect("folders");
    FILES.iter().for_each(|file| fs::write(data.join(file), "").expect("a file"));
    ActiveServices::start(folder, rules)
}

impl<'a> Opener<'a> {
    #[track_caller]
    fn start(services: &'a ActiveServices) -> Self {
        Self::of(services, services.program("opener opener"))
    }

    #[track_caller]
    fn of(services: &'a ActiveServices, job: Job) -> Self {
        let running = job.start();
        eventually("the opener", || running.read("out") == "ready\n");
        Self { services, running, requests: 0 }
    }

    #[track_caller]
    fn request(&mut self, what: &str) -> String {
        writeln!(self.running.input(), "{what}").expect("it reads");
        self.requests += 1;
        let reply =
            |running: &Running| running.read("out").lines().nth(self.requests).map(str::to_owned);
        eventually("its reply", || reply(&self.running).is_some());
        reply(&self.running).expect("it was there")
    }

    /// Opens a file of the folder, or an absolute path, by this call.
    #[track_caller]
    fn does(&mut self, operation: &str, path: impl AsRef<Path>) {
        let path = self.services.path("data").join(path);
        assert_eq!(
            self.request(&format!("{operation} {}", path.display())),
            "done",
            "{operation} {path:?}"
        );
    }

    /// Opens a file and returns the service for which the process works then.
    #[track_caller]
    fn opens(&mut self, path: impl AsRef<Path>) -> String {
        self.does("openat", path);
        self.service()
    }

    fn service(&self) -> String {
        self.services.service_of(self.running.pid())
    }

    fn explain(&self) -> Value {
        self.services.explain(self.running.pid())
    }
}

#[test]
fn rules_on_files_and_folders() {
    let services = active(RULES);
    let mut opener = Opener::start(&services);
    assert_eq!(opener.opens("other"), "root");
    assert_eq!(opener.opens("shop/a"), "shop");
    let why = opener.explain();
    assert_eq!((&why["why"], &why["borrowed"]), (&"open".into(), &true.into()));
    assert_eq!(
        (&why["rule"]["line"], &why["rule"]["name"]),
        (&5.into(), &"the shop's data".into())
    );
    // The binding stays until another rule matches; the longest path wins.
    assert_eq!(opener.opens("other"), "shop");
    assert_eq!(opener.opens("shop/blog/a"), "blog");
    assert_eq!(opener.explain()["rule"]["line"], 11);
    // Rules match opened folders as well.
    assert_eq!(opener.opens("shop"), "shop");
    assert_eq!(opener.opens("blog.txt"), "blog");
    assert_eq!(opener.opens("nobody's"), "root");
    none_lost(&services.report());
}

#[test]
fn every_open_call_is_classified() {
    let services = active(RULES);
    let mut opener = Opener::start(&services);
    for operation in ["open", "openat", "openat2", "creat", "i386-open"] {
        opener.does(operation, "shop/a");
        assert_eq!(opener.service(), "shop", "{operation}");
        opener.does(operation, "nobody's");
        assert_eq!(opener.service(), "root", "{operation}");
    }
    // These calls give no access to the content.
    opener.does("only-path", "shop/a");
    assert_ne!(
        opener.request(&format!("openat {}", services.path("data/shop/none").display())),
        "done"
    );
    assert_eq!(opener.service(), "root");
}

#[test]
fn path_is_matched_as_it_is_at_open() {
    let services = active(RULES);
    let data = services.path("data");
    let mut opener = Opener::start(&services);
    assert_eq!(opener.opens("other"), "root");
    fs::rename(data.join("other"), data.join("shop/other")).expect("renamed");
    assert_eq!(opener.opens("shop/other"), "shop");
    opener.opens("nobody's");
    fs::rename(data.join("shop"), data.join("was-shop")).expect("renamed");
    assert_eq!(opener.opens("was-shop/other"), "root");
    assert_eq!(opener.opens("was-shop/blog/a"), "root");
    fs::rename(data.join("was-shop"), data.join("shop")).expect("renamed");
    assert_eq!(opener.opens("shop/blog/a"), "blog");
    opener.opens("nobody's");
    // A symbolic link is followed; its own name does not matter.
    symlink(data.join("shop/a"), data.join("link")).expect("a link");
    assert_eq!(opener.opens("link"), "shop");
    symlink(data.join("nobody's"), data.join("shop/link")).expect("a link");
    assert_eq!(opener.opens("shop/link"), "root");
    // If a file has two names, the one that was opened counts.
    fs::hard_link(data.join("nobody's"), data.join("shop/second")).expect("a second name");
    assert_eq!(opener.opens("shop/second"), "shop");
    assert_eq!(opener.opens("nobody's"), "root");
}

#[test]
fn path_is_relative_to_the_process_root() {
    let services = active(RULES);
    let mut opener = Opener::start(&services);
    opener.does("mount", "shop/blog");
    opener.does("creat", "shop/blog/in-memory");
    assert_eq!(opener.service(), "blog");
    opener.opens("nobody's");
    opener.does("chroot", "shop");
    assert_eq!(opener.request("openat /a"), "done");
    // To the process, the path is "/a".
    assert_eq!(opener.service(), "root");
}

#[test]
fn deep_paths_are_matched() {
    let services = active(RULES);
    let deep = (0..100).fold(services.path("data/shop"), |path, _| path.join("d"));
    fs::create_dir_all(&deep).expect("folders");
    fs::write(deep.join("file"), "").expect("a file");
    let mut opener = Opener::start(&services);
    assert_eq!(opener.opens(deep.join("file")), "shop");
    none_lost(&services.report());
}

#[test]
fn file_with_other_conditions() {
    let rules = format!(
        r#"
[service.shop]
[service.blog]
[service.users]

[[rule]]
file = "FOLDER/data/shop"
user = "{NOBODY}"
priority = 1
belongs-to = "blog"

[[rule]]
file = "FOLDER/data/shop"
exe = "FOLDER/opener"
service = "root"
belongs-to = "shop"

[[rule]]
file = "FOLDER/data/shop/blog"
exe = "FOLDER/opener"
inherits = true
priority = 1

[[rule]]
file = "FOLDER/data/blog.txt"
exe = "FOLDER/opener"
starts-below = "users"
each = "user"

[[rule]]
exe = "FOLDER/any"
on = "open"
belongs-to = "blog"
"#
    );
    let services = active(&rules);
    let mut opener = Opener::start(&services);
    assert_eq!(opener.opens("shop/blog/a"), "root");
    assert_eq!(opener.opens("shop/a"), "shop");
    assert_eq!(opener.opens("blog.txt"), "users:root");
    // Neither the condition on the user nor that on the service matches.
    assert_eq!(opener.opens("shop/a"), "users:root");
    let mut job = services.program("opener opener");
    std::os::unix::process::CommandExt::uid(&mut job.command, NOBODY);
    let mut other = Opener::of(&services, job);
    // A rule without a file condition is matched at every open, also those of the program's start.
    fs::copy(services.path("opener"), services.path("any")).expect("a program");
    let mut any = Opener::of(&services, services.program("any opener"));
    assert_eq!(any.opens("other"), "blog");
    assert_eq!(other.opens("shop/a"), "blog");
}

#[test]
fn file_work_is_charged() {
    let services = active(RULES);
    let mut opener = Opener::start(&services);
    let before = services.usage_by_service("cpu_ns");
    let mut worked = [0; 2];
    for _ in 0..5 {
        for (index, file, ms) in [(0, "shop/a", 40), (1, "blog.txt", 20)] {
            opener.does("openat", file);
            worked[index] += opener.request(&format!("work {ms}")).parse::<u64>().expect("a time");
        }
    }
    opener.does("openat", "nobody's");
    let after = services.usage_by_service("cpu_ns");
    for (name, work) in ["shop", "blog"].into_iter().zip(worked) {
        assert_charged(name, after[name] - before[name], work, worked.iter().sum());
    }
}

#[test]
fn file_rules_are_added_and_removed() {
    let services = active("[service.shop]\n");
    let mut opener = Opener::start(&services);
    assert_eq!(opener.opens("shop/a"), "root");
    services.apply(RULES);
    assert_eq!(opener.opens("shop/a"), "shop");
    services.apply("[service.shop]\n");
    opener.does("openat", "nobody's");
    assert_eq!(opener.service(), "shop");
}
