use super::*;
use crate::policy::Person;
use rustix::fs::{chmod, chown};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::ffi::CString;

const USER: Uid = Uid(4242);

/// A pseudo-terminal of this test, and a `/proc` in which it controls a process.
pub struct Desk {
    screen: OwnedFd,
    /// Kept open: a terminal that nobody has open hangs up.
    _keyboard: OwnedFd,
    path: CString,
    proc: tempfile::TempDir,
    owner: Uid,
}

impl Desk {
    pub fn new() -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let path = ptsname(&screen, Vec::new()).unwrap();
        let keyboard = open(path.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let mut raw = tcgetattr(&keyboard).unwrap();
        raw.make_raw();
        tcsetattr(&keyboard, OptionalActions::Now, &raw).unwrap();
        let owner = if rustix::process::geteuid().is_root() { USER } else { Uid(rustix::process::geteuid().as_raw()) };
        let desk = Self { screen, _keyboard: keyboard, path, proc: tempfile::tempdir().unwrap(), owner };
        desk.mode(0o620);
        desk.belongs_to(owner);
        desk.works(7, owner, desk.device());
        desk
    }

    pub fn owner(&self) -> Uid {
        self.owner
    }

    pub fn proc(&self) -> &std::path::Path {
        self.proc.path()
    }

    fn mode(&self, mode: u32) {
        chmod(self.path.as_c_str(), Mode::from_raw_mode(mode)).unwrap();
    }

    fn belongs_to(&self, uid: Uid) {
        if rustix::process::geteuid().is_root() {
            chown(self.path.as_c_str(), Some(rustix::fs::Uid::from_raw(uid.0)), None).unwrap();
        }
    }

    /// As the kernel packs it.
    fn device(&self) -> u32 {
        let number: u32 = self.path.to_str().unwrap().rsplit('/').next().unwrap().parse().unwrap();
        (number & 0xff) | 136 << 8 | (number & 0xfff00) << 12
    }

    /// A process of this user on that terminal.
    fn works(&self, pid: i32, uid: Uid, device: u32) {
        let dir = self.proc.path().join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        let stat = format!("{pid} (sh) S 1 {pid} {pid} {device} {pid} 0 0 0 0 0 0 0 0 0 20 0 1 0 9 0 0\n");
        fs::write(dir.join("stat"), stat).unwrap();
        let masks = "SigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n";
        fs::write(dir.join("status"), format!("Name:\tsh\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n{masks}")).unwrap();
    }

    fn deliver(&self, text: &str) -> Delivery {
        let terminal = Terminal::new(Procfs::new(self.proc.path()), "/dev");
        terminal.deliver(&terminal.places(), &Recipient::Person(Person { uid: self.owner, name: "bob".into() }), text)
    }

    pub fn screen(&self) -> String {
        rustix::io::ioctl_fionbio(&self.screen, true).unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = rustix::io::read(&self.screen, &mut buffer) {
            seen.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(seen).unwrap()
    }
}

fn why(delivery: Delivery) -> String {
    match delivery {
        Delivery::Undeliverable(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_appears_on_the_terminal_with_line_ends_for_raw_mode() {
    let desk = Desk::new();
    assert_eq!(desk.deliver("one\ntwo\n"), Delivery::Delivered);
    assert_eq!(desk.screen(), "\r\n\u{7}one\r\ntwo\r\n\r\n");
}

#[test]
fn a_terminal_with_many_processes_gets_one_message() {
    let desk = Desk::new();
    desk.works(8, desk.owner, desk.device());
    assert_eq!(desk.deliver("x"), Delivery::Delivered);
    assert_eq!(desk.screen(), "\r\n\u{7}x\r\n");
}

#[test]
fn mesg_n_is_respected() {
    let desk = Desk::new();
    desk.mode(0o600);
    assert_eq!(why(desk.deliver("x")), "terminal: its owner takes no messages (mesg n)");
    assert_eq!(desk.screen(), "");
    desk.mode(0o620);
    assert_eq!(desk.deliver("x"), Delivery::Delivered);
}

#[test]
fn a_terminal_of_somebody_else_is_left_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a terminal away");
        return;
    }
    let desk = Desk::new();
    desk.belongs_to(Uid(USER.0 + 1));
    assert_eq!(why(desk.deliver("x")), "terminal: it belongs to somebody else");
    assert_eq!(desk.screen(), "");
}

#[test]
fn a_process_of_somebody_else_lends_nobody_its_terminal() {
    let desk = Desk::new();
    desk.works(7, Uid(desk.owner.0 + 1), desk.device());
    assert_eq!(why(desk.deliver("x")), "no terminal");
}

/// Until it takes no byte more, even after the kernel's worker has had time to move text on and make room.
fn fill_up(terminal: &OwnedFd) {
    let mut took_some = true;
    while took_some {
        took_some = false;
        while rustix::io::write(terminal, b"x").is_ok() {
            took_some = true;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_terminal_that_nobody_reads_is_not_waited_for() {
    let desk = Desk::new();
    let fill = open(desk.path.as_c_str(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty()).unwrap();
    fill_up(&fill);
    assert_eq!(why(desk.deliver("lost")), "terminal: it takes no more text");
    assert!(!desk.screen().contains("lost"));
    assert_eq!(desk.deliver("x"), Delivery::Delivered);
}

#[test]
fn a_stopped_terminal_is_not_waited_for() {
    let desk = Desk::new();
    rustix::termios::tcflow(&desk._keyboard, rustix::termios::Action::OOff).unwrap();
    assert_eq!(why(desk.deliver("lost")), "terminal: it takes no more text");
    rustix::termios::tcflow(&desk._keyboard, rustix::termios::Action::OOn).unwrap();
    assert_eq!(desk.deliver("x"), Delivery::Delivered);
}

#[test]
fn one_terminal_that_takes_it_is_enough() {
    let (closed, open) = (Desk::new(), Desk::new());
    closed.mode(0o600);
    open.works(8, open.owner, closed.device());
    assert_eq!(open.deliver("x"), Delivery::Delivered);
    assert_eq!((closed.screen(), open.screen()), (String::new(), "\r\n\u{7}x\r\n".into()));
}

#[test]
fn of_many_terminals_those_that_are_closed_do_not_count() {
    let desks: Vec<Desk> = (0..MOST + 2).map(|_| Desk::new()).collect();
    let (last, others) = desks.split_last().unwrap();
    for (desk, pid) in others.iter().zip(100..) {
        desk.mode(0o600);
        last.works(pid, last.owner, desk.device());
    }
    assert_eq!(last.deliver("x"), Delivery::Delivered);
    others.iter().for_each(|desk| desk.mode(0o620));
    last.deliver("y");
    assert_eq!(desks.iter().filter(|desk| desk.screen().contains('y')).count(), MOST);
}

#[test]
fn what_is_no_terminal_is_not_written_to() {
    let desk = Desk::new();
    let dev = tempfile::tempdir().unwrap();
    fs::create_dir(dev.path().join("pts")).unwrap();
    let number = desk.path.to_str().unwrap().rsplit('/').next().unwrap();
    let place = dev.path().join("pts").join(number);
    let terminal = Terminal::new(Procfs::new(desk.proc.path()), dev.path());
    let to = Recipient::Person(Person { uid: desk.owner, name: "bob".into() });
    fs::write(&place, "").unwrap();
    assert_eq!(why(terminal.deliver(&terminal.places(), &to, "x")), "terminal: it is another device by now");
    assert_eq!(fs::read(&place).unwrap(), b"");
    fs::remove_file(&place).unwrap();
    std::os::unix::fs::symlink(desk.path.to_str().unwrap(), &place).unwrap();
    assert!(why(terminal.deliver(&terminal.places(), &to, "x")).starts_with("terminal: cannot open it"));
    assert_eq!(desk.screen(), "");
}

#[test]
fn one_look_tells_where_everybody_works() {
    let desk = Desk::new();
    let other = Uid(desk.owner.0 + 1);
    desk.works(50, other, 0x8801);
    desk.works(51, other, 0);
    let places = Terminal::new(Procfs::new(desk.proc.path()), "/dev").places().unwrap();
    assert_eq!(places[&other], BTreeSet::from([0x8801]));
    assert!(places[&desk.owner].contains(&desk.device()));
}

#[test]
fn a_user_without_a_terminal_cannot_be_reached() {
    let desk = Desk::new();
    desk.works(7, desk.owner, 0);
    assert_eq!(why(desk.deliver("x")), "no terminal");
}

#[test]
fn device_numbers_are_unpacked_as_the_kernel_packs_them() {
    assert_eq!(unpacked(0x8801), (136, 1));
    assert_eq!(unpacked(0x0100_8802), (136, 0x1002));
    assert_eq!(unpacked(0x0401), (4, 1));
}
