//! A flame graph as SVG. The file needs nothing else: its script and its style are in it.

use std::fmt::Write as _;

use super::folded::{Folded, FrameKind};
use super::layout::nodes;
use crate::format::{duration, share};

const WIDTH: f64 = 1200.0;
/// The space at the left and the right.
const MARGIN: f64 = 10.0;
const ROW: f64 = 17.0;
/// The width of a character: the fonts in `STYLE` have 0.602 of their size, which is 12 px.
const CHARACTER: f64 = 7.224;
/// Where the title and the first line below it are.
const TITLE: f64 = 24.0;
const FIRST_LINE: f64 = 44.0;
/// The space between the legend and the boxes.
const HEAD_GAP: f64 = 14.0;
/// The height of the line below the boxes, which names the function under the pointer.
const FOOT: f64 = 34.0;
/// Where a name is in its box: the distance from the left, and of its baseline from the top.
const PADDING: f64 = 3.0;
const BASELINE: f64 = 12.5;
/// Boxes that are narrower cannot be seen, and are left out.
const MIN_WIDTH: f64 = 0.1;

const STYLE: &str = "text{font-family:'DejaVu Sans Mono',Consolas,monospace;font-size:12px}\
    .title{font-family:sans-serif;font-size:17px}.about{font-family:sans-serif;fill:#444}\
    .button{fill:#05a;cursor:pointer}g.box{cursor:pointer}\
    g.box rect{stroke:#fff;stroke-width:.5}g.box:hover rect{stroke:#000}\
    .found rect{fill:#d0f!important}.faded{opacity:.45}";
const SCRIPT: &str = include_str!("zoom.js");

/// What the texts of a picture say.
pub struct Caption {
    /// The first line: what was measured.
    pub title: String,
    /// Further lines, for example the number of samples and what is missing.
    pub about: Vec<String>,
}

impl FrameKind {
    const ALL: [Self; 4] = [Self::Process, Self::User, Self::Call, Self::Kernel];

    fn label(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::User => "program",
            Self::Call => "system call",
            Self::Kernel => "kernel",
        }
    }

    /// A hue in degrees, and a saturation in percent.
    fn hue(self) -> (u32, u32) {
        match self {
            Self::Process => (0, 0),
            Self::User => (95, 50),
            Self::Call => (205, 65),
            Self::Kernel => (32, 85),
        }
    }

    /// The colour of a function. The same name always has the same one.
    fn colour(self, name: &str) -> String {
        let (hue, saturation) = self.hue();
        let hash = hash(name);
        // Light enough for black text.
        format!("hsl({},{saturation}%,{}%)", hue + hash % 24, 66 + hash / 24 % 15)
    }
}

/// FNV-1a: the same for each build and machine.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The picture.
pub fn svg(folded: &Folded, caption: &Caption) -> String {
    let total = folded.total_ns();
    let nodes = nodes(folded);
    let scale = (WIDTH - 2.0 * MARGIN) / total.max(1) as f64;
    let all =
        [FunctionBox { kind: FrameKind::Process, name: "all", depth: 0, start_ns: 0, ns: total }];
    let functions = nodes.iter().map(|node| FunctionBox {
        kind: node.frame.kind,
        name: &node.frame.name,
        depth: node.depth + 1,
        start_ns: node.start_ns,
        ns: node.ns,
    });
    let is_seen = |one: &FunctionBox<'_>| one.ns as f64 * scale >= MIN_WIDTH;
    let boxes: Vec<_> = all.into_iter().chain(functions).filter(is_seen).collect();
    let rows = boxes.iter().map(|one| one.depth + 1).max().unwrap_or(0);
    let legend = FIRST_LINE + caption.about.len() as f64 * ROW;
    let bottom = legend + HEAD_GAP + rows as f64 * ROW;
    let height = bottom + FOOT;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
        viewBox=\"0 0 {WIDTH} {height}\">\n<style>{STYLE}</style>\n\
        <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let title = escaped(&caption.title);
    let _ = writeln!(text, r#"<text class="title" x="{MARGIN}" y="{TITLE}">{title}</text>"#);
    for (line, row) in caption.about.iter().zip(0u32..) {
        let (y, line) = (FIRST_LINE + f64::from(row) * ROW, escaped(line));
        let _ = writeln!(text, r#"<text class="about" x="{MARGIN}" y="{y}">{line}</text>"#);
    }
    draw_legend(&mut text, legend);
    let (right, left_of_it) = (WIDTH - MARGIN, WIDTH - MARGIN - 80.0);
    let _ = writeln!(
        text,
        "<text id=\"reset\" class=\"button\" x=\"{left_of_it}\" y=\"{TITLE}\" \
        text-anchor=\"end\" visibility=\"hidden\">show all</text>\n\
        <text id=\"search\" class=\"button\" x=\"{right}\" y=\"{TITLE}\" \
        text-anchor=\"end\">search</text>\n\
        <text id=\"found\" x=\"{right}\" y=\"{FIRST_LINE}\" text-anchor=\"end\"></text>\n\
        <g id=\"boxes\" data-left=\"{MARGIN}\" data-width=\"{}\" data-total=\"{total}\" \
        data-character=\"{CHARACTER}\">",
        WIDTH - 2.0 * MARGIN,
    );
    boxes.iter().for_each(|one| one.draw(&mut text, scale, bottom, total));
    let details = bottom + FOOT - 12.0;
    let _ = writeln!(
        text,
        "</g>\n<text id=\"details\" x=\"{MARGIN}\" y=\"{details}\"></text>\n\
        <script><![CDATA[\n{SCRIPT}]]></script>\n</svg>"
    );
    text
}

/// A function in the picture.
struct FunctionBox<'a> {
    kind: FrameKind,
    name: &'a str,
    depth: usize,
    start_ns: u64,
    ns: u64,
}

impl FunctionBox<'_> {
    /// Draws it. `bottom`: where the lowest row of boxes ends.
    fn draw(&self, text: &mut String, scale: f64, bottom: f64, total: u64) {
        let Self { kind, depth, start_ns, ns, .. } = *self;
        let (x, width) = (MARGIN + start_ns as f64 * scale, ns as f64 * scale);
        let y = bottom - (depth + 1) as f64 * ROW;
        let name = escaped(self.name);
        let (label, time) = (kind.label(), duration(ns));
        let share = escaped(&share(ns, total));
        let _ = write!(
            text,
            "<g class=\"box\" data-start=\"{start_ns}\" data-ns=\"{ns}\" data-depth=\"{depth}\">\
            <title>{name} ({label}, {time}, {share})</title>"
        );
        let (height, fill) = (ROW - 1.0, kind.colour(self.name));
        let _ = write!(
            text,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" \
            rx=\"1.5\" fill=\"{fill}\"/>"
        );
        let (x, y, shown) = (x + PADDING, y + BASELINE, fitted(&name, width));
        let _ = writeln!(text, r#"<text x="{x:.2}" y="{y:.1}">{shown}</text></g>"#);
    }
}

/// What the colours mean.
fn draw_legend(text: &mut String, y: f64) {
    const SQUARE: f64 = 11.0;
    let mut x = MARGIN;
    for kind in FrameKind::ALL {
        let (label, top, fill) = (kind.label(), y - SQUARE + 2.0, kind.colour(""));
        let after = x + SQUARE + PADDING;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{SQUARE}\" height=\"{SQUARE}\" \
            fill=\"{fill}\"/><text class=\"about\" x=\"{after:.1}\" y=\"{y}\">{label}</text>"
        );
        x = after + 2.0 * SQUARE + label.len() as f64 * CHARACTER;
    }
}

/// As much of an escaped name as fits into a box; nothing if that is not worth reading.
fn fitted(name: &str, width: f64) -> String {
    const MIN_CHARACTERS: usize = 3;
    let room = ((width - 2.0 * PADDING) / CHARACTER).max(0.0) as usize;
    let characters = unescaped_units(name);
    if characters.len() <= room {
        return name.to_owned();
    }
    if room < MIN_CHARACTERS {
        return String::new();
    }
    format!("{}…", characters[..room - 1].concat())
}

/// The characters of an escaped text; an entity is one.
fn unescaped_units(text: &str) -> Vec<&str> {
    let (mut units, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let entity = rest.find(';').filter(|_| first == '&').map(|end| end + 1);
        let (unit, after) = rest.split_at(entity.unwrap_or(first.len_utf8()));
        units.push(unit);
        rest = after;
    }
    units
}

/// A text as XML can have it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::folded::Frame;
    use super::*;

    fn example() -> Folded {
        let stack = |user: &str, kernel: &str| {
            vec![
                Frame::new(FrameKind::Process, "server"),
                Frame::new(FrameKind::User, "main"),
                Frame::new(FrameKind::User, user),
                Frame::new(FrameKind::Call, "read"),
                Frame::new(FrameKind::Kernel, kernel),
            ]
        };
        let mut folded = Folded::default();
        folded.add(stack("vector<int>::at(\"&\")", "pipe_read"), 3_000_000);
        folded.add(stack("receive", "unix_stream_read_generic"), 5_000_000);
        folded.add(stack("receive", "narrow"), 40_000);
        folded.add(stack("receive", "too narrow"), 100);
        folded
    }

    #[test]
    fn picture_is_as_before() {
        let caption = Caption {
            title: "Blocked time in calls: server <&>".into(),
            about: vec!["8.00 ms in 12 samples".into(), "LOSSES: 1".into()],
        };
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lens/fixtures/flame.svg");
        let picture = svg(&example(), &caption);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(golden, &picture).expect("the checkout is ours");
        }
        let expected = std::fs::read_to_string(golden).expect("the golden exists");
        assert_eq!(picture, expected, "UPDATE=1 writes the golden");
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(fitted("pipe_read", 200.0), "pipe_read");
        assert_eq!(fitted("a&lt;b&gt;c&lt;d", 6.0 + 4.5 * 7.224), "a&lt;b…");
        assert_eq!(fitted("pipe_read", 20.0), "");
        assert_eq!(unescaped_units("a&amp;ü&"), ["a", "&amp;", "ü", "&"]);
    }

    #[test]
    fn colours_depend_on_names_only() {
        assert_eq!(FrameKind::User.colour("main"), FrameKind::User.colour("main"));
        assert_ne!(FrameKind::User.colour("main"), FrameKind::User.colour("receive"));
    }

    #[test]
    fn picture_without_stacks_is_whole() {
        let caption = Caption { title: "nothing".into(), about: Vec::new() };
        let picture = svg(&Folded::default(), &caption);
        assert!(picture.ends_with("</svg>\n") && !picture.contains("NaN"), "{picture}");
    }
}
