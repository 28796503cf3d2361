//! The file names and the titles of pictures.

use std::collections::BTreeSet;

use crate::format::printable;

/// The maximum number of characters of a part of a file name: the two parts, a number and the
/// suffix fit into the 255 bytes of a name (include/uapi/linux/limits.h, NAME_MAX).
const MAX_PART: usize = 100;
/// The maximum number of characters of a part of a title, so that two fit into the width of a
/// picture.
const MAX_TITLE_PART: usize = 45;

/// The names of the pictures of one simulation.
#[derive(Default)]
pub struct PictureNames {
    used: BTreeSet<String>,
}

impl PictureNames {
    /// A file name for the picture of a type on a set of levels, which no other picture has.
    pub fn file_name(&mut self, kind: &str, set: &str) -> String {
        let [kind, set] = [plain(kind, "type"), plain(set, "levels")];
        let numbers = (2..).map(|number| format!("-{number}"));
        let names = [String::new()].into_iter().chain(numbers);
        let mut names = names.map(|number| format!("{kind}-{set}{number}.svg"));
        let name = names.find(|name| !self.used.contains(name)).expect("there is a next number");
        self.used.insert(name.clone());
        name
    }
}

/// "game: frame on my board"
pub fn title(kind: &str, set: &str) -> String {
    format!("{} on {}", shortened(&printable(kind)), shortened(&printable(set)))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TITLE_PART) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The name with only letters, digits and hyphens.
fn plain(name: &str, otherwise: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let parts: Vec<_> = name.split('-').filter(|part| !part.is_empty()).collect();
    let mut name = if parts.is_empty() { otherwise.into() } else { parts.join("-") };
    // All characters are ASCII.
    name.truncate(MAX_PART);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_plain() {
        let of = |kind: &str, set: &str| PictureNames::default().file_name(kind, set);
        assert_eq!(
            of("chocolate-doom: frame (35 Hz)", "my board"),
            "chocolate-doom-frame-35-Hz-my-board.svg"
        );
        assert_eq!(of("../é", ""), "type-levels.svg");
        assert_eq!(of(&"a".repeat(300), &"b".repeat(300)).len(), 2 * MAX_PART + "-.svg".len());
    }

    #[test]
    fn file_names_are_unique() {
        let mut names = PictureNames::default();
        let of: Vec<_> = [("a/b c", "s"), ("a b/c", "s"), ("a b c", "s-2"), ("a b c", "s")]
            .map(|(kind, set)| names.file_name(kind, set))
            .into();
        assert_eq!(of, ["a-b-c-s.svg", "a-b-c-s-2.svg", "a-b-c-s-2-2.svg", "a-b-c-s-3.svg"]);
    }

    #[test]
    fn titles_are_short() {
        assert_eq!(title("game: frame", "my board"), "game: frame on my board");
        let long = title(&"é".repeat(500), &"b".repeat(500));
        assert_eq!(long.chars().count(), 2 * MAX_TITLE_PART + "… on …".chars().count());
    }
}
