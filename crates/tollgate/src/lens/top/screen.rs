//! `lens top` on a terminal.

use std::time::Duration;

use anyhow::Result;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::columns::{TopColumns, columns_of};
use super::live_watch::LiveWatch;
use super::table::lines;
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

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use snapbox::{assert_data_eq, file};

    use super::super::level::TopLevel;
    use super::super::samples::sample;
    use super::*;

    /// What is on a terminal of this size.
    fn screen(view: &TopView, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a screen");
        let head = "tollgate lens  all processes  5 threads";
        terminal.draw(|frame| draw(frame, view, head)).expect("drawn");
        terminal.backend().to_string()
    }

    fn view(level: TopLevel) -> TopView {
        let mut view = TopView::new(level, true);
        view.update(&sample());
        view
    }

    // After an intended change, SNAPSHOTS=overwrite writes the new screens.

    #[test]
    fn a_terminal_of_80_columns() {
        let shown = screen(&view(TopLevel::Process), 80, 11);
        assert_data_eq!(shown, file!["../fixtures/top-80.txt"].raw());
    }

    #[test]
    fn a_terminal_of_200_columns() {
        let shown = screen(&view(TopLevel::Call), 200, 13);
        assert_data_eq!(shown, file!["../fixtures/top-200.txt"].raw());
    }

    #[test]
    fn the_selected_row_is_visible_at_every_size() {
        let mut view = view(TopLevel::Call);
        view.press(KeyCode::End, &sample());
        let last = view.rows.last().map(|row| row.name.clone()).expect("there are rows");
        for rows in 9..14 {
            let shown = screen(&view, 80, rows);
            assert!(shown.contains(&last), "{shown}");
        }
        for (columns, rows) in [(1, 1), (10, 3), (30, 6)] {
            screen(&view, columns, rows);
        }
    }

    #[test]
    fn keys_are_underlined_and_the_order_stands_out() {
        let view = view(TopLevel::Process);
        let lines = lines(&view, Some(200));
        let titles = marked(&lines.titles, &columns_of(view.level), &view);
        let of = |modifier| {
            let spans = titles.spans.iter();
            let marked = spans.filter(|span| span.style.add_modifier.contains(modifier));
            marked.map(|span| span.content.as_ref()).collect::<String>()
        };
        assert_eq!(of(Modifier::UNDERLINED), "cewobit59pmf");
        assert_eq!(of(Modifier::REVERSED), "on CPU %");
        let shown: String = titles.spans.iter().map(|span| span.content.as_ref()).collect();
        assert_eq!(shown, lines.titles);
    }
}
