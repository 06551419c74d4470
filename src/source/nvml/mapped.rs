//! The library as it lies in the agent's memory. One that was closed stays there when a thread is stuck in it, or has
//! destructors of thread-local values to run; the loader then hands out the old one, even after its file was replaced.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the kernel tells what is mapped (proc_pid_maps(5)).
const MAPS: &str = "/proc/self/maps";

/// A file that is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    path: PathBuf,
    inode: u64,
}

impl Mapped {
    /// The file that holds the code at an address.
    pub fn at(address: usize) -> Option<Self> {
        lines(&fs::read_to_string(MAPS).ok()?).find(|line| line.range.contains(&address)).map(|line| line.file)
    }

    /// Whether it is still there, and the loader would find another file under the same name: the one that belongs to the
    /// driver of now. While there is none under that name, there is nothing to load.
    pub fn stands_in_the_way(&self, library: &OsStr) -> bool {
        let Ok(maps) = fs::read_to_string(MAPS) else { return false };
        lines(&maps).any(|line| line.file == *self) && self.is_replaced(library)
    }

    fn is_replaced(&self, library: &OsStr) -> bool {
        let library = Path::new(library);
        // A bare name is looked up by the loader, which found it in this folder before.
        let bare = library.components().count() == 1;
        let path = if bare { self.path.with_file_name(library) } else { library.to_owned() };
        fs::metadata(path).is_ok_and(|file| file.ino() != self.inode)
    }
}

struct Line {
    range: std::ops::Range<usize>,
    file: Mapped,
}

/// The lines of `/proc/PID/maps` that are about files: `address-address perms offset device inode path`.
fn lines(maps: &str) -> impl Iterator<Item = Line> {
    maps.lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |digits| usize::from_str_radix(digits, 16).ok();
        let range = hex(start)?..hex(end)?;
        let inode = fields.nth(3)?.parse().ok().filter(|inode| *inode != 0)?;
        let path = fields.next()?.trim_start();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path).into();
        Some(Line { range, file: Mapped { path, inode } })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_in_the_file_that_it_was_loaded_from() {
        let maps = "\
            10-20 r-xp 00000000 08:01 7                    /usr/bin/x\n\
            20-30 rw-p 00000000 00:00 0 \n\
            30-40 r-xp 00000000 08:01 8                    /lib/a b.so (deleted)\n\
            40-50 rw-p 00000000 00:00 0                    [heap]\n";
        let found: Vec<_> = lines(maps).map(|line| (line.range, line.file.path, line.file.inode)).collect();
        assert_eq!(found, [(0x10..0x20, "/usr/bin/x".into(), 7), (0x30..0x40, "/lib/a b.so".into(), 8)]);
    }

    #[test]
    fn only_another_file_under_its_name_makes_a_mapped_one_stale() {
        let folder = tempfile::tempdir().unwrap();
        let [old, link] = ["libx.so.535", "libx.so.1"].map(|name| folder.path().join(name));
        fs::write(&old, "").unwrap();
        std::os::unix::fs::symlink("libx.so.535", &link).unwrap();
        let mapped = Mapped { path: old.clone(), inode: fs::metadata(&old).unwrap().ino() };
        let stale = || (mapped.is_replaced(OsStr::new("libx.so.1")), mapped.is_replaced(link.as_os_str()));
        assert_eq!(stale(), (false, false));
        fs::remove_file(&link).unwrap();
        assert_eq!(stale(), (false, false), "there is none now");
        fs::write(folder.path().join("libx.so.550"), "").unwrap();
        std::os::unix::fs::symlink("libx.so.550", &link).unwrap();
        assert_eq!(stale(), (true, true));
    }

    #[test]
    fn the_code_of_this_program_is_mapped_from_its_file() {
        let here = Mapped::at(lines as *const () as usize).unwrap();
        assert_eq!(here.path, std::env::current_exe().unwrap());
        assert!(!here.stands_in_the_way(here.path.as_os_str()));
    }
}
