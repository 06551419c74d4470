use super::*;

fn forged(files: &[(&str, &str)]) -> (tempfile::TempDir, Procfs) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let procfs = Procfs::new(root.path());
    (root, procfs)
}

const INIT: &str = "1 (systemd) S 0 1 1 0 -1 4194560 0 0 0 0 5 7 0 0 20 0 1 0 2 0 0";

#[test]
fn a_process_that_is_gone_is_no_error() {
    let (_root, procfs) = forged(&[("1/stat", INIT)]);
    assert!(matches!(procfs.stat(7), Ok(None)));
    assert!(matches!(procfs.status(7), Ok(None)));
    assert!(matches!(procfs.executable(7), Ok(None)));
    assert!(matches!(procfs.dir(7), Ok(None)));
    assert_eq!(procfs.stat(1).unwrap().unwrap().name, "systemd");
}

#[test]
fn a_file_that_is_not_understood_is_an_error() {
    let (_root, procfs) = forged(&[("7/stat", "garbage")]);
    assert_eq!(procfs.stat(7).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn processes_are_hidden_only_from_who_cannot_see_pid_1() {
    let mounts = ("mounts", "proc /proc proc rw,hidepid=2 0 0\n");
    assert!(forged(&[mounts]).1.hides_processes());
    assert!(!forged(&[mounts, ("1/stat", INIT)]).1.hides_processes());
    assert!(!forged(&[("mounts", "proc /proc proc rw 0 0\n")]).1.hides_processes());
}

#[test]
fn wsl_is_known_by_its_kernel() {
    assert!(forged(&[("sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")]).1.is_wsl());
    assert!(!forged(&[("sys/kernel/osrelease", "6.8.0-48-generic\n")]).1.is_wsl());
    assert!(!forged(&[]).1.is_wsl());
}

#[test]
fn an_executable_that_was_replaced_keeps_its_path() {
    let (root, procfs) = forged(&[("7/x", ""), ("bin/sshd (deleted)", "")]);
    let file = root.path().join("bin/sshd (deleted)");
    std::os::unix::fs::symlink(&file, root.path().join("7/exe")).unwrap();
    // It is there, so this is its name.
    let there = procfs.executable(7).unwrap().unwrap();
    assert_eq!((there.name(), there.deleted), ("sshd (deleted)", false));

    let running = fs::File::open(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let attributes = statx(running, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
    let gone = executable(file.as_os_str(), &attributes);
    assert_eq!((gone.name(), gone.deleted), ("sshd", true));
}

#[test]
fn the_line_of_ancestors_ends_at_pid_1() {
    let child = |pid: i32, parent: i32| format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9 0 0");
    let (_root, procfs) =
        forged(&[("1/stat", INIT), ("8/stat", &child(8, 1)), ("9/stat", &child(9, 8)), ("5/stat", &child(5, 5))]);
    assert_eq!(procfs.ancestry(9), [9, 8, 1]);
    assert_eq!(procfs.ancestry(5).len(), 1024);
}

#[test]
fn the_agent_finds_itself_in_the_real_proc() {
    let procfs = Procfs::new("/proc");
    let pid = std::process::id() as i32;
    let stat = procfs.stat(pid).unwrap().unwrap();
    assert_eq!(stat.pid, pid);
    assert_eq!(procfs.status(pid).unwrap().unwrap().uid.0, nix::unistd::getuid().as_raw());
    assert!(procfs.executable(pid).unwrap().is_some());
    let [by_pid, own] = [procfs.dir(pid), procfs.own()].map(|dir| dir.unwrap().unwrap());
    assert_eq!(by_pid.namespace("pid").unwrap(), own.namespace("pid").unwrap());
    assert_eq!(own.effective_uid().unwrap().unwrap().0, nix::unistd::geteuid().as_raw());
    assert!(procfs.pid_max() > 300);
}
