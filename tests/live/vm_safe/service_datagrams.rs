//! Services: work that moves by UDP.

use crate::harness::services::{Backend, InForce, TENANTS, begin, over, own_work, programs};

use super::services::{older_answers_take_nobody_back, tenants_are_charged, works_for};

#[test]
fn over_udp() {
    tenants_are_charged("udp:127.0.0.1:0", "", 1);
    tenants_are_charged("udp:[::1]:0", "--forks 3", 5);
}

#[test]
fn of_sockets_that_are_not_connected() {
    tenants_are_charged("sendto:127.0.0.1:0", "--forks 3", 1);
    // Which gets IPv4 in IPv6.
    tenants_are_charged("sendto:[::ffff:127.0.0.1]:0", "", 3);
    tenants_are_charged("sendto:[::]:0", "", 1);
}

#[test]
fn an_answer_leaves_its_own_work_its_own() {
    let services = InForce::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    for place in ["udp:127.0.0.1:0", "sendto:127.0.0.1:0"] {
        let backend = Backend::start(folder, "backend", place, "");
        let tenant = begin(backend.tenant(folder, "shop", "a 0 20"));
        own_work(&tenant);
        let why = services.explain(tenant.pid());
        assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"exec".into()), "{place}");
        let why = services.explain(backend.running.pid());
        assert_eq!((&why["service"], &why["why"]), (&"shop".into(), &"receive".into()), "{place}");
        over(tenant);
        backend.end(folder, "shop");
    }
}

#[test]
fn an_answer_brings_back_who_asked() {
    older_answers_take_nobody_back("sendto:127.0.0.1:0");
}

#[test]
fn an_answer_is_no_request() {
    let services = InForce::start(programs(&["shop", "backend"]), TENANTS);
    let folder = services.folder.path();
    for place in ["udp:127.0.0.1:0", "sendto:127.0.0.1:0"] {
        let server = Backend::start(folder, "shop", place, "");
        // It would work for whoever asks it.
        let client = begin(server.tenant(folder, "backend", "a 0 5"));
        own_work(&client);
        assert_eq!(services.service_of(client.pid()), "root", "{place}");
        over(client);
        server.end(folder, "backend");
    }
}

#[test]
fn datagrams_have_conditions() {
    let services = InForce::start(programs(&["one", "asked"]), TENANTS);
    let folder = services.folder.path();
    let start = || Backend::start(folder, "asked", "udp:127.0.0.1:0", "");
    let port = |backend: &Backend| backend.place.rsplit(':').next().expect("a port").to_owned();
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
    // It keeps its service, so each of these is asked of another process.
    for rule in ["listen = \"127.0.0.1:PORT\"", "client = \"127.0.0.0/8\"", "peer = \"root\""] {
        let backend = start();
        let rule = rule.replace("PORT", &port(&backend));
        assert_eq!(works_for(&services, &backend, &rule), "found", "{rule}");
    }
}
