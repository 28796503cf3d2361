//! The limits of one service.

use anyhow::{Context as _, Result, bail};
use service::{Errno, Limits, OverLimit};

use super::super::registry::ServiceRegistry;
use super::super::requests::{LimitChange, LimitSetting};

/// The limits of one service, with services by their numbers on the kernel side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnLimits {
    pub limits: Limits,
    /// The service that a thread works for when it would exceed the limit of sockets or
    /// connections.
    pub works_for: Option<u16>,
}

impl OwnLimits {
    /// Applies a change that a user requested.
    pub fn change(&mut self, change: &LimitChange, registry: &ServiceRegistry) -> Result<()> {
        fn set<T>(value: &mut Option<T>, setting: Option<LimitSetting>) -> Result<()>
        where
            T: TryFrom<u64>,
            T::Error: std::error::Error + Send + Sync + 'static,
        {
            match setting {
                Some(LimitSetting::To(wanted)) => *value = Some(wanted.try_into()?),
                Some(LimitSetting::None) => *value = None,
                None => {}
            }
            Ok(())
        }
        let limits = &mut self.limits;
        set(&mut limits.cpu_weight, change.cpu_weight)?;
        set(&mut limits.cpu_max, change.cpu_max)?;
        set(&mut limits.memory_max, change.memory_max)?;
        set(&mut limits.tasks_max, change.tasks_max)?;
        set(&mut limits.sockets_max, change.sockets_max)?;
        set(&mut limits.connections_max, change.connections_max)?;
        set(&mut limits.network_max, change.network_max)?;
        if let Some(over_limit) = &change.over_limit {
            match Errno::parse(over_limit) {
                Some(errno) => {
                    (limits.over_limit, self.works_for) = (OverLimit::Fails(errno), None)
                }
                None if over_limit == "none" => {
                    (limits.over_limit, self.works_for) = (OverLimit::default(), None)
                }
                None => {
                    let errnos = || {
                        let all = Errno::names().collect::<Vec<_>>().join(", ");
                        format!("{over_limit:?} is neither a service nor one of {all}")
                    };
                    let other = registry.find(over_limit).with_context(errnos)?;
                    if registry
                        .ancestors(other)
                        .any(|above| registry.get(above).name == change.service)
                    {
                        bail!(
                            "over-limit-service of {} must be neither that service nor one below \
                            it",
                            change.service
                        );
                    }
                    self.works_for = Some(other);
                }
            }
        }
        Ok(())
    }
}
