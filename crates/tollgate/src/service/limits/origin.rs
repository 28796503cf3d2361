//! Where the members of a control group came from is in its name, so that they can be put back whatever became of
//! Tollgate, and so that children go where their parents would.

/// Below each hierarchy's root.
pub const TOP: &str = "tollgate";
/// A group beside that, of the second version, without members: the mount's option is to be taken back.
pub const FAVOURED: &str = "tollgate%favordynmods";
/// NAME_MAX: include/uapi/linux/limits.h
const LONGEST: usize = 255;

/// The folder, below its service's, for those who came from `origin`. Too long a name stands for a group above it.
pub fn folder(origin: &str) -> String {
    let mut origin = origin;
    loop {
        let name = origin.replace('%', "%25").replace('/', "%2F");
        if name.len() <= LONGEST {
            return name;
        }
        origin = origin.rfind('/').filter(|slash| *slash > 0).map_or("/", |slash| &origin[..slash]);
    }
}

/// Where a group's members came from; itself, if it is none of Tollgate's.
pub fn origin(group: &str) -> String {
    let is_ours = group
        .strip_prefix('/')
        .and_then(|path| path.strip_prefix(TOP))
        .is_some_and(|rest| rest.starts_with('/'));
    match group.rsplit_once('/') {
        Some((_, name)) if is_ours && name.starts_with("%2F") => name.replace("%2F", "/").replace("%25", "%"),
        _ => group.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_in_the_name() {
        for path in ["/", "/system.slice/php8.2-fpm.service", "/a%2Fb/100%", "/user.slice/x@y\\x2d:z"] {
            let name = folder(path);
            assert!(!name.contains('/'));
            assert_eq!(origin(&format!("/{TOP}/shop/{name}")), path);
        }
        assert_eq!(origin("/system.slice/%2Fodd"), "/system.slice/%2Fodd");
        assert_eq!(origin("/tollgates/a/%2F"), "/tollgates/a/%2F");
    }

    #[test]
    fn too_long_names_stand_for_those_above() {
        let long = format!("/a/{}", "b".repeat(255));
        assert_eq!(origin(&format!("/{TOP}/x/{}", folder(&long))), "/a");
        assert_eq!(folder(&format!("/{}", "b".repeat(300))), folder("/"));
    }
}
