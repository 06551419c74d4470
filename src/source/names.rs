//! Whether names in a configuration are those of somebody and something now: for `gpuwarden check`, which has time to wait.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::directory::Directory;
use super::nvml::{Nvml, Seen, Wanted};
use crate::snapshot::{Gpu, GpuSelector, Lookup};

/// How long the directory and the driver may take; who has not answered by then has not answered.
const PATIENCE: Duration = Duration::from_secs(5);
const GLANCE: Duration = Duration::from_millis(5);

/// The directory and the driver of this moment.
pub struct Known {
    directory: RefCell<Directory>,
    nvml_library: Option<PathBuf>,
    /// Once somebody wanted to know of one.
    cards: OnceCell<Result<Vec<Gpu>, String>>,
    /// How long to wait for the next answer of the directory. One that has been late is waited for no more: a file may
    /// name thousands.
    patience: Cell<Duration>,
}

impl Known {
    /// The driver is asked once a GPU is asked for. Fails only where the kernel gives no thread.
    pub fn ask(nvml_library: Option<PathBuf>) -> std::io::Result<Self> {
        let directory = RefCell::new(Directory::start()?);
        Ok(Self { directory, nvml_library, cards: OnceCell::new(), patience: Cell::new(PATIENCE) })
    }

    fn cards(&self) -> &Result<Vec<Gpu>, String> {
        self.cards.get_or_init(|| {
            let library = self.nvml_library.clone().map(PathBuf::into_os_string);
            let look = Nvml::new(library).look(Wanted::default(), PATIENCE);
            look.map(|look| look.cards.into_iter().map(named).collect())
        })
    }

    /// Why the driver showed no cards, if it was asked and did not.
    pub fn driver_fault(&self) -> Option<&str> {
        self.cards.get()?.as_ref().err().map(String::as_str)
    }

    /// Whether some name may be good only because the directory did not answer.
    pub fn directory_is_silent(&self) -> bool {
        self.patience.get().is_zero()
    }

    pub fn user(&self, name: &str) -> Lookup<()> {
        self.wait(|directory| forget(directory.uid_of(name)))
    }

    pub fn group(&self, name: &str) -> Lookup<()> {
        self.wait(|directory| forget(directory.gid_of(name)))
    }

    /// Known where the selector names at least one card, and a range only cards that are there.
    pub fn gpu(&self, selector: &GpuSelector) -> Lookup<()> {
        let Ok(cards) = self.cards() else { return Lookup::Pending };
        let fits = cards.iter().filter(|gpu| selector.matches(gpu).is_true()).count();
        let there = match selector {
            GpuSelector::Indexes(first, last) => fits as u64 == u64::from(last - first) + 1,
            GpuSelector::Uuid(_) | GpuSelector::PciBusId(_) => fits == 1,
            GpuSelector::Model(_) => fits > 0,
        };
        if there { Lookup::Known(()) } else { Lookup::Absent }
    }

    fn wait(&self, mut question: impl FnMut(&mut Directory) -> Lookup<()>) -> Lookup<()> {
        let mut directory = self.directory.borrow_mut();
        let began = Instant::now();
        loop {
            directory.take_answers();
            let lookup = question(&mut directory);
            if lookup != Lookup::Pending {
                return lookup;
            }
            if began.elapsed() >= self.patience.get() {
                self.patience.set(Duration::ZERO);
                return lookup;
            }
            thread::sleep(GLANCE);
        }
    }
}

fn forget<T>(lookup: Lookup<T>) -> Lookup<()> {
    match lookup {
        Lookup::Known(_) => Lookup::Known(()),
        Lookup::Absent => Lookup::Absent,
        Lookup::Pending => Lookup::Pending,
    }
}

fn named(seen: Seen) -> Gpu {
    Gpu { identity: seen.identity, readings: seen.readings, ..Gpu::named(seen.uuid, seen.index) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_directory_that_does_not_answer_is_waited_for_once() {
        let (_never, answer) = channel::<()>();
        let directory = Directory::with(move |_| answer.recv().map(|()| None).map_err(|error| error.to_string()));
        let patience = Duration::from_millis(100);
        let known = Known {
            directory: RefCell::new(directory.unwrap()),
            nvml_library: None,
            cards: Ok(Vec::new()).into(),
            patience: Cell::new(patience),
        };
        assert!(!known.directory_is_silent());
        let began = Instant::now();
        for number in 0..1000 {
            assert_eq!(known.user(&format!("user{number}")), Lookup::Pending);
        }
        assert!(known.directory_is_silent());
        assert!(began.elapsed() < 100 * patience, "{:?}", began.elapsed());
    }
}
