//! A table that has, on a terminal, only the columns for which there is room.

use std::fmt::Write as _;

/// A column besides the first one, which has the name of the row.
pub struct TableColumn<R> {
    pub title: &'static str,
    /// Where there is no room for all columns, those with the smallest rank remain.
    pub rank: usize,
    /// The distance to the column before.
    pub gap: usize,
    pub cell: fn(&R) -> String,
}

/// The narrowest columns: a time has up to seven characters ("9.99 us").
const MIN_CELL_WIDTH: usize = 7;

/// The layout of a table.
pub struct FittedTable<R: 'static> {
    all: &'static [TableColumn<R>],
    name: fn(&R) -> String,
    name_width: usize,
    /// The columns that are shown, with their widths.
    columns: Vec<(&'static TableColumn<R>, usize)>,
}

impl<R> FittedTable<R> {
    /// A table for these rows, with the titles of its first column, which has the `name` of each
    /// row. `columns`: the width of the terminal, if it is written to one.
    pub fn new<'a>(
        all: &'static [TableColumn<R>],
        name: fn(&R) -> String,
        titles: impl Iterator<Item = &'static str>,
        rows: impl Iterator<Item = &'a R> + Clone,
        columns: Option<usize>,
    ) -> Self {
        let names = rows.clone().map(|row| name(row).chars().count());
        let name_width = names.chain(titles.map(str::len)).max().unwrap_or_default();
        let width = |column: &TableColumn<R>| {
            let cells = rows.clone().map(|row| (column.cell)(row).chars().count());
            cells.chain([column.title.len(), MIN_CELL_WIDTH]).max().unwrap_or_default()
        };
        let mut shown: Vec<_> = all.iter().map(|column| (column, width(column))).collect();
        let is_too_wide = |shown: &[(&TableColumn<R>, usize)]| {
            let widths = shown.iter().map(|(column, width)| column.gap + width);
            columns.is_some_and(|columns| name_width + widths.sum::<usize>() > columns)
        };
        // Even on a very narrow terminal, a table without its first figure would be of no use.
        while is_too_wide(&shown) && shown.len() > 1 {
            let rank = shown.iter().map(|(column, _)| column.rank).max();
            shown.retain(|(column, _)| Some(column.rank) != rank);
        }
        Self { all, name, name_width, columns: shown }
    }

    /// Appends the line of titles. `first` is the title of the names.
    pub fn titles(&self, out: &mut String, first: &str) {
        self.line(out, first, |column| column.title.to_owned());
    }

    /// Appends the line of a row.
    pub fn row(&self, out: &mut String, row: &R) {
        self.line(out, &(self.name)(row), |column| (column.cell)(row));
    }

    /// Appends a line that names the columns that have no room, if there are any.
    pub fn left_out(&self, out: &mut String) {
        let is_shown = |title| self.columns.iter().any(|(column, _)| column.title == title);
        let titles = self.all.iter().map(|column| column.title);
        let left_out: Vec<_> = titles.filter(|title| !is_shown(*title)).collect();
        if !left_out.is_empty() {
            let _ = writeln!(
                out,
                "(no room for {}; a wider terminal or a file shows all)",
                left_out.join(", ")
            );
        }
    }

    fn line(&self, out: &mut String, first: &str, cell: impl Fn(&TableColumn<R>) -> String) {
        let _ = write!(out, "{first:<0$}", self.name_width);
        for (column, width) in &self.columns {
            let _ = write!(out, "{:1$}{2:>3$}", "", column.gap, cell(column), width);
        }
        out.push('\n');
    }
}
