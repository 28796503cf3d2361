//! Encodes the rules of a file for the kernel side.

use anyhow::{Context as _, Result};
use kernel::service::KernelRuleset;
use kernel::wire;
use service::{HashedRuleset, RuleAction, RuleEvent, RuleFile, SplitBy, Tree};

use super::registry::ServiceRegistry;

/// The ruleset in the form of the kernel side.
pub fn wire_ruleset(
    file: &RuleFile,
    salt: u64,
    registry: &ServiceRegistry,
) -> Result<KernelRuleset> {
    let hashed =
        HashedRuleset::new(&file.ruleset, salt, |id| registry.of(&file.tree, id)).ok().context(
            "the rules have more combinations of conditions than are possible for one event",
        )?;
    let tuples = hashed.tuples.iter().map(|tuple| wire::service_tuple {
        fields: tuple.fields,
        cgroup_depth: tuple.cgroup_depth,
        client_family: tuple.client.0,
        client_bits: tuple.client.1,
        file_depth: tuple.file_depth,
        ..Default::default()
    });
    let rules = hashed
        .rules
        .iter()
        .map(|rule| (rule.tuple, rule.hash, wire_rule(file, rule.precedence, registry)));
    let fields = file.ruleset.rules().iter().map(|rule| match rule.action {
        RuleAction::StartsDynamic { split: SplitBy::Exe, .. } => wire::FIELD_EXE,
        RuleAction::StartsDynamic { split: SplitBy::Unit, .. } => wire::FIELD_UNIT,
        _ => 0,
    });
    let fields = fields.fold(0, |all, one| all | one);
    Ok(KernelRuleset {
        fields,
        tuples: tuples.collect(),
        rules: rules.collect(),
        tuples_by_event: hashed.tuples_by_event,
    })
}

fn wire_event(event: RuleEvent) -> u32 {
    match event {
        RuleEvent::Fork => wire::EVENT_FORK,
        RuleEvent::Exec => wire::EVENT_EXEC,
        RuleEvent::Found => wire::EVENT_ATTACH,
        RuleEvent::User => wire::EVENT_USER,
        RuleEvent::Receive => wire::EVENT_RECEIVE,
        RuleEvent::Open => wire::EVENT_OPEN,
    }
}

fn wire_rule(file: &RuleFile, precedence: usize, registry: &ServiceRegistry) -> wire::service_rule {
    let rule = &file.ruleset.rules()[precedence];
    let number = |tree: &Tree, id| registry.of(tree, id);
    let (action, service) = match rule.action {
        RuleAction::BelongsTo(id) => (wire::ACTION_BELONGS, number(&file.tree, id)),
        RuleAction::Inherits => (wire::ACTION_INHERITS, 0),
        RuleAction::AdoptsPeer => (wire::ACTION_ADOPTS_PEER, 0),
        RuleAction::StartsDynamic { parent, .. } => {
            (wire::ACTION_CREATES, number(&file.tree, parent))
        }
    };
    let split = match rule.action {
        RuleAction::StartsDynamic { split: SplitBy::User, .. } => wire::SPLIT_USER,
        RuleAction::StartsDynamic { split: SplitBy::Unit, .. } => wire::SPLIT_UNIT,
        RuleAction::StartsDynamic { split: SplitBy::Exe, .. } => wire::SPLIT_EXE,
        RuleAction::StartsDynamic { split: SplitBy::Client, .. } => wire::SPLIT_CLIENT,
        _ => 0,
    };
    wire::service_rule {
        precedence: precedence as u32,
        service,
        action: action as u8,
        events: rule.events.iter().fold(0, |all, event| all | 1 << wire_event(*event)),
        has_explicit_events: rule.has_explicit_events.into(),
        split: split as u8,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_match_wire() {
        use service::field;
        let both = [
            (field::EXE, wire::FIELD_EXE),
            (field::USER, wire::FIELD_USER),
            (field::UNIT, wire::FIELD_UNIT),
            (field::SERVICE, wire::FIELD_SERVICE),
            (field::LISTEN_PATH, wire::FIELD_LISTEN_PATH),
            (field::LISTEN_ADDRESS, wire::FIELD_LISTEN_ADDRESS),
            (field::LISTEN_PORT, wire::FIELD_LISTEN_PORT),
            (field::CLIENT, wire::FIELD_CLIENT),
            (field::PEER, wire::FIELD_PEER),
            (field::CGROUP, wire::FIELD_CGROUP),
            (field::FILE, wire::FIELD_FILE),
        ];
        for (pure, kernel) in both {
            assert_eq!(u32::from(pure), kernel);
        }
        let events = (0..wire::SERVICE_EVENTS).collect::<Vec<_>>();
        assert_eq!(RuleEvent::ALL.map(wire_event).as_slice(), events);
        assert_eq!(service::MAX_TUPLES, wire::SERVICE_TUPLES as usize);
        assert!(service::MAX_RULES <= wire::SERVICE_RULES as usize);
    }
}
