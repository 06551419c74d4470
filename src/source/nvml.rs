//! GPUs and the processes on them, as the driver tells it. It is asked by a thread of its own: a call may hang for
//! minutes, and a thread that is stuck in one is neither joined nor doubled, but waited for.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

mod raw;
mod error;
mod calls;
pub mod processes;
mod card;
mod work;
mod instances;
mod gpm;
mod topology;
mod session;

pub use session::{Holders, Look, Seen};

use calls::{Calls, Errors, Underway};
use session::Session;

/// The driver as the cycle sees it: it answers in time, or it does not.
pub struct Nvml {
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    underway: Underway,
    /// Whether an answer is still to come.
    waiting: bool,
    /// Failures so far, by call and error.
    pub errors: Errors,
}

/// Which groups of readings are asked for: what nobody wants costs no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Clocks, the performance state, and what holds the clocks down.
    pub clocks: bool,
    pub pcie: bool,
    pub nvlink: bool,
    /// Memory errors, retired pages and remapped rows.
    pub ecc: bool,
    pub gpm: bool,
    /// The rate on the PCIe link, which the driver takes 20 ms to measure for each direction.
    pub pcie_throughput: bool,
    /// What processes do besides running kernels.
    pub process_engines: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        let (clocks, pcie, nvlink, ecc, gpm) = (true, true, true, true, true);
        Self { clocks, pcie, nvlink, ecc, gpm, pcie_throughput: false, process_engines: false }
    }
}

enum Question {
    Look(Wanted),
    Holders,
}

struct Answer {
    errors: Errors,
    told: Told,
}

enum Told {
    Look(Result<Look, String>),
    Holders(Result<Vec<Holders>, String>),
}

impl Nvml {
    /// Starts the thread; the library is loaded at the first question.
    pub fn start(library: Option<OsString>) -> std::io::Result<Self> {
        let (questions, asked) = channel();
        let (telling, answers) = channel();
        let underway = Underway::default();
        let calls = Calls { underway: underway.clone(), errors: Errors::new() };
        thread::Builder::new()
            .name("nvml".into())
            .spawn(move || serve(Session::new(library, calls), asked, telling))?;
        Ok(Self { questions, answers, underway, waiting: false, errors: Errors::new() })
    }

    pub fn look(&mut self, wanted: Wanted, limit: Duration) -> Result<Look, String> {
        match self.ask(Question::Look(wanted), limit)? {
            Told::Look(look) => look,
            Told::Holders(_) => Err(CONFUSED.into()),
        }
    }

    pub fn holders(&mut self, limit: Duration) -> Result<Vec<Holders>, String> {
        match self.ask(Question::Holders, limit)? {
            Told::Holders(holders) => holders,
            Told::Look(_) => Err(CONFUSED.into()),
        }
    }

    fn ask(&mut self, question: Question, limit: Duration) -> Result<Told, String> {
        if self.waiting {
            // An answer that comes now is to a question of an earlier cycle: what it tells is no longer so.
            match self.answers.try_recv() {
                Ok(late) => self.errors = late.errors,
                Err(TryRecvError::Empty) => return Err(self.stuck()),
                Err(TryRecvError::Disconnected) => return Err(ENDED.into()),
            }
        }
        self.questions.send(question).map_err(|_| ENDED)?;
        self.waiting = true;
        match self.answers.recv_timeout(limit) {
            Ok(answer) => {
                self.waiting = false;
                self.errors = answer.errors;
                Ok(answer.told)
            }
            Err(RecvTimeoutError::Timeout) => Err(self.stuck()),
            Err(RecvTimeoutError::Disconnected) => Err(ENDED.into()),
        }
    }

    fn stuck(&self) -> String {
        match self.underway.read() {
            Some((call, since)) => format!("{call} has not returned for {}s", since.as_secs()),
            None => "the driver answers too slowly".into(),
        }
    }
}

const ENDED: &str = "the driver's thread has ended";
const CONFUSED: &str = "the driver's thread answered another question";

fn serve(mut session: Session, questions: Receiver<Question>, answers: Sender<Answer>) {
    for question in questions {
        let told = match question {
            Question::Look(wanted) => Told::Look(session.look(wanted)),
            Question::Holders => Told::Holders(session.holders()),
        };
        let errors = session.calls.errors.clone();
        if answers.send(Answer { errors, told }).is_err() {
            return;
        }
    }
}
