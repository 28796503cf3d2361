//! The policy of a guard: pH's parameters, from the defaults, a file and the command line, in this
//! order.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::guard::{AnomalyLimit, Parameters};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use kernel::{precall, wire};
use serde::Deserialize;

use super::arguments::StoreOption;
use super::filter::ProgramFilter;
use super::scopes::ScopeKind;
use crate::format::shown_path;
use crate::options::duration;

/// `run --guard=MODE`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Learn what the programs do and test nothing; normal baselines return to training
    Learn,
    /// Also test each call, and report anomalies
    Watch,
    /// Also respond to anomalies, as --respond says
    Enforce,
}

impl Mode {
    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Learn => "learn",
            Self::Watch => "watch",
            Self::Enforce => "enforce",
        }
    }
}

/// What the guard does about an anomalous call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardResponse {
    /// While there are anomalies among the thread's latest 128 calls, hold each call for 2^n times
    /// the delay factor, where n is the number of these anomalies
    Delay,
    /// As delay, but an execve that would be held fails with EPERM; without BPF LSM, the process
    /// that calls it is killed
    Deny,
    /// Hold the process until it is released or Tollgate ends
    Stop,
    /// Kill the process
    Kill,
}

/// What the guard does about the anomalies of further processes when it holds as many as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverMaxHeld {
    /// Only report them
    Observe,
    /// Kill the process
    Kill,
}

// How the guard tests calls and responds.
#[derive(Args, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GuardOptions {
    /// Read any of the options below from this TOML file, under the same names: `normal-wait =
    /// "1h"`
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub guard_config: Option<PathBuf>,
    /// How enforce responds to anomalies (default: delay)
    #[arg(long, value_enum, value_name = "RESPONSE")]
    pub respond: Option<GuardResponse>,
    /// The base delay of the responses delay and deny; each anomaly among the thread's latest 128
    /// calls doubles it (default: 40ms, as in the pH paper)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "deserialize_duration")]
    pub delay_factor: Option<Duration>,
    /// The longest delay of one call, with delay and deny (default: 2 days, the time for which pH
    /// suspends an execve)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "deserialize_duration")]
    pub delay_cap: Option<Duration>,
    /// With enforce, hold an execve if, at any time since the thread's previous execve, at least
    /// this many of its latest 128 calls were anomalies; 0 holds none (default: 0)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=128))]
    pub suspend_execve: Option<u32>,
    /// How long --suspend-execve holds an execve, with the response delay (default: 2 days)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "deserialize_duration")]
    pub suspend_execve_time: Option<Duration>,
    /// How long a baseline is frozen before it becomes normal (default: 7 days)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "deserialize_duration")]
    pub normal_wait: Option<Duration>,
    /// Let C be the number of training calls up to the last one that taught something new. Freeze
    /// the baseline after more than N × C training calls (default: 4)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub normal_ratio: Option<u32>,
    /// Return a normal baseline to training after more than this many anomalies that count: the
    /// program has changed. Anomalies count only where the process could go on, and so seldom that
    /// reaching the limit takes at least --normal-wait (default: 30)
    #[arg(long, value_name = "N")]
    pub anomaly_limit: Option<u32>,
    /// Treat more than this many anomalies among 128 calls as an attack, and learn nothing from it
    /// (default: 12)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub tolerize_limit: Option<u16>,
    /// With enforce, hold at most this many processes at a time (default: 64)
    #[arg(long, value_name = "N")]
    pub max_held: Option<u32>,
    /// What to do about anomalies of further processes while --max-held processes are held
    /// (default: observe)
    #[arg(long, value_enum, value_name = "RESPONSE")]
    pub over_max_held: Option<OverMaxHeld>,
    /// Briefly stop each process whose baseline is in training, at about this interval. The
    /// baseline then also learns how the process and its parent react to a hold. Applies in every
    /// mode (default: never)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "deserialize_duration")]
    pub train_on_stops: Option<Duration>,
    /// Number of calls in the window of the lookahead pairs (default: 9)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=9))]
    pub lookahead: Option<u8>,
    /// Number of calls in a sequence (default: 6)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=8))]
    pub sequence: Option<u8>,
    /// Keep a separate baseline of a program for each of these (default: one baseline for the
    /// program's content, wherever it runs)
    #[arg(long, value_enum, value_name = "KIND")]
    pub scope: Option<ScopeKind>,
}

fn deserialize_duration<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    duration(&text).map(Some).map_err(serde::de::Error::custom)
}

// What `tollgate run` guards, and how.
#[derive(Args)]
pub struct GuardArguments {
    /// Guard the command's programs by their normal behaviour: learn it, report deviations, or also
    /// respond to them
    #[arg(long = "guard", value_enum, value_name = "MODE", require_equals = true)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub options: GuardOptions,
    #[command(flatten)]
    pub store: StoreOption,
}

/// The resolved policy.
pub struct Policy {
    pub selection: ProgramFilter,
    pub mode: Mode,
    pub wire: wire::guard_parameters,
    pub scope: Option<ScopeKind>,
    pub normal_wait: Duration,
    pub anomaly_limit: AnomalyLimit,
    pub train_on_stops: Option<Duration>,
    pub store: PathBuf,
    /// Whether the first long hold is printed at once. A command needs this, because it prints its
    /// events only at the end.
    pub reports_holds: bool,
}

impl Policy {
    /// Whether any process can ever be stopped.
    pub fn holds(&self) -> bool {
        self.wire.response != wire::GUARD_OBSERVE || self.train_on_stops.is_some()
    }

    /// What the policy needs in the gate: bits of [`wire::gate_mask`].
    pub fn mask(&self) -> u32 {
        let scoped = if self.scope.is_some() { wire::GUARD_SCOPED } else { 0 };
        wire::GUARD | self.precall_mechanisms() | scoped
    }

    /// The mechanisms for pre-call holds and refusals.
    fn precall_mechanisms(&self) -> u32 {
        match self.wire.response {
            wire::GUARD_OBSERVE | wire::GUARD_KILL => 0,
            _ => precall::available_mechanisms(),
        }
    }
}

/// Not from pH. An attack seldom has this many processes; if this many programs change at once, the
/// machine was upgraded.
const DEFAULT_MAX_HELD: u32 = 64;

/// pH's source has no delays by default; the paper's experiments use four ticks of 10 ms.
const DELAY_FACTOR: Duration = Duration::from_millis(40);

/// The maximum size of a configuration file. A file with one line for each option is far smaller.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

fn read(path: &Path) -> Result<GuardOptions> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_CONFIG_BYTES).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", shown_path(path)))?;
    if text.len() as u64 == MAX_CONFIG_BYTES {
        bail!("{} is not a guard configuration: it is too long", shown_path(path));
    }
    toml::from_str(&text)
        .with_context(|| format!("{} is not a guard configuration", shown_path(path)))
}

/// The published parameters of pH, without a response.
pub fn observing_parameters() -> wire::guard_parameters {
    let default = Parameters::default();
    wire::guard_parameters {
        lookahead: ::guard::ModelKind::Lookahead.default_length() as u8,
        sequence: ::guard::ModelKind::Sequence.default_length() as u8,
        tolerize_limit: default.tolerize_limit as u16,
        normal_factor: (default.normal_factor.0 / default.normal_factor.1) as u32,
        normal_factor_den: 1,
        response: wire::GUARD_OBSERVE,
        scope: wire::IDENTITY_CONTENT,
        delay_factor_ns: ns(DELAY_FACTOR),
        delay_cap_ns: ns(default.delay_cap),
        max_held: DEFAULT_MAX_HELD,
        exempt_sid: wire::GUARD_NO_SID,
        // pH's source suspends no execve.
        suspend_execve: 0,
        suspend_execve_ns: ns(default.delay_cap),
        has_exempt_files: 0,
        over_max_held: wire::GUARD_OBSERVE,
        has_selected_files: 0,
    }
}

impl GuardArguments {
    /// The policy; `None` without `--guard`.
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
    /// Resolves the options: the command line overrides the file, and the file the defaults.
    pub fn policy(&self, mode: Mode, store: &Path) -> Result<Policy> {
        let file = self.guard_config.as_deref().map(read).transpose()?.unwrap_or_default();
        let own = self;
        let response = own.respond.or(file.respond).unwrap_or(GuardResponse::Delay);
        own.check_effects(mode, response)?;
        let default = observing_parameters();
        let response = match (mode, response) {
            (Mode::Learn | Mode::Watch, _) => wire::GUARD_OBSERVE,
            (Mode::Enforce, GuardResponse::Delay) => wire::GUARD_DELAY,
            (Mode::Enforce, GuardResponse::Deny) => wire::GUARD_DENY,
            (Mode::Enforce, GuardResponse::Stop) => wire::GUARD_STOP,
            (Mode::Enforce, GuardResponse::Kill) => wire::GUARD_KILL,
        };
        let scope = own.scope.or(file.scope);
        let tolerize_limit = match mode {
            // In this mode, only denounced calls are anomalous. They are no reason to wipe the
            // training data.
            Mode::Learn => wire::GUARD_FRAME as u16,
            Mode::Watch | Mode::Enforce => default.tolerize_limit,
        };
        let wire = wire::guard_parameters {
            lookahead: own.lookahead.or(file.lookahead).unwrap_or(default.lookahead),
            sequence: own.sequence.or(file.sequence).unwrap_or(default.sequence),
            tolerize_limit: own.tolerize_limit.or(file.tolerize_limit).unwrap_or(tolerize_limit),
            normal_factor: own.normal_ratio.or(file.normal_ratio).unwrap_or(default.normal_factor),
            response,
            scope: scope.map_or(wire::IDENTITY_CONTENT, ScopeKind::wire),
            delay_factor_ns: own
                .delay_factor
                .or(file.delay_factor)
                .map_or(default.delay_factor_ns, ns),
            delay_cap_ns: own.delay_cap.or(file.delay_cap).map_or(default.delay_cap_ns, ns),
            max_held: own.max_held.or(file.max_held).unwrap_or(default.max_held),
            over_max_held: match own.over_max_held.or(file.over_max_held) {
                Some(OverMaxHeld::Kill) => wire::GUARD_KILL,
                Some(OverMaxHeld::Observe) | None => wire::GUARD_OBSERVE,
            },
            suspend_execve: own
                .suspend_execve
                .or(file.suspend_execve)
                .unwrap_or(default.suspend_execve),
            suspend_execve_ns: own
                .suspend_execve_time
                .or(file.suspend_execve_time)
                .map_or(default.suspend_execve_ns, ns),
            ..default
        };
        let parameters = Parameters::default();
        let normal_wait = own.normal_wait.or(file.normal_wait).unwrap_or(parameters.normal_wait);
        let anomaly_limit =
            own.anomaly_limit.or(file.anomaly_limit).unwrap_or(parameters.anomaly_limit);
        let train_on_stops = own.train_on_stops.or(file.train_on_stops);
        check(&wire)?;
        check_times(&wire, train_on_stops)?;
        Ok(Policy {
            selection: ProgramFilter::default(),
            mode,
            wire,
            scope,
            normal_wait,
            anomaly_limit: AnomalyLimit::new(anomaly_limit, normal_wait),
            train_on_stops,
            store: store.to_owned(),
            reports_holds: true,
        })
    }
}

impl GuardOptions {
    /// Refuses options of the command line that would have no effect. A file may have them, because
    /// it may serve several modes.
    fn check_effects(&self, mode: Mode, response: GuardResponse) -> Result<()> {
        use GuardResponse::{Delay, Deny, Kill, Stop};
        let options: [(&str, bool, &[GuardResponse]); 7] = [
            ("respond", self.respond.is_some(), &[Delay, Deny, Stop, Kill]),
            ("delay-factor", self.delay_factor.is_some(), &[Delay, Deny]),
            ("delay-cap", self.delay_cap.is_some(), &[Delay, Deny]),
            ("suspend-execve", self.suspend_execve.is_some(), &[Delay, Deny, Stop, Kill]),
            ("suspend-execve-time", self.suspend_execve_time.is_some(), &[Delay]),
            ("max-held", self.max_held.is_some(), &[Delay, Deny, Stop]),
            ("over-max-held", self.over_max_held.is_some(), &[Delay, Deny, Stop]),
        ];
        for (name, _, responses) in options.into_iter().filter(|(_, is_given, _)| *is_given) {
            if mode != Mode::Enforce {
                bail!("--{name} needs --guard=enforce: --guard={} does not respond", mode.name());
            }
            if !responses.contains(&response) {
                bail!("--{name} has no effect with the response {}", response.name());
            }
        }
        Ok(())
    }
}

impl GuardResponse {
    /// The name on the command line and in the file.
    fn name(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Deny => "deny",
            Self::Stop => "stop",
            Self::Kill => "kill",
        }
    }
}

/// Refuses values with which no process could ever be held, because other options serve that
/// purpose.
fn check_times(wire: &wire::guard_parameters, train_on_stops: Option<Duration>) -> Result<()> {
    for (name, value) in [
        ("delay-factor", wire.delay_factor_ns),
        ("delay-cap", wire.delay_cap_ns),
        ("suspend-execve-time", wire.suspend_execve_ns),
        ("max-held", wire.max_held.into()),
    ] {
        if value == 0 {
            bail!(
                "{name} is 0, so no process would ever be held: use --guard=watch to only report \
                anomalies"
            );
        }
    }
    if train_on_stops.is_some_and(|interval| interval.is_zero()) {
        bail!("train-on-stops is 0: leave it out to stop no process during training");
    }
    Ok(())
}

/// Checks a file's values; the parser has checked those of the command line.
fn check(wire: &wire::guard_parameters) -> Result<()> {
    if !(2..=wire::GUARD_LOOKAHEAD_MAX as u8).contains(&wire.lookahead) {
        bail!(
            "lookahead is {}, but must be from 2 to {}",
            wire.lookahead,
            wire::GUARD_LOOKAHEAD_MAX
        );
    }
    if !(2..=wire::GUARD_SEQUENCE_MAX as u8).contains(&wire.sequence) {
        bail!("sequence is {}, but must be from 2 to {}", wire.sequence, wire::GUARD_SEQUENCE_MAX);
    }
    if wire.normal_factor == 0
        || wire.tolerize_limit == 0
        || u32::from(wire.tolerize_limit) > wire::GUARD_FRAME
    {
        bail!(
            "normal-ratio must be at least 1, and tolerize-limit from 1 to {}",
            wire::GUARD_FRAME
        );
    }
    if wire.suspend_execve > wire::GUARD_FRAME {
        bail!("suspend-execve must be from 0 (none) to {}", wire::GUARD_FRAME);
    }
    Ok(())
}

/// The kernel adds a time to its clock, and the sum must not overflow.
const MAX_TIME_NS: u64 = u64::MAX / 2;

fn ns(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(MAX_TIME_NS).min(MAX_TIME_NS)
}

impl GuardOptions {
    fn is_given(&self) -> bool {
        self.guard_config.is_some()
            || self.respond.is_some()
            || [
                self.delay_factor,
                self.delay_cap,
                self.suspend_execve_time,
                self.normal_wait,
                self.train_on_stops,
            ]
            .iter()
            .any(Option::is_some)
            || [self.normal_ratio, self.anomaly_limit, self.max_held, self.suspend_execve]
                .iter()
                .any(Option::is_some)
            || self.tolerize_limit.is_some()
            || self.over_max_held.is_some()
            || [self.lookahead, self.sequence].iter().any(Option::is_some)
            || self.scope.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn policy_of(mode: Mode, options: GuardOptions) -> Result<Policy> {
        let store = StoreOption { folder: "store".into() };
        let arguments = GuardArguments { mode: Some(mode), options, store };
        arguments.policy().map(|policy| policy.expect("a mode is given"))
    }

    fn policy(options: GuardOptions) -> Result<Policy> {
        policy_of(Mode::Enforce, options)
    }

    #[test]
    fn options_without_an_effect_are_refused() {
        let second = Some(Duration::from_secs(1));
        let factor = || GuardOptions { delay_factor: second, ..GuardOptions::default() };
        let cap = || GuardOptions { delay_cap: second, ..GuardOptions::default() };
        let most = || GuardOptions { max_held: Some(1), ..GuardOptions::default() };
        let execve = || GuardOptions { suspend_execve: Some(1), ..GuardOptions::default() };
        let time = || GuardOptions { suspend_execve_time: second, ..GuardOptions::default() };
        let over =
            || GuardOptions { over_max_held: Some(OverMaxHeld::Kill), ..GuardOptions::default() };
        let all: [&dyn Fn() -> GuardOptions; 6] = [&factor, &cap, &most, &over, &execve, &time];
        let refusal = |mode, options| policy_of(mode, options).err().map(|it| it.to_string());
        for options in all {
            for mode in [Mode::Learn, Mode::Watch] {
                let refused = refusal(mode, options()).expect("it has no effect");
                assert!(refused.contains(" needs --guard=enforce: --guard="), "{refused}");
            }
            assert_eq!(refusal(Mode::Enforce, options()), None);
        }
        let with = |respond, options: &dyn Fn() -> GuardOptions| {
            refusal(Mode::Enforce, GuardOptions { respond: Some(respond), ..options() })
        };
        assert_eq!(
            with(GuardResponse::Stop, &factor).as_deref(),
            Some("--delay-factor has no effect with the response stop")
        );
        assert!(with(GuardResponse::Kill, &cap).is_some());
        assert!(with(GuardResponse::Kill, &most).is_some());
        assert!(with(GuardResponse::Kill, &over).is_some());
        assert!(with(GuardResponse::Deny, &time).is_some());
        assert_eq!(with(GuardResponse::Deny, &cap), None);
        assert_eq!(with(GuardResponse::Stop, &most), None);
        assert_eq!(with(GuardResponse::Kill, &execve), None);
    }

    #[test]
    fn a_file_may_have_options_for_another_mode() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("guard.toml");
        fs::write(&file, "respond = \"stop\"\ndelay-factor = \"1s\"\n").expect("a file");
        for mode in [Mode::Watch, Mode::Enforce] {
            let options =
                GuardOptions { guard_config: Some(file.clone()), ..GuardOptions::default() };
            assert!(policy_of(mode, options).is_ok());
        }
    }

    #[test]
    fn defaults_are_those_published() {
        let policy = policy(GuardOptions::default()).expect("defaults");
        let wire = policy.wire;
        assert_eq!(
            (wire.lookahead, wire.sequence, wire.tolerize_limit, policy.anomaly_limit.limit()),
            (9, 6, 12, 30)
        );
        assert_eq!((wire.normal_factor, wire.normal_factor_den), (4, 1));
        assert_eq!((wire.response, wire.delay_factor_ns), (wire::GUARD_DELAY, 40_000_000));
        assert_eq!(
            (policy.normal_wait, wire.delay_cap_ns),
            (Duration::from_secs(604_800), 172_800_000_000_000)
        );
    }

    #[test]
    fn huge_times_do_not_overflow() {
        let huge = Some(Duration::from_secs(u64::MAX));
        let options =
            GuardOptions { delay_factor: huge, delay_cap: huge, ..GuardOptions::default() };
        let wire = policy(options).expect("a long time").wire;
        let now = kernel::clock::now_ns();
        assert!(now.checked_add(wire.delay_cap_ns).is_some_and(|until| until < u64::MAX));
        assert_eq!(wire.delay_factor_ns, wire.delay_cap_ns);
    }

    #[test]
    fn command_line_overrides_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("guard.toml");
        let text = "normal-wait = \"1h\"\nlookahead = 5\nrespond = \"stop\"\nscope = \"unit\"\n";
        fs::write(&file, text).expect("a file");
        let options = GuardOptions {
            guard_config: Some(file.clone()),
            lookahead: Some(7),
            ..GuardOptions::default()
        };
        let policy_of_both = policy(options).expect("it is right");
        assert_eq!(
            (policy_of_both.wire.lookahead, policy_of_both.wire.response),
            (7, wire::GUARD_STOP)
        );
        assert_eq!(policy_of_both.normal_wait, Duration::from_secs(3600));
        assert_eq!(
            (policy_of_both.scope, policy_of_both.wire.scope),
            (Some(ScopeKind::Unit), wire::IDENTITY_UNIT)
        );
        for (text, words) in [
            ("normal_wait = \"1h\"", "unknown field"),
            ("normal-wait = \"soon\"", "time"),
            ("lookahead = 10", "2 to 9"),
            ("tolerize-limit = 0", "1 to 128"),
            ("suspend-execve = 129", "to 128"),
            ("delay-factor = \"0s\"", "no process would ever be held"),
            ("max-held = 0", "no process would ever be held"),
            ("train-on-stops = \"0ms\"", "train-on-stops is 0"),
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
            let options =
                GuardOptions { guard_config: Some(file.clone()), ..GuardOptions::default() };
            let Err(error) = policy(options) else { panic!("{text:.50} was taken") };
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
