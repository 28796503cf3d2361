//! Finds the image of a container in the files that its engine keeps.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The image of the container with this ID, below the root folder. `None` if no engine's files name
/// the image. In that case, perhaps only the engine itself knows it.
pub fn image_of(root: &Path, container: &str) -> Option<String> {
    docker(root, container)
        .or_else(|| containers_storage(root, container))
        .or_else(|| containerd(root, container))
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn docker(root: &Path, container: &str) -> Option<String> {
    let folder = root.join("var/lib/docker/containers").join(container);
    text(&read(&folder.join("config.v2.json"))?["Config"]["Image"])
}

/// Podman and CRI-O.
fn containers_storage(root: &Path, container: &str) -> Option<String> {
    let folder = root.join("var/lib/containers/storage/overlay-containers");
    ["containers.json", "volatile-containers.json"].iter().find_map(|file| {
        let all = read(&folder.join(file))?;
        let found = all.as_array()?.iter().find(|one| one["id"] == container)?;
        let metadata: Value = serde_json::from_str(found["metadata"].as_str()?).ok()?;
        text(&metadata["image-name"])
    })
}

/// containerd under Kubernetes, which names the image in the configuration that it passes to runc.
fn containerd(root: &Path, container: &str) -> Option<String> {
    let folder = root.join("run/containerd/io.containerd.runtime.v2.task/k8s.io").join(container);
    text(&read(&folder.join("config.json"))?["annotations"]["io.kubernetes.cri.image-name"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engines_files_name_the_image() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let of = |container: &str| image_of(root.path(), container);
        assert_eq!(of("one"), None);
        write(
            "var/lib/docker/containers/one/config.v2.json",
            r#"{"Config":{"Image":"nginx:1.25"}}"#,
        );
        write(
            "var/lib/containers/storage/overlay-containers/containers.json",
            concat!(
                r#"[{"id":"other"},"#,
                r#"{"id":"two","metadata":"{\"image-name\":\"docker.io/library/redis:7\"}"}]"#,
            ),
        );
        write(
            "run/containerd/io.containerd.runtime.v2.task/k8s.io/three/config.json",
            r#"{"annotations":{"io.kubernetes.cri.image-name":"registry.k8s.io/pause:3.9"}}"#,
        );
        assert_eq!(of("one").as_deref(), Some("nginx:1.25"));
        assert_eq!(of("two").as_deref(), Some("docker.io/library/redis:7"));
        assert_eq!(of("three").as_deref(), Some("registry.k8s.io/pause:3.9"));
        assert_eq!(of("other"), None);
        write("var/lib/docker/containers/torn/config.v2.json", r#"{"Config":"#);
        assert_eq!(of("torn"), None);
    }
}
