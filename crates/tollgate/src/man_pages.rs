//! The man pages, one for each command.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;

/// The titles of what the help of a command has at its end. clap_mangen calls it "EXTRA".
const TITLES: [(&str, &str); 3] = [
    (".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n"),
    (".SH EXTRA\nExit status:\n", ".SH \"EXIT STATUS\"\n"),
    (".SH EXTRA\n", ".SH NOTES\n"),
];

/// Writes the pages to a folder.
pub fn write(command: Command, folder: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, folder)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| write_pages(command, folder))?;
    let man = page_of(command);
    fs::write(folder.join(man.get_filename()), text(&man)?)
}

fn page_of(command: &Command) -> Man {
    let command = command.clone().mut_args(with_dots);
    // The footer of a page has its source; a command below `tollgate` has no version of its own.
    Man::new(command).source(concat!("tollgate ", env!("CARGO_PKG_VERSION")))
}

/// clap_mangen does not show that an argument may be repeated.
fn with_dots(argument: Arg) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    match (names, argument.get_action()) {
        ([name], ArgAction::Append) if argument.is_positional() => {
            // clap takes static names only, and the process ends when the pages are written.
            let name: &'static str = format!("{name}...").leak();
            argument.value_name(name)
        }
        _ => argument,
    }
}

fn text(man: &Man) -> io::Result<String> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    Ok(TITLES.iter().fold(page, |page, (from, to)| page.replace(from, to)))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn sections_have_the_usual_titles() {
        let mut command = Cli::command();
        command.build();
        let page = |command: &Command| text(&page_of(command)).expect("a page");
        let own = page(&command);
        assert!(own.contains("\n.SH \"EXIT STATUS\"\n  run "), "{own}");
        let daemon = page(command.find_subcommand("daemon").expect("a command"));
        assert!(daemon.contains("\n.SH EXAMPLES\n  tollgate daemon\n"), "{daemon}");
        assert!(daemon.contains(".TH tollgate-daemon 1  \"tollgate "), "{daemon}");
        let run = page(command.find_subcommand("run").expect("a command"));
        assert!(run.contains("\\fICMD...\\fR"), "{run}");
        assert!(![own, daemon].concat().contains("EXTRA"));
    }
}
