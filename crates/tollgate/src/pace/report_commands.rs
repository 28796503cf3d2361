//! Commands that send requests to the daemon: `tollgate pace report` and `top`.

use std::process::ExitCode;

use anyhow::Result;
use ratatui::Frame;
use ratatui::widgets::Paragraph;
use serde::Serialize;

use super::arguments::PacingReportArguments;
use super::pacing_report::PacingReport;
use super::requests::PaceRequest;
use crate::daemon_client::request_one;
use crate::options::SocketOption;
use crate::output::{Output, needs_terminal};
use crate::tui::{LiveScreen, run_screen};

const SCHEMA: &str = "tollgate.pace.report/1";

/// `tollgate pace report --json`
#[derive(Serialize)]
struct PacingDocument {
    schema: &'static str,
    #[serde(flatten)]
    report: PacingReport,
}

pub fn report(arguments: &PacingReportArguments) -> Result<ExitCode> {
    let report: PacingReport = request_one(&arguments.socket, &PaceRequest::Report)?;
    let result = &arguments.result;
    let mut output = Output::open(result.output.as_deref(), Output::Stdout)?;
    if result.json {
        output.write_json(&PacingDocument { schema: SCHEMA, report })?;
    } else {
        let mut text = String::new();
        report.write_text(&mut text, result.top);
        output.write(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn top(socket: &SocketOption) -> Result<ExitCode> {
    needs_terminal("pace top", "pace report")?;
    let report = request_one(socket, &PaceRequest::Report)?;
    run_screen(&mut PaceScreen { socket, report })?;
    Ok(ExitCode::SUCCESS)
}

struct PaceScreen<'a> {
    socket: &'a SocketOption,
    report: PacingReport,
}

impl LiveScreen for PaceScreen<'_> {
    fn refresh(&mut self) -> Result<()> {
        self.report = request_one(self.socket, &PaceRequest::Report)?;
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let mut text = "tollgate pace        q: quit\n".to_owned();
        self.report.write_text(&mut text, usize::from(frame.area().height));
        frame.render_widget(Paragraph::new(text), frame.area());
    }
}
