//! Renders rules and limits.

use serde_json::{Value, json};
use service::{Conditions, Limits, Listen, MEMORY_UNIT, NETWORK_UNIT, OverLimit, RuleAction, Tree};

/// The conditions by their keys, as in the file.
pub fn conditions(conditions: &Conditions, tree: &Tree) -> Vec<(&'static str, String)> {
    let folder =
        |folder: &Option<service::Folder>| folder.as_ref().map(|folder| folder.as_str().to_owned());
    let name = |id: Option<service::Id>| id.map(|id| tree.name(id).to_owned());
    let all = [
        ("file", folder(&conditions.file)),
        ("peer", name(conditions.peer)),
        ("client", conditions.client.map(|network| network.to_string())),
        ("listen", listen(&conditions.listen)),
        ("service", name(conditions.service)),
        ("exe", conditions.exe.clone()),
        ("unit", conditions.unit.clone()),
        ("cgroup", folder(&conditions.cgroup)),
        ("user", conditions.user.map(|user| user.to_string())),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// The limits by their keys, as in the file.
pub fn limits(limits: &Limits, tree: &Tree) -> Vec<(&'static str, Value)> {
    let over_limit = match limits.over_limit {
        _ if !limits.needs_socket_hooks() || limits.over_limit == OverLimit::default() => None,
        OverLimit::Fails(errno) => Some(("over-limit-errno", json!(errno.name()))),
        OverLimit::WorksFor(id) => Some(("over-limit-service", json!(tree.name(id)))),
    };
    let all = [
        ("cpu-weight", limits.cpu_weight.map(|weight| json!(weight))),
        ("cpu-max", limits.cpu_max.map(|percent| json!(format!("{percent}%")))),
        ("memory-max", amount(limits.memory_max, MEMORY_UNIT)),
        ("tasks-max", limits.tasks_max.map(|most| json!(most))),
        ("sockets-max", limits.sockets_max.map(|most| json!(most))),
        ("connections-max", limits.connections_max.map(|most| json!(most))),
        ("network-max", amount(limits.network_max, NETWORK_UNIT)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).chain(over_limit).collect()
}

/// An amount in the largest unit of which it is a multiple.
fn amount(bytes: Option<u64>, unit: u64) -> Option<Value> {
    let bytes = bytes?;
    let powers =
        [(4, "T"), (3, "G"), (2, "M"), (1, "K")].map(|(power, name)| (unit.pow(power), name));
    let fits = powers.into_iter().find(|(size, _)| bytes.is_multiple_of(*size));
    Some(fits.map_or_else(
        || json!(bytes.to_string()),
        |(size, name)| json!(format!("{}{name}", bytes / size)),
    ))
}

fn listen(listen: &Listen) -> Option<String> {
    match (listen.address, listen.port, &listen.path) {
        (Some(address), Some(port), _) => {
            Some(std::net::SocketAddr::new(address, port).to_string())
        }
        (Some(address), None, _) => Some(address.to_string()),
        (None, Some(port), _) => Some(format!(":{port}")),
        (None, None, path) => path.clone(),
    }
}

pub fn action(action: RuleAction, tree: &Tree) -> String {
    match action {
        RuleAction::BelongsTo(id) => format!("assigns {}", tree.name(id)),
        RuleAction::Inherits => "inherits".into(),
        RuleAction::AdoptsPeer => "adopts the peer's service".into(),
        RuleAction::StartsDynamic { parent, split } => {
            format!("starts a service below {} for each {}", tree.name(parent), split.name())
        }
    }
}

/// The action by its keys in the file.
pub fn as_toml(action: RuleAction, tree: &Tree) -> Value {
    match action {
        RuleAction::BelongsTo(id) => json!({"belongs-to": tree.name(id)}),
        RuleAction::Inherits => json!({"inherits": true}),
        RuleAction::AdoptsPeer => json!({"adopts-peer": true}),
        RuleAction::StartsDynamic { parent, split } => {
            json!({"starts-below": tree.name(parent), "each": split.name()})
        }
    }
}
