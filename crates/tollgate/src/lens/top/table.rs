//! The tables of `lens top`.

use super::columns::columns_of;
use super::rows::TopRow;
use super::view::TopView;
use crate::fitted_table::FittedTable;
use crate::format::number_of;

/// The lines of a table.
pub struct TopLines {
    pub titles: String,
    pub rows: Vec<String>,
}

pub fn lines(view: &TopView, columns: Option<usize>) -> TopLines {
    let (title, rows) = (view.level.title(), view.rows.iter());
    let name = |row: &TopRow| row.name.clone();
    let all = columns_of(view.level).columns;
    let table = FittedTable::new(all, name, [title].into_iter(), rows.clone(), columns);
    let mut out = String::new();
    table.titles(&mut out, title);
    rows.for_each(|row| table.row(&mut out, row));
    let mut lines = out.lines().map(|line| line.trim_end().to_owned());
    TopLines { titles: lines.next().unwrap_or_default(), rows: lines.collect() }
}

/// The table as text, with at most `top` rows. `columns`: the width of the terminal, if it is
/// written to one.
pub fn text(view: &TopView, head: &str, top: usize, columns: Option<usize>) -> String {
    let lines = lines(view, columns);
    let mut shown = vec![head.to_owned(), view.path(), lines.titles];
    let all = lines.rows.len();
    shown.extend(lines.rows.into_iter().take(top));
    if all > top {
        shown.push(format!("and {}", number_of(all - top, &format!("more {}", view.level.one()))));
    }
    shown.join("\n") + "\n"
}
