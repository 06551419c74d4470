//! The arguments of processes, read by a thread of its own. The kernel takes them from the memory of the process, and waits
//! for whoever has locked that (`get_mm_cmdline`, `fs/proc/base.c`): a process that is stuck in a driver can hold the
//! lock for ever, and would stop the cycle as it stops ps(1).

use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::command;

/// It is a matter of microseconds, or never.
const PATIENCE: Duration = Duration::from_millis(50);

/// Who reads them. A thread that is stuck is neither joined nor doubled: until it goes on, nobody's arguments are known.
#[derive(Debug, Default)]
pub struct Arguments {
    reader: Option<Reader>,
}

#[derive(Debug)]
struct Reader {
    files: Sender<File>,
    lines: Receiver<Option<String>>,
    waiting: bool,
}

impl Arguments {
    /// What is in a `cmdline`, with secrets masked; `None` where that is nothing, or not known.
    pub fn of(&mut self, cmdline: File) -> Option<String> {
        if self.reader.is_none() {
            self.reader = Reader::start();
        }
        let reader = self.reader.as_mut()?;
        if reader.waiting {
            // What comes now was asked for another process.
            reader.lines.try_recv().ok()?;
            reader.waiting = false;
        }
        reader.files.send(cmdline).ok()?;
        let told = reader.lines.recv_timeout(PATIENCE);
        reader.waiting = told.is_err();
        if reader.waiting {
            tracing::warn!("a process is stuck and its arguments cannot be read: those of others are not known either");
        }
        told.ok().flatten()
    }
}

impl Reader {
    fn start() -> Option<Self> {
        let (files, to_read) = channel::<File>();
        let (tell, lines) = channel();
        let read = move || to_read.into_iter().map(read).all(|line| tell.send(line).is_ok());
        thread::Builder::new().name("arguments".into()).spawn(read).ok()?;
        Some(Self { files, lines, waiting: false })
    }
}

fn read(cmdline: File) -> Option<String> {
    // One byte more tells that it goes on.
    let mut text = Vec::new();
    cmdline.take(command::READ as u64 + 1).read_to_end(&mut text).ok()?;
    Some(command::masked(&text)).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn one_that_cannot_be_read_costs_one_wait_and_is_not_taken_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let [stuck, well] = ["stuck", "well"].map(|name| folder.path().join(name));
        rustix::fs::mkfifoat(rustix::fs::CWD, &stuck, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        fs::write(&well, "sleep\x007\0").unwrap();
        // Open at both ends, so that opening it waits for nobody, and reading it for us.
        let mut held = File::options().read(true).write(true).open(&stuck).unwrap();
        let file = || File::open(&well).unwrap();
        let mut arguments = Arguments::default();
        assert_eq!(arguments.of(file()).as_deref(), Some("sleep 7"));
        assert_eq!(arguments.of(held.try_clone().unwrap()), None);
        let began = std::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(arguments.of(file()), None);
        }
        assert!(began.elapsed() < PATIENCE * 50);
        std::io::Write::write_all(&mut held, &[b'x'; command::READ + 1]).unwrap();
        let line = (0..1000).find_map(|_| {
            thread::sleep(Duration::from_millis(5));
            arguments.of(file())
        });
        assert_eq!(line.as_deref(), Some("sleep 7"));
    }
}
