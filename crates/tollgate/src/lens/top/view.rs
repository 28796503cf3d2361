//! What a user of `lens top` looks at: the level, what was chosen, the order and the selected row.

use kernel::symbols::KernelSymbols;
use ratatui::crossterm::event::KeyCode;

use super::columns::{NAME_KEY, columns_of};
use super::level::TopLevel;
use super::live_lens::Sample;
use super::rows::{Chosen, RowKey, TopRow, rows};

/// How many rows the keys for a page move.
const PAGE: usize = 10;

pub struct TopView {
    levels: Vec<TopLevel>,
    pub level: TopLevel,
    pub chosen: Chosen,
    /// Where the user came from.
    before: Vec<(TopLevel, Chosen, Option<RowKey>)>,
    /// The key of the column by which the rows are sorted.
    sort: char,
    is_reversed: bool,
    pub rows: Vec<TopRow>,
    selected: Option<RowKey>,
}

impl TopView {
    /// Files are counted only if the first level is that of files.
    pub fn new(level: TopLevel, has_threads: bool) -> Self {
        use TopLevel::{Call, File, Process, Program, Site, Thread};
        let mut levels = vec![Program, Process, Thread, Call, Site, File];
        levels.retain(|one| match one {
            Thread => has_threads,
            File => level == File,
            _ => true,
        });
        Self {
            level: if levels.contains(&level) { level } else { Process },
            levels,
            chosen: Chosen::default(),
            before: Vec::new(),
            sort: 'o',
            is_reversed: false,
            rows: Vec::new(),
            selected: None,
        }
    }

    /// Makes the rows anew.
    pub fn update(&mut self, sample: &Sample) {
        let at = self.selected();
        self.rows = rows(sample, self.level, &self.chosen, KernelSymbols::get());
        self.arrange(at);
    }

    /// Sorts the rows. The same row stays selected or, if it has gone, the one at this position.
    fn arrange(&mut self, at: Option<usize>) {
        let key = self.sort();
        let value = columns_of(self.level).value(key);
        self.rows.sort_by(|a, b| {
            let by_value = match value {
                Some(value) => value(b).total_cmp(&value(a)),
                None => a.name.cmp(&b.name),
            };
            let by_value = if self.is_reversed { by_value.reverse() } else { by_value };
            by_value.then_with(|| a.key.cmp(&b.key))
        });
        if self.selected().is_none() {
            let at = at.unwrap_or(0).min(self.rows.len().saturating_sub(1));
            self.selected = self.rows.get(at).map(|row| row.key.clone());
        }
    }

    /// The key of the column by which the rows are sorted.
    pub fn sort(&self) -> char {
        let columns = columns_of(self.level);
        let has_it = self.sort == NAME_KEY || columns.value(self.sort).is_some();
        if has_it { self.sort } else { columns.default_sort }
    }

    /// The position of the selected row.
    pub fn selected(&self) -> Option<usize> {
        let key = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.key == *key)
    }

    /// The second line: what was chosen, what the rows are, and their order.
    pub fn path(&self) -> String {
        let names = self.chosen.keys.iter().map(|(_, name)| name.as_str());
        let names: Vec<_> = names.chain([self.level.plural()]).collect();
        let order = columns_of(self.level).title(self.sort());
        let reversed = if self.is_reversed { ", the smallest first" } else { "" };
        format!("{}  by {order}{reversed}", names.join(" > "))
    }

    /// Carries out what a key means, and returns whether it means anything here.
    pub fn press(&mut self, key: KeyCode, sample: &Sample) -> bool {
        match key {
            KeyCode::Up => self.step(|at| at.saturating_sub(1)),
            KeyCode::Down => self.step(|at| at + 1),
            KeyCode::PageUp => self.step(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.step(|at| at + PAGE),
            KeyCode::Home => self.step(|_| 0),
            KeyCode::End => self.step(|_| usize::MAX),
            KeyCode::Enter | KeyCode::Right => self.enter(sample),
            KeyCode::Esc if self.before.is_empty() => return false,
            KeyCode::Backspace | KeyCode::Left | KeyCode::Esc => self.back(sample),
            KeyCode::Tab => self.change_level(1, sample),
            KeyCode::BackTab => self.change_level(self.levels.len() - 1, sample),
            KeyCode::Char('<') => self.sort_by_neighbour(false),
            KeyCode::Char('>') => self.sort_by_neighbour(true),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(key) if columns_of(self.level).keys().contains(&key) => self.sort = key,
            _ => return false,
        }
        self.arrange(None);
        true
    }

    fn step(&mut self, to: impl Fn(usize) -> usize) {
        if let Some(last) = self.rows.len().checked_sub(1) {
            let at = to(self.selected().unwrap_or(0)).min(last);
            self.selected = Some(self.rows[at].key.clone());
        }
    }

    /// Shows what the selected row consists of.
    fn enter(&mut self, sample: &Sample) {
        let next = self.levels.iter().copied().find(|level| *level > self.level);
        let (Some(at), Some(next)) = (self.selected(), next) else { return };
        if !self.level.has_parts() {
            return;
        }
        let row = &self.rows[at];
        let choice = (row.key.clone(), row.name.clone());
        self.before.push((self.level, self.chosen.clone(), self.selected.take()));
        self.chosen.keys.push(choice);
        self.level = next;
        self.update(sample);
    }

    fn back(&mut self, sample: &Sample) {
        if let Some(before) = self.before.pop() {
            (self.level, self.chosen, self.selected) = before;
            self.update(sample);
        }
    }

    fn change_level(&mut self, by: usize, sample: &Sample) {
        let at = self.levels.iter().position(|level| *level == self.level).unwrap_or(0);
        self.level = self.levels[(at + by) % self.levels.len()];
        self.selected = None;
        self.update(sample);
    }

    fn sort_by_neighbour(&mut self, is_next: bool) {
        let keys = columns_of(self.level).keys();
        let at = keys.iter().position(|key| *key == self.sort()).unwrap_or(0);
        let step = if is_next { 1 } else { keys.len() - 1 };
        self.sort = keys[(at + step) % keys.len()];
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::sample;
    use super::*;

    fn press(view: &mut TopView, keys: &[KeyCode]) {
        for key in keys {
            assert!(view.press(*key, &sample()), "{key:?} means nothing");
        }
    }

    fn names(view: &TopView) -> Vec<&str> {
        view.rows.iter().map(|row| row.name.as_str()).collect()
    }

    fn view(level: TopLevel) -> TopView {
        let mut view = TopView::new(level, true);
        view.update(&sample());
        view
    }

    #[test]
    fn a_row_leads_to_what_it_consists_of_and_back() {
        let mut view = view(TopLevel::Program);
        assert_eq!(names(&view), ["cache\\x1b[2J", "nginx"]);
        press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!(names(&view), ["nginx (100)", "nginx (110)"]);
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!(names(&view), ["worker 101 (101)", "nginx (100)"]);
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!(names(&view), ["read", "epoll_wait"]);
        press(&mut view, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!(names(&view), ["(still asleep)"]);
        let path = "nginx > nginx (100) > worker 101 (101) > epoll_wait > blocking sites  by \
                    blocked %";
        assert_eq!(view.path(), path);
        // There is nothing below a site.
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!(view.path(), path);
        press(&mut view, &[KeyCode::Backspace, KeyCode::Left, KeyCode::Esc]);
        assert_eq!((view.level, view.selected()), (TopLevel::Process, Some(0)));
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!((view.level, view.selected()), (TopLevel::Program, Some(1)));
        // From here, Esc ends the view.
        assert!(!view.press(KeyCode::Esc, &sample()) && !view.press(KeyCode::Char('q'), &sample()));
    }

    #[test]
    fn rows_are_sorted_by_every_column() {
        let mut view = view(TopLevel::Call);
        for (key, first) in [
            ('c', "read"),
            ('e', "read"),
            ('w', "epoll_wait"),
            ('o', "read"),
            ('b', "epoll_wait"),
            ('i', "epoll_wait"),
            ('m', "epoll_wait"),
            ('n', "epoll_wait"),
        ] {
            press(&mut view, &[KeyCode::Char(key)]);
            assert_eq!(names(&view)[0], first, "{key}");
            press(&mut view, &[KeyCode::Char('r')]);
            let last = names(&view).last().copied();
            assert!(last == Some(first) || "ei".contains(key), "{key}: {last:?}");
            press(&mut view, &[KeyCode::Char('r')]);
        }
        press(&mut view, &[KeyCode::Char('>')]);
        assert_eq!(view.sort(), 'c');
        press(&mut view, &[KeyCode::Char('<'), KeyCode::Char('<')]);
        assert_eq!(view.sort(), 'f');
    }

    #[test]
    fn the_same_row_stays_selected() {
        let mut view = view(TopLevel::Process);
        press(&mut view, &[KeyCode::Char('c'), KeyCode::Home]);
        let selected = |view: &TopView| view.rows[view.selected().expect("one")].name.clone();
        let before = selected(&view);
        press(&mut view, &[KeyCode::Char('r')]);
        assert_eq!(selected(&view), before);
        // It has gone: the one at its position is selected.
        let at = view.selected();
        let mut rest = sample();
        rest.rows.retain(|row| row.name.tgid != 200);
        view.update(&rest);
        assert_eq!(view.selected(), at.map(|at| at.min(view.rows.len() - 1)));
        view.update(&Sample::default());
        assert_eq!((view.rows.len(), view.selected()), (0, None));
        press(&mut view, &[KeyCode::Down, KeyCode::Enter, KeyCode::End]);
    }

    #[test]
    fn every_level_shows_what_was_chosen() {
        let mut view = view(TopLevel::Call);
        // Which threads make the call?
        press(&mut view, &[KeyCode::Char('n'), KeyCode::End, KeyCode::Enter]);
        assert_eq!(view.chosen.keys[0].1, "write");
        press(&mut view, &[KeyCode::BackTab, KeyCode::BackTab]);
        assert_eq!((view.level, names(&view)), (TopLevel::Thread, vec!["nginx (110)"]));
        press(&mut view, &[KeyCode::Tab, KeyCode::Tab, KeyCode::Tab]);
        assert_eq!((view.level, names(&view)), (TopLevel::Program, vec!["nginx"]));
    }

    #[test]
    fn files_are_those_of_what_was_chosen() {
        let mut view = view(TopLevel::File);
        assert_eq!(names(&view), ["/srv/index.html", "/var/log/access.log"]);
        assert_eq!((view.rows[0].calls, view.rows[0].read_bytes), (10_000.0, 2_048.0));
        // There is nothing below a file.
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!(view.path(), "files  by wall %");
        press(&mut view, &[KeyCode::BackTab, KeyCode::BackTab, KeyCode::Char('n'), KeyCode::End]);
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!((view.level, view.chosen.keys[0].1.as_str()), (TopLevel::Site, "write"));
        press(&mut view, &[KeyCode::Tab]);
        assert_eq!(names(&view), ["/var/log/access.log"]);
        assert_eq!((view.rows[0].calls, view.rows[0].written_bytes), (50.0, 0.0));
    }

    #[test]
    fn without_rows_of_threads_there_is_no_such_level() {
        let mut view = TopView::new(TopLevel::Thread, false);
        view.update(&sample());
        assert_eq!(view.level, TopLevel::Process);
        press(&mut view, &[KeyCode::Enter]);
        assert_eq!(view.level, TopLevel::Call);
    }

    #[test]
    fn values_are_per_second_and_add_up() {
        let view = view(TopLevel::Process);
        let nginx = view.rows.iter().find(|row| row.name == "nginx (100)").expect("a row");
        assert_eq!((nginx.calls, nginx.errors), (10_004.0, 1_000.0));
        assert_eq!(nginx.in_waits_ns, 1.745e9);
        assert_eq!(nginx.wall_ns, nginx.cpu_ns + nginx.blocked_ns + nginx.runqueue_ns);
        assert_eq!(nginx.blocked_in, "(still asleep)");
    }
}
