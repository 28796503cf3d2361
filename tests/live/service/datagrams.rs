//! Services: requests by UDP.

use crate::harness::services::{
    ActiveServices, Backend, TENANTS, begin, finish_tenant, own_work, programs,
};

use super::classification::{older_replies_rebind_nobody, tenants_are_charged, works_for};

#[test]
fn connected_udp_is_charged() {
    tenants_are_charged("udp:127.0.0.1:0", "", 1);
    tenants_are_charged("udp:[::1]:0", "--forks 3", 5);
}

#[test]
fn unconnected_udp_is_charged() {
    tenants_are_charged("sendto:127.0.0.1:0", "--forks 3", 1);
    // An IPv6 socket that receives IPv4.
    tenants_are_charged("sendto:[::ffff:127.0.0.1]:0", "", 3);
    tenants_are_charged("sendto:[::]:0", "", 1);
}

#[test]
fn udp_reply_does_not_rebind_own_work() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    for address in ["udp:127.0.0.1:0", "sendto:127.0.0.1:0"] {
        let backend = Backend::start(folder, "backend", address, "");
        let tenant = begin(backend.tenant(folder, "shop", "a 0 20"));
        own_work(&tenant);
        let why = services.explain(tenant.pid());
        assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"exec".into()), "{address}");
        let why = services.explain(backend.running.pid());
        assert_eq!(
            (&why["service"], &why["why"]),
            (&"shop".into(), &"receive".into()),
            "{address}"
        );
        finish_tenant(tenant);
        backend.end(folder, "shop");
    }
}

#[test]
fn udp_reply_restores_the_requesters_binding() {
    older_replies_rebind_nobody("sendto:127.0.0.1:0");
}

#[test]
fn udp_reply_is_not_a_request() {
    let services = ActiveServices::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    for address in ["udp:127.0.0.1:0", "sendto:127.0.0.1:0"] {
        let server = Backend::start(folder, "shop", address, "");
        // A request would bind the client, because a rule adopts its peer.
        let client = begin(server.tenant(folder, "backend", "a 0 5"));
        own_work(&client);
        assert_eq!(services.service_of(client.pid()), "root", "{address}");
        finish_tenant(client);
        server.end(folder, "backend");
    }
}

#[test]
fn datagram_conditions() {
    let services = ActiveServices::start(programs(&["one", "server"]), TENANTS);
    let folder = services.folder.path();
    let start = || Backend::start(folder, "server", "udp:127.0.0.1:0", "");
    let port = |backend: &Backend| backend.endpoint.rsplit(':').next().expect("a port").to_owned();
    let backend = start();
    let here = port(&backend);
    let other = here.parse::<u16>().expect("a port") ^ 1;
    for (rule, service) in [
        (format!("listen = \":{other}\""), "root"),
        (format!("listen = \"127.0.0.2:{here}\""), "root"),
        ("client = \"127.0.0.2\"".into(), "root"),
        ("peer = \"shop\"".into(), "root"),
        (format!("listen = \":{here}\""), "found"),
    ] {
        assert_eq!(works_for(&services, &backend, &rule), service, "{rule}");
    }
    // A process keeps its service, so each rule is tested with a new process.
    for rule in ["listen = \"127.0.0.1:PORT\"", "client = \"127.0.0.0/8\"", "peer = \"root\""] {
        let backend = start();
        let rule = rule.replace("PORT", &port(&backend));
        assert_eq!(works_for(&services, &backend, &rule), "found", "{rule}");
    }
}
