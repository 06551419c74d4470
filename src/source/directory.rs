//! Names of users and groups, from the directory (NSS). It may take seconds or never answer, so it is asked by a thread
//! of its own and the cycle takes what has come.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::snapshot::{Group, Lookup, User};
use crate::units::{Gid, Uid};

/// How long an answer is believed before it is asked for again.
const KNOWN_FOR: Duration = Duration::from_secs(600);
const ABSENT_FOR: Duration = Duration::from_secs(60);
/// How long after a failure the question is asked again.
const FAILED_FOR: Duration = Duration::from_secs(15);
/// Longer than a lookup takes that will still be answered.
const STUCK: Duration = Duration::from_secs(30);
/// What nobody has asked for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3600);
/// For how long one who was known and now is not counts as known, and a group that somebody was in and now is not counts
/// as his: a directory that is down says of everybody that it does not know him.
const DOUBTED_FOR: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    User(Uid),
    UserNamed(String),
    GroupNamed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    User { name: Arc<str>, groups: Vec<Group> },
    Uid(Uid),
    Gid(Gid),
}

/// The directory's answer, that it has none, or that it failed.
pub type Reply = Result<Option<Answer>, String>;

struct Told {
    question: Question,
    reply: Reply,
    took: Duration,
}

#[derive(Debug, Clone)]
struct Entry {
    lookup: Lookup<Answer>,
    /// When it was last known for certain.
    known: Option<Instant>,
    /// When to ask again; `None` while the question is under way.
    again: Option<Instant>,
    wanted: Instant,
}

pub struct Directory {
    questions: Sender<Question>,
    answers: Receiver<Told>,
    cache: BTreeMap<Question, Entry>,
    /// Questions that were put and not answered, and since when the oldest waits.
    waiting: usize,
    heard: Instant,
    pub health: Health,
}

/// How the directory fared.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Health {
    pub fault: Option<String>,
    /// Whether it has answered since this was last asked.
    pub answered: bool,
    pub took: Option<Duration>,
    pub errors: u64,
}

impl Entry {
    fn was_known_lately(&self, now: Instant) -> bool {
        self.known.is_some_and(|known| now.duration_since(known) < DOUBTED_FOR)
    }

    /// Whether somebody has lost groups: getgrouplist(3) reports those that it found as all, also while the directory
    /// behind some of them is down.
    fn is_doubted(&self, answer: &Answer, now: Instant) -> bool {
        let (Lookup::Known(Answer::User { groups: before, .. }), Answer::User { groups: after, .. }) =
            (&self.lookup, answer)
        else {
            return false;
        };
        self.was_known_lately(now) && before.iter().any(|group| after.iter().all(|other| other.gid != group.gid))
    }
}

impl Directory {
    pub fn start() -> std::io::Result<Self> {
        Self::with(ask_nss)
    }

    /// A directory that answers as told.
    pub fn with(resolve: impl Fn(&Question) -> Reply + Send + 'static) -> std::io::Result<Self> {
        let (questions, asked) = channel::<Question>();
        let (telling, answers) = channel();
        thread::Builder::new().name("directory".into()).spawn(move || {
            for question in asked {
                let began = Instant::now();
                let reply = resolve(&question);
                if telling.send(Told { question, reply, took: began.elapsed() }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            questions,
            answers,
            cache: BTreeMap::new(),
            waiting: 0,
            heard: Instant::now(),
            health: Health::default(),
        })
    }

    /// Takes what the directory has said since. Never waits.
    pub fn take_answers(&mut self) {
        self.health.answered = false;
        loop {
            match self.answers.try_recv() {
                Ok(told) => self.take(told),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.health.fault = Some("the directory's thread has ended".into());
                    break;
                }
            }
        }
        let silent = self.heard.elapsed();
        if self.waiting > 0 && silent > STUCK {
            self.health.fault = Some(format!("a lookup has not been answered for {}s", silent.as_secs()));
        }
        self.cache.retain(|_, entry| entry.again.is_none() || entry.wanted.elapsed() < FORGOTTEN);
    }

    fn take(&mut self, Told { question, reply, took }: Told) {
        let now = Instant::now();
        self.waiting = self.waiting.saturating_sub(1);
        self.heard = now;
        self.health.took = Some(took);
        let Some(entry) = self.cache.get_mut(&question) else { return };
        match reply {
            Ok(Some(answer)) if entry.is_doubted(&answer, now) => entry.again = Some(now + ABSENT_FOR),
            Ok(Some(answer)) => {
                *entry =
                    Entry { lookup: Lookup::Known(answer), known: Some(now), again: Some(now + KNOWN_FOR), ..*entry };
            }
            Ok(None) => {
                entry.again = Some(now + ABSENT_FOR);
                if !entry.was_known_lately(now) {
                    entry.lookup = Lookup::Absent;
                }
            }
            Err(failure) => {
                entry.again = Some(now + FAILED_FOR);
                self.health.errors += 1;
                self.health.fault = Some(failure);
                return;
            }
        }
        self.health.answered = true;
        self.health.fault = None;
    }

    pub fn user(&mut self, uid: Uid) -> User {
        match self.look_up(Question::User(uid)) {
            Lookup::Known(Answer::User { name, groups }) => {
                User { uid, name: Lookup::Known(name), groups: Lookup::Known(groups) }
            }
            Lookup::Absent => User { uid, name: Lookup::Absent, groups: Lookup::Absent },
            Lookup::Known(_) | Lookup::Pending => User { uid, name: Lookup::Pending, groups: Lookup::Pending },
        }
    }

    pub fn uid_of(&mut self, name: &str) -> Lookup<Uid> {
        match self.look_up(Question::UserNamed(name.to_owned())) {
            Lookup::Known(Answer::Uid(uid)) => Lookup::Known(uid),
            Lookup::Absent => Lookup::Absent,
            Lookup::Known(_) | Lookup::Pending => Lookup::Pending,
        }
    }

    pub fn gid_of(&mut self, name: &str) -> Lookup<Gid> {
        match self.look_up(Question::GroupNamed(name.to_owned())) {
            Lookup::Known(Answer::Gid(gid)) => Lookup::Known(gid),
            Lookup::Absent => Lookup::Absent,
            Lookup::Known(_) | Lookup::Pending => Lookup::Pending,
        }
    }

    /// Whether an answer is still to come.
    #[cfg(test)]
    pub fn is_asked(&self) -> bool {
        self.waiting > 0
    }

    /// What is known now. Whatever is new or old is asked for, once, and what was known serves until then.
    fn look_up(&mut self, question: Question) -> Lookup<Answer> {
        let now = Instant::now();
        let new = Entry { lookup: Lookup::Pending, known: None, again: Some(now), wanted: now };
        let entry = self.cache.entry(question.clone()).or_insert(new);
        entry.wanted = now;
        if entry.again.is_some_and(|again| again <= now) && self.questions.send(question).is_ok() {
            entry.again = None;
            if self.waiting == 0 {
                self.heard = now;
            }
            self.waiting += 1;
        }
        entry.lookup.clone()
    }
}

fn ask_nss(question: &Question) -> Reply {
    let failed = |call: &str, what: &dyn std::fmt::Display, error: Errno| format!("{call}({what}): {}", error.desc());
    match question {
        Question::User(uid) => {
            let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid.0));
            let Some(user) = user.map_err(|error| failed("getpwuid", uid, error))? else { return Ok(None) };
            let name = CString::new(user.name.as_str()).map_err(|error| error.to_string())?;
            let mut gids = nix::unistd::getgrouplist(&name, user.gid)
                .map_err(|error| failed("getgrouplist", &user.name, error))?;
            gids.sort_by_key(|gid| *gid != user.gid);
            gids.dedup();
            let groups: Result<Vec<Group>, String> = gids.into_iter().map(group).collect();
            Ok(Some(Answer::User { name: user.name.into(), groups: groups? }))
        }
        Question::UserNamed(name) => nix::unistd::User::from_name(name)
            .map(|user| user.map(|user| Answer::Uid(Uid(user.uid.as_raw()))))
            .map_err(|error| failed("getpwnam", name, error)),
        Question::GroupNamed(name) => nix::unistd::Group::from_name(name)
            .map(|group| group.map(|group| Answer::Gid(Gid(group.gid.as_raw()))))
            .map_err(|error| failed("getgrnam", name, error)),
    }
}

fn group(gid: nix::unistd::Gid) -> Result<Group, String> {
    let found = nix::unistd::Group::from_gid(gid).map_err(|error| format!("getgrgid({gid}): {}", error.desc()))?;
    let name = found.map_or_else(|| gid.to_string(), |group| group.name);
    Ok(Group { gid: Gid(gid.as_raw()), name: name.into() })
}

#[cfg(test)]
mod tests;
