//! A pseudo-terminal, and what arrives there.

use super::wait::{eventually, uptime};
use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::unistd::Uid;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

/// What was written to a terminal, with the moment at which each piece was there.
pub struct Terminal {
    pub path: PathBuf,
    slave: File,
    arrived: Arc<Mutex<Vec<(f64, String)>>>,
}

impl Terminal {
    /// A new one that belongs to somebody, with `mesg y`.
    pub fn open(owner: Option<u32>) -> Self {
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = PathBuf::from(ptsname_r(&master).unwrap());
        let slave = File::options().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(&path).unwrap();
        if let Some(uid) = owner {
            nix::unistd::chown(&path, Some(Uid::from_raw(uid)), None).unwrap();
        }
        fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        let arrived = Arc::default();
        thread::spawn({
            let arrived = Arc::clone(&arrived);
            move || listen(master, &arrived)
        });
        Self { path, slave, arrived }
    }

    pub fn slave(&self) -> File {
        self.slave.try_clone().unwrap()
    }

    pub fn text(&self) -> String {
        self.arrived.lock().unwrap().iter().map(|(_, text)| text.as_str()).collect()
    }

    /// How often this has arrived.
    pub fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Waits until something arrives that says this, and tells when it did, in seconds since boot.
    #[track_caller]
    pub fn said(&self, text: &str) -> f64 {
        eventually(&format!("{text:?} arrives at {}", self.path.display()), || {
            let mut so_far = String::new();
            self.arrived.lock().unwrap().iter().find_map(|(at, piece)| {
                so_far += piece;
                so_far.contains(text).then_some(*at)
            })
        })
    }
}

/// Ends when nobody has the terminal open any more.
fn listen(mut master: PtyMaster, arrived: &Mutex<Vec<(f64, String)>>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = master.read(&mut buffer) {
        // A line that is ended for raw mode is ended once more by a terminal that is not in raw mode.
        let text = String::from_utf8_lossy(&buffer[..length]).replace('\r', "");
        arrived.lock().unwrap().push((uptime(), text));
    }
}
