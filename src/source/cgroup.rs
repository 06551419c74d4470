//! The text of `/proc/<pid>/cgroup`: which container a process runs in. Pure.

/// A container as its cgroup names it: the runtime's id, or where there is none the name that stands for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(pub String);

/// Runtimes by what stands before an id in the name of a scope: `docker-<id>.scope`.
const PREFIXES: [&str; 8] =
    ["docker-", "libpod-payload-", "libpod-", "crio-", "cri-containerd-", "cri-o-", "containerd-", "nerdctl-"];

/// Directories under which a runtime keeps a directory for each container.
const PARENTS: [&str; 6] = ["docker", "libpod_parent", "machine", "lxc", "podman", "containers"];

/// The innermost container of the path, or `None` outside one. Whatever looks like a container is one: who is in a
/// container is not known by his uid.
pub fn container(text: &str) -> Option<ContainerId> {
    // `hierarchy:controllers:path`, where the path may have colons of its own.
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(in_path)
}

fn in_path(path: &str) -> Option<ContainerId> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let inner = parts.iter().enumerate().rev().find_map(|(at, part)| {
        let parent = at.checked_sub(1).map(|before| parts[before]);
        named(part, parent)
    });
    // A pod's own directory, in which no container could be told.
    inner.or_else(|| parts.iter().rev().find(|part| part.contains("kubepods")).map(|part| ContainerId((*part).into())))
}

fn named(part: &str, parent: Option<&str>) -> Option<ContainerId> {
    let name = part.strip_suffix(".scope").or_else(|| part.strip_suffix(".service")).unwrap_or(part);
    // `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>`
    if let Some((_, id)) = name.rsplit_once(':')
        && is_id(id)
    {
        return Some(ContainerId(id.into()));
    }
    // The monitors of a container run on the host, beside it.
    if name.starts_with("lxc.monitor") || name.contains("conmon") {
        return None;
    }
    if let Some(name) = name.strip_prefix("lxc.payload") {
        return Some(ContainerId(name.trim_start_matches('.').into()));
    }
    if let Some(id) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
        && is_id(id)
    {
        return Some(ContainerId(id.into()));
    }
    // systemd-nspawn and virtual machines register with machined.
    if let Some(name) = name.strip_prefix("machine-").or_else(|| name.strip_prefix("systemd-nspawn@")) {
        return (!part.ends_with(".slice")).then(|| ContainerId(name.into()));
    }
    let kept = parent.is_some_and(|parent| PARENTS.contains(&parent) && !part.ends_with(".slice"));
    (is_id(name) || kept).then(|| ContainerId(name.into()))
}

/// The id of a container: 64 hexadecimal digits, or at least the 12 of its short form.
fn is_id(text: &str) -> bool {
    (12..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "deac4b5dcb3471a3874168ffc9a9be8565213d8a6d0faa5f15e59c61327548ff";

    fn check(path: &str, expected: Option<&str>) {
        let path = path.replace("ID", ID);
        let seen = container(&format!("0::{path}\n"));
        assert_eq!(seen.map(|ContainerId(id)| id.replace(ID, "ID")).as_deref(), expected, "{path}");
    }

    #[test]
    fn a_container_is_known_by_its_path() {
        for path in [
            "/docker/ID",
            "/system.slice/docker-ID.scope",
            "/user.slice/user-1001.slice/user@1001.service/user.slice/docker-ID.scope",
            "/machine.slice/libpod-ID.scope/container",
            "/user.slice/user-1001.slice/user@1001.service/train.service/libpod-payload-ID",
            "/kubepods/burstable/podacd25460-8392-52c7-b281-9747e9172aa5/ID",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podf18bfe9a.slice/cri-containerd-ID.scope",
            "/kubepods.slice/kubepods-pod81a6df65.slice/crio-ID.scope",
            "/system.slice/containerd.service/kubepods-burstable-pod27b6.slice:cri-containerd:ID",
            "/../../kubepods-burstable.slice/kubepods-burstable-podacd2.slice/cri-containerd-ID.scope",
            "/system.slice/docker-ID.scope (deleted)",
            "/user.slice/user-1001.slice/user@1001.service/train.service/ID",
        ] {
            check(path, Some("ID"));
        }
        check("/lxc.payload.trainbox/system.slice/ssh.service", Some("trainbox"));
        check("/lxc/trainbox", Some("trainbox"));
        check("/machine.slice/machine-ubuntu.scope", Some("ubuntu"));
        check("/kubepods/burstable/podacd25460-8392", Some("kubepods"));
    }

    #[test]
    fn outside_containers_there_is_none() {
        for path in [
            "/",
            "/user.slice/user-1000.slice/session-12.scope",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service",
            "/system.slice/slurmstepd.scope/job_48211/step_0/user/task_3",
            "/system.slice/containerd.service",
            "/system.slice/docker.service",
            "/system.slice/display-manager.service",
            "/lxc.monitor.trainbox",
            "/machine.slice/libpod-conmon-ID.scope",
        ] {
            check(path, None);
        }
        assert_eq!(container("random garbage\n"), None);
        assert_eq!(container(""), None);
    }

    #[test]
    fn one_hierarchy_that_names_it_is_enough() {
        let text = format!("12:net_cls:/\n11:freezer:/docker/{ID}\n0::/system.slice/containerd.service\n");
        assert_eq!(container(&text), Some(ContainerId(ID.into())));
    }
}
