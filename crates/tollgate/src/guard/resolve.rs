//! Finds the stored baseline that PROGRAM on the command line selects.

use std::path::Path;

use anyhow::{Result, bail};

use super::baseline::{Baseline, Digest};
use crate::format::printable;

/// The minimum number of digits of a digest, because fewer could be a program's name.
const MIN_DIGITS: usize = 6;

/// Splits "PROGRAM[SCOPE]" into its parts.
pub fn split_scope(text: &str) -> (&str, Option<&str>) {
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((program, scope)) => (program, Some(scope)),
        None => (text, None),
    }
}

/// Whether the text names the scope. Scopes may be given without their kind, scripts and images
/// without their folder, and units without their suffix.
pub fn is_in_scope(scope: Option<&str>, text: &str) -> bool {
    let Some(scope) = scope else { return false };
    let name = scope.split_once(':').map_or(scope, |(_, name)| name);
    [scope, name, base_name(name)].contains(&text) || name.strip_suffix(".service") == Some(text)
}

/// The one baseline that `named` selects: a path, the start of a digest or a program's name,
/// optionally with a scope in brackets.
pub fn select<'a>(named: &str, all: &'a [Baseline]) -> Result<&'a Baseline> {
    let (program, scope) = split_scope(named);
    if program.is_empty() {
        bail!("a program's name is empty: `tollgate guard show` lists the stored baselines");
    }
    let has_scope =
        |it: &Baseline| scope.is_none_or(|scope| is_in_scope(it.scope.as_deref(), scope));
    let matching = |fits: &dyn Fn(&Baseline) -> bool| {
        all.iter().filter(|it| fits(it) && has_scope(it)).collect::<Vec<_>>()
    };
    if program.contains('/') {
        let digest = Digest::of_file(Path::new(program))?;
        let found = matching(&|it| it.digest == digest);
        if found.is_empty() && all.iter().any(|it| it.paths.contains(program)) {
            bail!(
                "the content of {} has changed since its baseline was learned: `tollgate guard \
                show` lists the digest of the earlier content",
                printable(program)
            );
        }
        return unique(named, &found);
    }
    let by_name = matching(&|it| it.paths.iter().any(|path| base_name(path) == program));
    let by_digest = matching(&|it| has_prefix(it, program));
    unique(named, if by_digest.is_empty() { &by_name } else { &by_digest })
}

/// The baselines of all these programs, without duplicates.
pub fn select_all<'a>(programs: &[String], all: &'a [Baseline]) -> Result<Vec<&'a Baseline>> {
    let mut found: Vec<&Baseline> = Vec::new();
    for program in programs {
        let baseline = select(program, all)?;
        if !found.contains(&baseline) {
            found.push(baseline);
        }
    }
    Ok(found)
}

/// The only match. A baseline without a scope takes precedence over baselines of the same content
/// that have a scope, because these have names of their own.
fn unique<'a>(program: &str, found: &[&'a Baseline]) -> Result<&'a Baseline> {
    let program = printable(program);
    let is_one_program = found.iter().all(|it| it.digest == found[0].digest);
    if let Some(alone) = found.iter().find(|it| is_one_program && it.scope.is_none()) {
        return Ok(alone);
    }
    match found {
        [one] => Ok(one),
        [] => {
            bail!("no baseline of {program} is stored: `tollgate guard show` lists the stored ones")
        }
        several => {
            let one = |it: &&Baseline| format!("{} ({})", short_name(it), title(it));
            let names: Vec<_> = several.iter().map(one).collect();
            bail!(
                "{program} matches {} baselines; choose one of {}",
                several.len(),
                names.join(", ")
            )
        }
    }
}

/// Whether the text is "DIGEST" or "DIGEST-SCOPE". Each part may be shortened to its start.
fn has_prefix(baseline: &Baseline, text: &str) -> bool {
    let (digest, scope) =
        text.split_once('-').map_or((text, None), |(digest, scope)| (digest, Some(scope)));
    let name = baseline.name();
    let own_scope = name.split_once('-').map(|(_, scope)| scope);
    digest.len() >= MIN_DIGITS
        && baseline.digest.to_string().starts_with(digest)
        && scope.is_none_or(|start| {
            own_scope.is_some_and(|own| !start.is_empty() && own.starts_with(start))
        })
}

fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The short name, as tables show it and as PROGRAM accepts it.
pub fn short_name(baseline: &Baseline) -> String {
    let name = baseline.name();
    match name.split_once('-') {
        Some((digest, scope)) => format!("{}-{}", &digest[..12], &scope[..6]),
        None => name[..12].to_owned(),
    }
}

/// Where the program was seen, and its scope, for display.
pub fn title(baseline: &Baseline) -> String {
    let path = baseline.main_path().unwrap_or("(unknown path)");
    let scope = baseline.scope.as_ref().map_or(String::new(), |scope| format!(" [{scope}]"));
    printable(&(path.to_owned() + &scope))
}

#[cfg(test)]
mod tests {
    use super::super::baseline::tests::example;
    use super::*;

    fn baseline(content: &str, path: &str, scope: Option<&str>) -> Baseline {
        Baseline {
            digest: Digest::of(content.as_bytes()),
            scope: scope.map(str::to_owned),
            paths: [path.to_owned()].into(),
            ..example()
        }
    }

    #[test]
    fn a_program_is_named_by_its_path_its_digest_or_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server").display().to_string();
        std::fs::write(&path, "one").expect("written");
        let all = [
            baseline("one", &path, None),
            baseline("two", "/bin/shell", None),
            baseline("two", "/bin/shell", Some("backup.sh")),
            baseline("three", "/opt/server", None),
        ];
        let found = |program: &str| select(program, &all).map_err(|error| error.to_string());
        assert_eq!(found(&path), Ok(&all[0]));
        for baseline in &all {
            assert_eq!(found(&baseline.name()), Ok(baseline));
            assert_eq!(found(&short_name(baseline)), Ok(baseline));
        }
        assert_eq!(found("shell"), Ok(&all[1]));
        assert_eq!(found(&all[3].digest.to_string()), Ok(&all[3]));
        assert!(
            found("server").unwrap_err().starts_with("server matches 2 baselines; choose one of ")
        );
        assert!(found(&all[3].digest.to_string()[..5]).unwrap_err().starts_with("no baseline of "));
        std::fs::write(&path, "changed").expect("written");
        assert!(found(&path).unwrap_err().contains("has changed since its baseline was learned"));
        assert!(found("/no/such").unwrap_err().starts_with("cannot read /no/such"));
        for nameless in ["", "[backup.sh]"] {
            assert!(found(nameless).unwrap_err().starts_with("a program's name is empty"));
        }
        assert!(found("a\u{1b}[2J").unwrap_err().starts_with("no baseline of a\\x1b[2J is stored"));
    }

    #[test]
    fn a_scope_is_named_in_brackets() {
        let all = [
            baseline("python", "/usr/bin/python3.11", None),
            baseline("python", "/usr/bin/python3.11", Some("script:/srv/a/app.py")),
            baseline("python", "/usr/bin/python3.11", Some("script:/srv/b/app.py")),
            baseline("python", "/usr/bin/python3.11", Some("unit:web.service")),
        ];
        let found = |program: &str| select(program, &all).map_err(|error| error.to_string());
        for program in ["python3.11[/srv/a/app.py]", "python3.11[script:/srv/a/app.py]"] {
            assert_eq!(found(program), Ok(&all[1]), "{program}");
        }
        assert_eq!(found("python3.11[web]"), Ok(&all[3]));
        assert_eq!(found("python3.11"), Ok(&all[0]));
        assert!(
            found("python3.11[app.py]").unwrap_err().starts_with("python3.11[app.py] matches 2")
        );
        assert!(
            found("python3.11[b.py]").unwrap_err().starts_with("no baseline of python3.11[b.py]")
        );
    }

    #[test]
    fn titles_cannot_steer_a_terminal() {
        assert_eq!(title(&baseline("x", "/bin/\u{1b}[2J", Some("a\nb"))), "/bin/\\x1b[2J [a\\nb]");
    }
}
