//! GPUs and the processes on them, as the driver tells it. It is asked by a thread of its own: a call may hang for
//! minutes, and a thread that is stuck in one is neither joined nor doubled, but waited for.

use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use nix::unistd::{Pid, gettid};

mod raw;
mod error;
mod calls;
pub mod processes;
mod card;
mod meter;
mod work;
mod xids;
mod mapped;
mod instances;
mod gpm;
mod topology;
mod session;

pub use session::{Holders, Look, Seen};

use calls::{Calls, Errors, Underway};
use mapped::Mapped;
use session::Session;

/// The driver as the cycle sees it: it answers in time, or it does not.
pub struct Nvml {
    library: OsString,
    worker: Worker,
    underway: Underway,
    /// Failures so far, by call and error.
    pub errors: Errors,
    /// Why the agent must start anew, where it must: another driver came, and the old one's library cannot be unloaded.
    pub stale: Option<String>,
}

/// Who asks the driver. There is one thread at a time.
enum Worker {
    Running(Running),
    /// A thread has ended, and the next is not started yet.
    Resting(Box<Session>),
    /// The thread has ended otherwise than it should.
    Gone,
}

struct Running {
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    thread: JoinHandle<Box<Session>>,
    id: Arc<OnceLock<Pid>>,
    /// Whether an answer is still to come.
    waiting: bool,
    /// Whether the thread is about to end.
    is_over: bool,
    mapped: Option<Mapped>,
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

/// Where the driver installs its library.
const LIBRARY: &str = "libnvidia-ml.so.1";

enum Question {
    Look(Wanted),
    Holders,
}

struct Answer {
    errors: Errors,
    mapped: Option<Mapped>,
    is_over: bool,
    stale: Option<String>,
    told: Told,
}

enum Told {
    Look(Result<Look, String>),
    Holders(Result<Vec<Holders>, String>),
}

impl Nvml {
    /// The library is loaded at the first question.
    pub fn new(library: Option<OsString>) -> Self {
        let library = library.unwrap_or_else(|| LIBRARY.into());
        let underway = Underway::default();
        let calls = Calls { underway: underway.clone(), errors: Errors::new() };
        let worker = Worker::Resting(Box::new(Session::new(library.clone(), calls)));
        Self { library, worker, underway, errors: Errors::new(), stale: None }
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
        let running = self.running()?;
        if running.waiting {
            // An answer that comes now is to a question of an earlier cycle: what it tells is no longer so.
            match running.answers.try_recv() {
                Ok(late) => {
                    running.waiting = false;
                    drop(self.take(late));
                    return self.ask(question, limit);
                }
                Err(TryRecvError::Empty) => return Err(self.stuck()),
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            }
        }
        if running.questions.send(question).is_err() {
            return Err(self.ended());
        }
        running.waiting = true;
        match running.answers.recv_timeout(limit) {
            Ok(answer) => {
                running.waiting = false;
                Ok(self.take(answer))
            }
            Err(RecvTimeoutError::Timeout) => Err(self.stuck()),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn take(&mut self, answer: Answer) -> Told {
        let Answer { errors, mapped, is_over, stale, told } = answer;
        (self.errors, self.stale) = (errors, stale);
        if let Worker::Running(running) = &mut self.worker {
            (running.mapped, running.is_over) = (mapped, is_over);
        }
        told
    }

    /// The thread to ask. One that has closed the driver's library makes room for another: what the library has to do
    /// when a thread ends must be done before it can be unloaded.
    fn running(&mut self) -> Result<&mut Running, String> {
        if let Worker::Running(Running { is_over: true, waiting: false, thread, .. }) = &self.worker {
            if !thread.is_finished() {
                return Err("the driver's library is being closed".into());
            }
            let Worker::Running(running) = std::mem::replace(&mut self.worker, Worker::Gone) else { unreachable!() };
            self.worker = running.thread.join().map_or(Worker::Gone, Worker::Resting);
        }
        if let Worker::Resting(_) = &self.worker {
            // In its box: a channel takes room for thirty-one of what goes through it at once.
            let (hand_over, taken) = channel();
            let running = start(taken).map_err(|error| format!("cannot start a thread: {error}"))?;
            if let Worker::Resting(session) = std::mem::replace(&mut self.worker, Worker::Running(running)) {
                // It waits for this.
                let _ = hand_over.send(session);
            }
        }
        match &mut self.worker {
            Worker::Running(running) => Ok(running),
            Worker::Resting(_) | Worker::Gone => Err(ENDED.into()),
        }
    }

    fn ended(&mut self) -> String {
        self.worker = Worker::Gone;
        ENDED.into()
    }

    fn stuck(&mut self) -> String {
        let Some((call, since)) = self.underway.read() else { return "the driver answers too slowly".into() };
        if since >= HOPELESS && self.stale.is_none() && self.is_stuck_in_a_replaced_library() {
            self.stale = Some(format!("the driver was exchanged while {call} of the old one hangs"));
        }
        format!("{call} has not returned for {}s", since.as_secs())
    }

    /// Whether a call of a driver hangs that was exchanged meanwhile, and the agent could start anew: the kernel waits for
    /// all threads to end first, and one in uninterruptible sleep does not.
    fn is_stuck_in_a_replaced_library(&self) -> bool {
        let Worker::Running(Running { id, mapped: Some(mapped), .. }) = &self.worker else { return false };
        let Some(thread) = id.get() else { return false };
        mapped.stands_in_the_way(&self.library) && can_be_ended(*thread)
    }
}

/// How long a call hangs before anybody looks whether its library is still the one.
const HOPELESS: Duration = Duration::from_secs(10);

const ENDED: &str = "the driver's thread has ended";
const CONFUSED: &str = "the driver's thread answered another question";

fn start(session: Receiver<Box<Session>>) -> io::Result<Running> {
    let (questions, asked) = channel();
    let (telling, answers) = channel();
    let id = Arc::new(OnceLock::new());
    let name = id.clone();
    let run = move || {
        let _ = name.set(gettid());
        let mut session = session.recv().expect("it is handed over at once");
        serve(&mut session, asked, telling);
        session
    };
    let thread = thread::Builder::new().name("nvml".into()).spawn(run)?;
    Ok(Running { questions, answers, thread, id, waiting: false, is_over: false, mapped: None })
}

fn serve(session: &mut Session, questions: Receiver<Question>, answers: Sender<Answer>) {
    session.resume();
    for question in questions {
        let told = match question {
            Question::Look(wanted) => Told::Look(session.look(wanted)),
            Question::Holders => Told::Holders(session.holders()),
        };
        let answer = Answer {
            errors: session.calls.errors.clone(),
            mapped: session.mapped.clone(),
            is_over: session.is_over,
            stale: session.stale.clone(),
            told,
        };
        if answers.send(answer).is_err() || session.is_over {
            return;
        }
    }
}

/// Whether a thread of this process reacts to signals: its state is not D (proc_pid_stat(5)).
fn can_be_ended(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('D')))
}
