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

#[cfg(test)]
mod tests {
    use super::*;

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
