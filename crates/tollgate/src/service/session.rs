//! Services as an extension of a session.

use std::path::PathBuf;

use anyhow::Result;
use control::Response;
use kernel::session::SessionOptions;

use super::extension::{Services, mask};
use super::metrics::service_metrics;
use super::requests::REQUEST_KEY;
use super::rule_file::{KIND, parsed};
use crate::extension::{Extension, ExtensionSetup, Losses, Request, SessionContext};
use crate::output::log_message;
use crate::source_file::SourceFile;

/// Services and rules of a file.
pub struct ServiceSetup {
    path: PathBuf,
    source: SourceFile,
    mask: u32,
}

impl ServiceSetup {
    /// Reads and checks the file.
    pub fn read(path: PathBuf) -> Result<Self> {
        let source = SourceFile::read(&path, KIND)?;
        let mask = mask(&parsed(&source)?);
        Ok(Self { path, source, mask })
    }
}

impl ExtensionSetup for ServiceSetup {
    fn configure(&self, options: &mut SessionOptions) {
        options.mask |= self.mask;
    }

    fn start(self: Box<Self>, context: &mut SessionContext<'_>) -> Result<Box<dyn Extension>> {
        let services = Services::start(context.gate, context.session, self.path, &self.source)?;
        Ok(Box::new(ServicesInSession { services, balance_failure_logged: false }))
    }
}

struct ServicesInSession {
    services: Services,
    /// A failure is logged only once.
    balance_failure_logged: bool,
}

impl Extension for ServicesInSession {
    fn summary(&self, _processes: Option<usize>) -> Option<String> {
        Some(format!("{}; `tollgate service report` shows their use", self.services.summary()))
    }

    fn tend(&mut self, context: &mut SessionContext<'_>) -> Result<()> {
        if let Err(error) = self.services.balance(context.gate)
            && !std::mem::replace(&mut self.balance_failure_logged, true)
        {
            log_message(&format!(
                "services may get less than their shares of processor time: {error:#}"
            ));
        }
        Ok(())
    }

    fn refresh(&mut self, _context: &mut SessionContext<'_>) -> Result<()> {
        self.services.tend()
    }

    fn request_key(&self) -> Option<&'static str> {
        Some(REQUEST_KEY)
    }

    fn reply(&mut self, context: &mut SessionContext<'_>, request: Request) -> Result<Response> {
        let process = request.process;
        let (request, losses) = request.parse()?;
        Ok(Response::Value(self.services.reply(context.gate, process, request, losses)?))
    }

    fn metrics(
        &mut self,
        context: &mut SessionContext<'_>,
        losses: &Losses,
        page: &mut String,
    ) -> Result<()> {
        service_metrics(page, &self.services.report(context.gate, losses.clone())?);
        Ok(())
    }
}
