//! How the proc filesystem is mounted, as `mounts` and `mountinfo` tell it.

use std::path::Path;

/// Whether the proc filesystem at this root, or at its usual place, is mounted so that it hides processes.
pub fn hides(table: &str, root: &Path) -> bool {
    let options = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // proc_pid_mountinfo(5): id parent device root place options… - type source options
        match fields.iter().position(|field| *field == "-") {
            Some(dash) => Some((*fields.get(4)?, *fields.get(dash + 1)?, *fields.get(dash + 3)?)),
            // proc_pid_mounts(5): source place type options
            None => Some((*fields.get(1)?, *fields.get(2)?, *fields.get(3)?)),
        }
    });
    options
        .filter(|(place, kind, _)| *kind == "proc" && (Path::new(place) == root || *place == "/proc"))
        .flat_map(|(_, _, options)| options.split(','))
        .filter_map(|option| option.strip_prefix("hidepid="))
        .any(|value| !matches!(value, "0" | "off"))
}

/// Whether the filesystem of this device is one that a user may have mounted, and in which root owns what the user says
/// that root owns: those of FUSE, and whatever is mounted `nosuid` wherever it is. The host's own may be so in some places,
/// such as a `/tmp` that is bound to a folder of the root filesystem.
pub fn may_be_a_users(table: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    let fields = table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<&str>>());
    let mounts: Vec<_> = fields.filter(|fields| fields.get(2) == Some(&device.as_str())).collect();
    let is_fuse = mounts.iter().any(|fields| {
        let kind = fields.iter().position(|field| *field == "-").and_then(|dash| fields.get(dash + 1));
        kind.is_some_and(|kind| kind.starts_with("fuse"))
    });
    let is_nosuid =
        |fields: &Vec<&str>| fields.get(5).is_some_and(|options| options.split(',').any(|it| it == "nosuid"));
    is_fuse || (!mounts.is_empty() && mounts.iter().all(is_nosuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_that_a_user_mounted_is_known_as_his() {
        let table = "29 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
            90 29 0:55 / /home/bob/mnt rw,nosuid,nodev - fuse.sshfs bob@host: rw\n\
            91 29 0:56 / /srv/images rw - fuse.squashfuse image rw\n\
            92 29 0:57 / /tmp rw,nosuid - tmpfs tmpfs rw\n\
            93 29 8:1 /var/tmp /var/tmp rw,nosuid,nodev - ext4 /dev/sda1 rw\n";
        for (device, users) in [((8, 1), false), ((0, 55), true), ((0, 56), true), ((0, 57), true), ((0, 9), false)] {
            assert_eq!(may_be_a_users(table, device), users, "{device:?}");
        }
    }

    #[test]
    fn the_option_is_found_in_both_tables() {
        for (table, hidden) in [
            ("proc /proc proc rw,nosuid,hidepid=2 0 0", true),
            ("proc /proc proc rw,nosuid,hidepid=invisible,gid=27 0 0", true),
            ("proc /proc proc rw,hidepid=ptraceable 0 0", true),
            ("proc /proc proc rw,hidepid=1 0 0", true),
            ("proc /proc proc rw,hidepid=off 0 0", false),
            ("proc /proc proc rw,nosuid 0 0", false),
            ("proc /srv/chroot/proc proc rw,hidepid=2 0 0", false),
            ("tmpfs /proc tmpfs rw,hidepid=2 0 0", false),
            ("24 30 0:22 / /proc rw,nosuid shared:12 - proc proc rw,hidepid=invisible", true),
            ("24 30 0:22 / /proc rw,nosuid - proc proc rw", false),
            ("", false),
        ] {
            assert_eq!(hides(table, Path::new("/proc")), hidden, "{table}");
        }
    }
}
