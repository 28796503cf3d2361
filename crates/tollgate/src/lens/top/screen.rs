//! `lens top` on a terminal.

use std::time::Duration;

use anyhow::Result;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::LiveWatch;
use super::table::{TopColumns, columns_of, lines};
use super::view::TopView;
use crate::session_runner::TEND_INTERVAL;
use crate::tui::{LiveScreen, draw_table};

const KEYS: [&str; 2] = [
    "Up, Down: select  Enter: look into it  Backspace: back  Tab: other rows  q: quit",
    "underlined letter: sort by this column  < >: by the next one  r: reverse",
];

pub struct LensScreen<'a, 'watch> {
    live: &'a mut LiveWatch<'watch>,
    view: TopView,
    interval: Duration,
}

impl<'a, 'watch> LensScreen<'a, 'watch> {
    pub fn new(live: &'a mut LiveWatch<'watch>, view: TopView, interval: Duration) -> Self {
        Self { live, view, interval }
    }
}

impl LiveScreen for LensScreen<'_, '_> {
    fn refresh(&mut self) -> Result<()> {
        self.live.refresh()?;
        self.view.update(&self.live.sample.borrow());
        Ok(())
    }

    fn interval(&self) -> Duration {
        self.interval
    }

    fn tend(&mut self) -> Result<()> {
        self.live.watch.tend()
    }

    fn longest_wait(&self) -> Duration {
        TEND_INTERVAL
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw(frame, &self.view, &self.live.head());
    }

    fn press(&mut self, key: KeyCode) -> bool {
        self.view.press(key, &self.live.sample.borrow())
    }
}

fn draw(frame: &mut Frame<'_>, view: &TopView, first: &str) {
    let [head, body, keys] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(2)])
            .areas(frame.area());
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let head_lines = vec![Line::styled(first, strong), Line::raw(view.path())];
    frame.render_widget(Paragraph::new(head_lines), head);
    let lines = lines(view, Some(usize::from(body.width)));
    let titles = marked(&lines.titles, &columns_of(view.level), view);
    draw_table(frame, body, titles, &lines.rows, view.selected(), view.level.one());
    frame.render_widget(Paragraph::new(KEYS.map(Line::raw).to_vec()), keys);
}

/// The line of titles: the key of each column is underlined, and the title by which the rows are
/// sorted stands out.
fn marked<'a>(titles: &'a str, columns: &TopColumns, view: &TopView) -> Line<'a> {
    let strong = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = Vec::new();
    let mut at = 0;
    for key in columns.keys().into_iter().skip(1) {
        let title = columns.title(key);
        // A column for which there is no room has no title in the line.
        let Some(begin) = titles[at..].find(title).map(|found| at + found) else { continue };
        let letter = begin + title.find(key).unwrap_or(0);
        let end = begin + title.len();
        let style = match view.sort() == key {
            true => strong.add_modifier(Modifier::REVERSED),
            false => strong,
        };
        spans.push(Span::styled(&titles[at..begin], strong));
        spans.push(Span::styled(&titles[begin..letter], style));
        let underlined = style.add_modifier(Modifier::UNDERLINED);
        spans.push(Span::styled(&titles[letter..=letter], underlined));
        spans.push(Span::styled(&titles[letter + 1..end], style));
        at = end;
    }
    spans.push(Span::styled(&titles[at..], strong));
    Line::from(spans)
}
