//! Rules and limits in words.

use serde_json::{Value, json};
use service::{Beyond, Conditions, Directive, Limits, Listen, MEMORY_UNIT, NETWORK_UNIT, Tree};

/// Each condition by its key, as the file has it.
pub fn conditions(when: &Conditions, tree: &Tree) -> Vec<(&'static str, String)> {
    let folder = |folder: &Option<service::Folder>| folder.as_ref().map(|folder| folder.as_str().to_owned());
    let name = |id: Option<service::Id>| id.map(|id| tree.name(id).to_owned());
    let all = [
        ("file", folder(&when.file)),
        ("peer", name(when.peer)),
        ("client", when.client.map(|network| network.to_string())),
        ("listen", listen(&when.listen)),
        ("service", name(when.service)),
        ("exe", when.exe.clone()),
        ("unit", when.unit.clone()),
        ("cgroup", folder(&when.cgroup)),
        ("user", when.user.map(|user| user.to_string())),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Each limit by its key, as the file has it.
pub fn limits(limits: &Limits, tree: &Tree) -> Vec<(&'static str, Value)> {
    let beyond = match limits.beyond {
        _ if !limits.has_sockets() || limits.beyond == Beyond::default() => None,
        Beyond::Fails(errno) => Some(("beyond-errno", json!(errno.name()))),
        Beyond::WorksFor(id) => Some(("beyond-service", json!(tree.name(id)))),
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
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).chain(beyond).collect()
}

/// In the largest unit of which it is a multiple.
fn amount(bytes: Option<u64>, unit: u64) -> Option<Value> {
    let bytes = bytes?;
    let powers = [(4, "T"), (3, "G"), (2, "M"), (1, "K")].map(|(power, name)| (unit.pow(power), name));
    let fits = powers.into_iter().find(|(size, _)| bytes.is_multiple_of(*size));
    Some(
        fits.map_or_else(
            || json!(bytes.to_string()),
            |(size, name)| json!(format!("{}{name}", bytes / size)),
        ),
    )
}

fn listen(listen: &Listen) -> Option<String> {
    match (listen.address, listen.port, &listen.path) {
        (Some(address), Some(port), _) => Some(std::net::SocketAddr::new(address, port).to_string()),
        (Some(address), None, _) => Some(address.to_string()),
        (None, Some(port), _) => Some(format!(":{port}")),
        (None, None, path) => path.clone(),
    }
}

pub fn directive(then: Directive, tree: &Tree) -> String {
    match then {
        Directive::BelongsTo(id) => format!("belongs to {}", tree.name(id)),
        Directive::Inherits => "inherits".into(),
        Directive::AdoptsPeer => "adopts the peer's".into(),
        Directive::Starts { below, each } => {
            format!("starts one for each {}, below {}", each.name(), tree.name(below))
        }
    }
}

/// By its keys.
pub fn as_written(then: Directive, tree: &Tree) -> Value {
    match then {
        Directive::BelongsTo(id) => json!({"belongs-to": tree.name(id)}),
        Directive::Inherits => json!({"inherits": true}),
        Directive::AdoptsPeer => json!({"adopts-peer": true}),
        Directive::Starts { below, each } => json!({"starts-below": tree.name(below), "each": each.name()}),
    }
}
