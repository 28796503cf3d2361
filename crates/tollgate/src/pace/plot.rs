//! Pictures of a simulation, as SVG: one for each type and set of levels.

use std::fs;
use std::path::Path;

use ::pace::{Levels, Schedule, ScheduleRule};
use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::comparison::SimulatedSet;
use super::picture_names::{PictureNames, title};
use super::policy::{PAPER_TICK, PolicyRow};
use super::report_format::ReportedInterval;
use super::simulate_report::{SimulateReport, TypeReport};
use super::trace_file::Trace;
use super::verdict::TARGET_TOLERANCE;
use crate::format::shown_path;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 300;
const FONT: &str = "sans-serif";
/// The colours of flat, four-steps and pace: distinct for colour-blind readers, too (Okabe and Ito,
/// "Color Universal Design", 2008).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(0, 158, 115), RGBColor(213, 94, 0)];
const GREY: RGBColor = RGBColor(120, 120, 120);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the pictures to a folder, which is created. `report` has the results of the same sets.
pub fn write(
    folder: &Path,
    sets: &[SimulatedSet],
    report: &SimulateReport,
    trace: &Trace,
) -> Result<()> {
    let cannot_write = |path: &Path| format!("cannot write {}", shown_path(path));
    if folder.exists() && !folder.is_dir() {
        bail!("{} is not a folder", shown_path(folder));
    }
    fs::create_dir_all(folder).with_context(|| cannot_write(folder))?;
    let mut names = PictureNames::default();
    for (set, report) in sets.iter().zip(&report.sets) {
        let set_name = report.name.as_deref().unwrap_or("levels");
        for (kind, of_type) in report.types.iter().enumerate() {
            if of_type.judged == 0 {
                continue;
            }
            let title = title(&of_type.name, set_name);
            let picture = picture(&title, set, kind, of_type, trace)
                .map_err(|error| anyhow!("cannot draw {title}: {error}"))?;
            let path = folder.join(names.file_name(&of_type.name, set_name));
            fs::write(&path, picture)
                // Part of a picture is worse than none.
                .inspect_err(|_| drop(fs::remove_file(&path)))
                .with_context(|| cannot_write(&path))?;
        }
    }
    Ok(())
}

fn picture(
    title: &str,
    set: &SimulatedSet,
    kind: usize,
    report: &TypeReport,
    trace: &Trace,
) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    {
        let all = SVGBackend::with_string(&mut text, (WIDTH, 4 * PANEL_HEIGHT)).into_drawing_area();
        all.fill(&WHITE)?;
        let all = all.titled(title, (FONT, 18))?;
        let panels = all.split_evenly((4, 1));
        let mut cycles: Vec<_> =
            trace.tasks.iter().filter(|task| task.kind == kind).map(|task| task.cycles).collect();
        cycles.sort_by(f64::total_cmp);
        work(&panels[0], &cycles)?;
        schedules(&panels[1], set, kind, report.deadline_ms)?;
        let modelled_of_fastest = |row: &PolicyRow| row.modelled_of_fastest;
        bars(
            &panels[2],
            "Energy (modelled), % of fastest",
            &report.policies,
            modelled_of_fastest,
            &[],
        )?;
        let missed = |row: &PolicyRow| row.missed_share;
        let allowed = 1.0 - report.target;
        let lines = [allowed, allowed + TARGET_TOLERANCE].map(|share| share * 100.0);
        let title = "Missed deadlines, % (lines: the target, and the target with its tolerance)";
        bars(&panels[3], title, &report.policies, missed, &lines)?;
        all.present()?;
    }
    Ok(text)
}

/// A number at an axis.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn number(value: &f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// The share of the tasks that need more than each amount of work.
fn work(panel: &Panel, cycles: &[f64]) -> Result<(), Box<dyn std::error::Error>> {
    let count = cycles.len() as f64;
    let most = cycles.last().copied().unwrap_or(1.0) / 1e6;
    let mut chart = ChartBuilder::on(panel)
        .caption("Work: share of the tasks that need more", (FONT, 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .x_desc("million cycles")
        .y_desc("% of the tasks")
        .draw()?;
    let steps = cycles.iter().enumerate().flat_map(|(index, cycles)| {
        let share = |tasks: usize| (count - tasks as f64) / count * 100.0;
        [(cycles / 1e6, share(index)), (cycles / 1e6, share(index + 1))]
    });
    chart.draw_series(LineSeries::new([(0.0, 100.0)].into_iter().chain(steps), COLOURS[2]))?;
    Ok(())
}

/// The speeds that a task of the type would have next, over its time.
fn schedules(
    panel: &Panel,
    set: &SimulatedSet,
    kind: usize,
    deadline_ms: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let levels = &set.set.levels;
    let fastest = levels.all().last().map_or(1.0, |level| level.hz / 1e6);
    let mut chart = ChartBuilder::on(panel)
        .caption("Speed of the next task up to its deadline", (FONT, 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..deadline_ms, 0.0..fastest * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .x_desc("ms since the task began")
        .y_desc("MHz")
        .draw()?;
    // The lines become thinner, so that all are visible where they are the same.
    let rules = [
        ("flat", ScheduleRule::Flat, 8),
        ("four-steps", ScheduleRule::FourSteps(PAPER_TICK), 5),
        ("pace", ScheduleRule::Lambda, 2),
    ];
    for ((name, rule, width), colour) in rules.into_iter().zip(COLOURS) {
        let Some(schedule) = set.schedule(kind, rule, deadline_ms / 1e3) else { continue };
        let line = speeds(&schedule, levels, deadline_ms);
        chart.draw_series(LineSeries::new(line, colour.stroke_width(width)))?.label(name).legend(
            move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(width)),
        );
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(GREY)
        .draw()?;
    Ok(())
}

/// The speeds of a schedule as a line of (ms, MHz).
fn speeds(schedule: &Schedule, levels: &Levels, deadline_ms: f64) -> Vec<(f64, f64)> {
    let (mut line, mut ms) = (Vec::new(), 0.0);
    let steps = schedule.steps();
    for (index, step) in steps.iter().enumerate() {
        let hz = levels.worthwhile()[step.level].hz;
        line.push((ms, hz / 1e6));
        let takes = steps.get(index + 1).map(|next| (next.from - step.from) / hz * 1e3);
        ms = takes.map_or(deadline_ms, |takes| ms + takes).min(deadline_ms);
        line.push((ms, hz / 1e6));
    }
    line
}

/// A bar for each policy, with its interval, and lines across all of them, the first one thicker.
fn bars(
    panel: &Panel,
    title: &str,
    rows: &[PolicyRow],
    value: impl Fn(&PolicyRow) -> Option<ReportedInterval>,
    lines: &[f64],
) -> Result<(), Box<dyn std::error::Error>> {
    let values: Vec<_> = rows.iter().map(value).collect();
    let highs = values.iter().flatten().map(|limits| limits.high * 100.0);
    let most = highs.chain(lines.iter().copied()).fold(1.0, f64::max);
    let count = rows.len() as u32;
    let is_empty = values.iter().all(Option::is_none);
    let caption = if is_empty { format!("{title}: not known") } else { title.to_owned() };
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, (FONT, 16))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((0..count - 1).into_segmented(), 0.0..most * 1.05)?;
    let name = |at: &SegmentValue<u32>| match at {
        SegmentValue::CenterOf(index) => {
            rows.get(*index as usize).map_or_else(String::new, |row| row.policy.name().to_owned())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&number)
        .x_labels(rows.len())
        .x_label_formatter(&name)
        .y_desc("%")
        .draw()?;
    for (index, limits) in (0..count).zip(&values) {
        let Some(limits) = limits else { continue };
        let (from, to) = (SegmentValue::Exact(index), SegmentValue::Exact(index + 1));
        let mut bar = Rectangle::new(
            [(from, 0.0), (to, limits.estimate * 100.0)],
            COLOURS[0].mix(0.6).filled(),
        );
        bar.set_margin(0, 0, 20, 20);
        let center = SegmentValue::CenterOf(index);
        let ends = [(center.clone(), limits.low * 100.0), (center, limits.high * 100.0)];
        chart.draw_series([bar])?;
        chart.draw_series([PathElement::new(ends, BLACK.stroke_width(2))])?;
    }
    for (width, at) in [2, 1].into_iter().zip(lines) {
        let ends = [(SegmentValue::Exact(0), *at), (SegmentValue::Exact(count), *at)];
        chart.draw_series([PathElement::new(ends, COLOURS[2].stroke_width(width))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use ::pace::TraceTask;

    use super::super::comparison::{report, simulated};
    use super::super::level_set;
    use super::super::policy::PolicyName;
    use super::super::trace_file::TraceType;
    use super::*;

    #[test]
    fn each_type_with_judged_tasks_has_a_picture_for_each_set() {
        let kind = |name: &str| TraceType { name: name.into(), deadline_ms: 30.0, target: 0.9 };
        let task = |index: u32| TraceTask {
            kind: 0,
            begin: f64::from(index) * 0.04,
            cycles: 5e6 + f64::from(index % 7) * 1e6,
            deadline: 0.03,
        };
        let trace = Trace {
            types: vec![kind("a <b> & c"), kind("no task")],
            tasks: (0..40).map(task).collect(),
        };
        let trace = Arc::new(trace);
        let sets = ["rightspeed", "rk3399-a72"].map(|name| level_set::find(name).unwrap());
        let sets = simulated(sets.into(), &trace, &AtomicBool::new(false)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("new"), &sets, &report(&sets, &trace), &trace).unwrap();
        let mut files: Vec<_> = fs::read_dir(folder.path().join("new"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(
            names,
            [
                "a-b-c-Arm-Cortex-A72-of-the-Rockchip-RK3399-OP1.svg",
                "a-b-c-the-example-of-RightSpeed.svg"
            ]
        );
        for file in &files {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.contains("a &lt;b&gt; &amp; c on "), "{text}");
            assert!(text.trim_end().ends_with("</svg>") && text.contains("clairvoyant"));
        }
    }
    #[test]
    fn charts_reach_to_the_lines_and_name_what_is_not_known() {
        let row = PolicyRow {
            policy: PolicyName::Fastest,
            modelled_energy_j: 1.0,
            modelled_of_fastest: None,
            missed: 0,
            missed_share: ReportedInterval::of_share(0, 20),
            overlapped: 0,
        };
        let mut text = String::new();
        {
            let panel =
                SVGBackend::with_string(&mut text, (WIDTH, PANEL_HEIGHT)).into_drawing_area();
            let rows = [row.clone(), row];
            bars(&panel, "title", &rows, |row| row.missed_share, &[99.0]).unwrap();
            bars(&panel, "title of nothing", &rows, |row| row.modelled_of_fastest, &[]).unwrap();
        }
        let has = |expected: &str| text.lines().any(|line| line.trim() == expected);
        assert!(has("80") && has("title") && has("title of nothing: not known"), "{text}");
    }

    #[test]
    fn file_in_place_of_the_folder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let report = SimulateReport { schema: "", sets: Vec::new() };
        let error = write(file.path(), &[], &report, &Trace::default()).unwrap_err();
        assert!(error.to_string().ends_with("is not a folder"), "{error}");
    }
}
