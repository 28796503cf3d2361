//! What the guard goes by: pH's parameters, from the defaults, a file and the command line, in this order.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::guard::Parameters;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use kernel::{before, wire};
use serde::Deserialize;

use super::arguments::StoreOption;
use super::scope::Kind;
use super::selection::Selection;
use crate::cli::duration;

/// `run --guard=MODE`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Learn what the programs do, and test nothing: those that were normal learn again
    Learn,
    /// Also test, and tell what is unusual
    Watch,
    /// Also do something about it
    Enforce,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Learn => "learn",
            Self::Watch => "watch",
            Self::Enforce => "enforce",
        }
    }
}

/// What is done about unusual calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// Hold each call for 2^n times the delay factor, n being the anomalies among the latest 128 calls
    Delay,
    /// The same, but refuse an execve; without BPF LSM, kill it there
    Deny,
    /// Hold it until it is released, or until Tollgate ends
    Stop,
    /// Kill it
    Kill,
}

// How the guard judges and responds.
#[derive(Args, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GuardOptions {
    /// A TOML file with any of the following by their names, such as `normal-wait = "1h"`
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub guard_config: Option<PathBuf>,
    /// What enforce does about unusual calls (default: delay)
    #[arg(long, value_enum, value_name = "RESPONSE")]
    pub respond: Option<Response>,
    /// The delay that each anomaly among the latest 128 calls doubles (default: 40ms, as in pH's paper)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "time")]
    pub delay_factor: Option<Duration>,
    /// The longest delay of one call (default: 2 days, as pH suspends an execve)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "time")]
    pub delay_cap: Option<Duration>,
    /// Hold an execve whose thread has had this many anomalies among 128 calls at any time; 0: none (default: 0)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=128))]
    pub suspend_execve: Option<u32>,
    /// For how long (default: 2 days)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "time")]
    pub suspend_execve_time: Option<Duration>,
    /// From freezing until a baseline is normal (default: 7 days)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "time")]
    pub normal_wait: Option<Duration>,
    /// A baseline freezes when its calls are more than this many times those until the last new one (default: 4)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub normal_ratio: Option<u32>,
    /// More anomalies than this one by one, and the program has changed: it learns again (default: 30)
    #[arg(long, value_name = "N")]
    pub anomaly_limit: Option<u32>,
    /// More of them among 128 calls, and it is an attack: nothing of it is learned (default: 12)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub tolerize_limit: Option<u16>,
    /// Processes that may be held at the same time; what else would be held is only told of (default: 64)
    #[arg(long, value_name = "N")]
    pub held_most: Option<u32>,
    /// Stop each process whose program learns for a moment, about so often, in any mode: what it, its parent and its
    /// other threads do about a hold is usual then (default: never)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "time")]
    pub rehearse: Option<Duration>,
    /// Calls that the pairs look at (default: 9)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub lookahead: Option<u8>,
    /// Calls in a sequence (default: 6)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=8))]
    pub sequence: Option<u8>,
    /// What a program has baselines for, each by itself (default: its content alone, wherever it runs)
    #[arg(long, value_enum, value_name = "KIND")]
    pub scope: Option<Kind>,
}

fn time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    duration(&text).map(Some).map_err(serde::de::Error::custom)
}

// What `tollgate run` is asked to guard, and how.
#[derive(Args)]
pub struct GuardArguments {
    /// Guard the command's programs by what they normally do: learn it, tell what is unusual, or respond to it
    #[arg(long = "guard", value_enum, value_name = "MODE", require_equals = true)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub options: GuardOptions,
    #[command(flatten)]
    pub store: StoreOption,
}

/// All settled.
pub struct Policy {
    pub selection: Selection,
    pub mode: Mode,
    pub wire: wire::guard_parameters,
    pub scope: Option<Kind>,
    pub normal_wait: Duration,
    pub rehearse: Option<Duration>,
    pub store: PathBuf,
    /// Who is held for long is told of at once: the events come at the end only.
    pub tells_of_holds: bool,
}

impl Policy {
    /// Whether anybody may ever be stopped.
    pub fn holds(&self) -> bool {
        self.wire.response != wire::GUARD_OBSERVE || self.rehearse.is_some()
    }

    /// What it needs in the gate: bits of [`wire::gate_mask`].
    pub fn needs(&self) -> u32 {
        let scoped = if self.scope.is_some() { wire::GUARD_SCOPED } else { 0 };
        wire::GUARD | self.holds_before() | scoped
    }

    /// For holds, or refusals, that come before calls take effect.
    fn holds_before(&self) -> u32 {
        match self.wire.response {
            wire::GUARD_OBSERVE | wire::GUARD_KILL => 0,
            _ => before::possible(),
        }
    }
}

/// Our choice: an attack seldom has as many processes, and a machine on which so many programs have changed at once
/// was upgraded.
const HELD_MOST: u32 = 64;

/// pH's source has no delays by default; the paper's experiments have four ticks of 10 ms.
const DELAY_FACTOR: Duration = Duration::from_millis(40);

/// It has a line for each option.
const LONGEST_FILE: u64 = 1 << 20;

fn read(path: &Path) -> Result<GuardOptions> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST_FILE).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 == LONGEST_FILE {
        bail!("{} is not a guard configuration: it is too long", path.display());
    }
    toml::from_str(&text).with_context(|| format!("{} is not a guard configuration", path.display()))
}

/// The published parameters, and no response.
pub fn watching() -> wire::guard_parameters {
    let default = Parameters::default();
    wire::guard_parameters {
        lookahead: ::guard::Kind::Lookahead.usual_length() as u8,
        sequence: ::guard::Kind::Sequence.usual_length() as u8,
        tolerize_limit: default.tolerize_limit as u16,
        anomaly_limit: default.anomaly_limit as u32,
        normal_factor: (default.normal_factor.0 / default.normal_factor.1) as u32,
        normal_factor_den: 1,
        response: wire::GUARD_OBSERVE,
        scope: wire::GUARD_CONTENT,
        delay_factor_ns: ns(DELAY_FACTOR),
        delay_cap_ns: ns(default.delay_cap),
        held_most: HELD_MOST,
        spared_sid: wire::GUARD_NO_SID,
        // pH's source suspends none.
        suspend_execve: 0,
        suspend_execve_ns: ns(default.delay_cap),
        unused: 0,
    }
}

impl GuardArguments {
    pub fn policy(&self) -> Result<Option<Policy>> {
        let Some(mode) = self.mode else {
            if self.options.is_given() {
                bail!("the guard's options need --guard=learn, --guard=watch or --guard=enforce");
            }
            return Ok(None);
        };
        self.options.policy(mode, &self.store.folder).map(Some)
    }
}

impl GuardOptions {
    pub fn policy(&self, mode: Mode, store: &Path) -> Result<Policy> {
        let file = self.guard_config.as_deref().map(read).transpose()?.unwrap_or_default();
        let own = self;
        if own.respond.is_some() && mode != Mode::Enforce {
            bail!("--respond needs --guard=enforce: --guard={} responds to nothing", mode.name());
        }
        let default = watching();
        let response = match mode {
            Mode::Learn | Mode::Watch => wire::GUARD_OBSERVE,
            Mode::Enforce => match own.respond.or(file.respond).unwrap_or(Response::Delay) {
                Response::Delay => wire::GUARD_DELAY,
                Response::Deny => wire::GUARD_DENY,
                Response::Stop => wire::GUARD_STOP,
                Response::Kill => wire::GUARD_KILL,
            },
        };
        let scope = own.scope.or(file.scope);
        let tolerize_limit = match mode {
            // Only plugins denounce anything then, and that is no reason to forget what was learned.
            Mode::Learn => wire::GUARD_FRAME as u16,
            Mode::Watch | Mode::Enforce => default.tolerize_limit,
        };
        let wire = wire::guard_parameters {
            lookahead: own.lookahead.or(file.lookahead).unwrap_or(default.lookahead),
            sequence: own.sequence.or(file.sequence).unwrap_or(default.sequence),
            tolerize_limit: own.tolerize_limit.or(file.tolerize_limit).unwrap_or(tolerize_limit),
            anomaly_limit: own.anomaly_limit.or(file.anomaly_limit).unwrap_or(default.anomaly_limit),
            normal_factor: own.normal_ratio.or(file.normal_ratio).unwrap_or(default.normal_factor),
            response,
            scope: scope.map_or(wire::GUARD_CONTENT, Kind::wire),
            delay_factor_ns: own.delay_factor.or(file.delay_factor).map_or(default.delay_factor_ns, ns),
            delay_cap_ns: own.delay_cap.or(file.delay_cap).map_or(default.delay_cap_ns, ns),
            held_most: own.held_most.or(file.held_most).unwrap_or(default.held_most),
            suspend_execve: own.suspend_execve.or(file.suspend_execve).unwrap_or(default.suspend_execve),
            suspend_execve_ns: own
                .suspend_execve_time
                .or(file.suspend_execve_time)
                .map_or(default.suspend_execve_ns, ns),
            ..default
        };
        let rehearse = own.rehearse.or(file.rehearse);
        check(&wire)?;
        check_times(&wire, rehearse)?;
        Ok(Policy {
            selection: Selection::default(),
            mode,
            wire,
            scope,
            normal_wait: own.normal_wait.or(file.normal_wait).unwrap_or(Parameters::default().normal_wait),
            rehearse,
            store: store.to_owned(),
            tells_of_holds: true,
        })
    }
}

/// Where nothing would ever be held, that is to be said in another way.
fn check_times(wire: &wire::guard_parameters, rehearse: Option<Duration>) -> Result<()> {
    for (name, value) in [
        ("delay-factor", wire.delay_factor_ns),
        ("delay-cap", wire.delay_cap_ns),
        ("suspend-execve-time", wire.suspend_execve_ns),
        ("held-most", wire.held_most.into()),
    ] {
        if value == 0 {
            bail!("{name} is 0, so nobody would be held: --guard=watch only tells what is unusual");
        }
    }
    if rehearse.is_some_and(|every| every.is_zero()) {
        bail!("rehearse is 0: leave it out, and nobody is stopped while programs learn");
    }
    Ok(())
}

/// The command line's values are checked as they are read; a file's are not.
fn check(wire: &wire::guard_parameters) -> Result<()> {
    if !(2..=wire::GUARD_LOOKAHEAD_MAX as u8).contains(&wire.lookahead) {
        bail!(
            "lookahead is {}, but the pairs look at 2 to {} calls",
            wire.lookahead,
            wire::GUARD_LOOKAHEAD_MAX
        );
    }
    if !(2..=wire::GUARD_SEQUENCE_MAX as u8).contains(&wire.sequence) {
        bail!("sequence is {}, but a sequence has 2 to {} calls", wire.sequence, wire::GUARD_SEQUENCE_MAX);
    }
    if wire.normal_factor == 0
        || wire.tolerize_limit == 0
        || u32::from(wire.tolerize_limit) > wire::GUARD_FRAME
    {
        bail!("normal-ratio is at least 1, and tolerize-limit is 1 to {}", wire::GUARD_FRAME);
    }
    if wire.suspend_execve > wire::GUARD_FRAME {
        bail!("suspend-execve is 0, for none, to {}", wire::GUARD_FRAME);
    }
    Ok(())
}

/// The kernel adds it to its clock.
const LONGEST_NS: u64 = u64::MAX / 2;

fn ns(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(LONGEST_NS).min(LONGEST_NS)
}

impl GuardOptions {
    fn is_given(&self) -> bool {
        self.guard_config.is_some()
            || self.respond.is_some()
            || [self.delay_factor, self.delay_cap, self.suspend_execve_time, self.normal_wait, self.rehearse]
                .iter()
                .any(Option::is_some)
            || [self.normal_ratio, self.anomaly_limit, self.held_most, self.suspend_execve]
                .iter()
                .any(Option::is_some)
            || self.tolerize_limit.is_some()
            || [self.lookahead, self.sequence].iter().any(Option::is_some)
            || self.scope.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn policy(options: GuardOptions) -> Result<Policy> {
        let store = StoreOption { folder: "store".into() };
        let arguments = GuardArguments { mode: Some(Mode::Enforce), options, store };
        arguments.policy().map(|policy| policy.expect("a mode is given"))
    }

    #[test]
    fn defaults_are_those_published() {
        let policy = policy(GuardOptions::default()).expect("defaults");
        let wire = policy.wire;
        assert_eq!((wire.lookahead, wire.sequence, wire.tolerize_limit, wire.anomaly_limit), (9, 6, 12, 30));
        assert_eq!((wire.normal_factor, wire.normal_factor_den), (4, 1));
        assert_eq!((wire.response, wire.delay_factor_ns), (wire::GUARD_DELAY, 40_000_000));
        assert_eq!(
            (policy.normal_wait, wire.delay_cap_ns),
            (Duration::from_secs(604_800), 172_800_000_000_000)
        );
    }

    #[test]
    fn what_is_as_good_as_for_ever_does_not_pass_at_once() {
        let ages = Some(Duration::from_secs(u64::MAX));
        let options = GuardOptions { delay_factor: ages, delay_cap: ages, ..GuardOptions::default() };
        let wire = policy(options).expect("a long time").wire;
        let now = kernel::clock::now_ns();
        assert!(now.checked_add(wire.delay_cap_ns).is_some_and(|until| until < u64::MAX));
        assert_eq!(wire.delay_factor_ns, wire.delay_cap_ns);
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("guard.toml");
        let text = "normal-wait = \"1h\"\nlookahead = 5\nrespond = \"stop\"\nscope = \"unit\"\n";
        fs::write(&file, text).expect("a file");
        let options =
            GuardOptions { guard_config: Some(file.clone()), lookahead: Some(7), ..GuardOptions::default() };
        let policy_of_both = policy(options).expect("it is right");
        assert_eq!((policy_of_both.wire.lookahead, policy_of_both.wire.response), (7, wire::GUARD_STOP));
        assert_eq!(policy_of_both.normal_wait, Duration::from_secs(3600));
        assert_eq!((policy_of_both.scope, policy_of_both.wire.scope), (Some(Kind::Unit), wire::GUARD_UNIT));
        for (text, words) in [
            ("normal_wait = \"1h\"", "unknown field"),
            ("normal-wait = \"soon\"", "time"),
            ("lookahead = 10", "2 to 9"),
            ("tolerize-limit = 0", "1 to 128"),
            ("suspend-execve = 129", "to 128"),
            ("delay-factor = \"0s\"", "nobody would be held"),
            ("held-most = 0", "nobody would be held"),
            ("rehearse = \"0ms\"", "rehearse is 0"),
            ("\nrespond = delay", "line 2, column 11"),
            ("anomaly-limit = 4294967296", "line 1, column 17"),
            ("normal-wait = \"1e30h\"", "column 15"),
            ("normal-wait = \"99999999999999999999h\"", "is too long"),
            ("delay-cap = \"-1s\"", "column 13"),
            ("[guard", "line 1"),
            ("\u{0}", "line 1, column 2"),
            (&"#".repeat(1 << 20), "too long"),
        ] {
            fs::write(&file, text).expect("a file");
            let options = GuardOptions { guard_config: Some(file.clone()), ..GuardOptions::default() };
            let Err(error) = policy(options) else { panic!("{text:.50} was taken") };
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
