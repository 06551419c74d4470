use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

/// A directory that answers each question when it is told to, and counts them.
fn directory(reply: impl Fn(&Question) -> Reply + Send + 'static) -> (Directory, mpsc::Sender<()>, Arc<AtomicUsize>) {
    let (go, wait) = mpsc::channel();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let directory = Directory::with(move |question| {
        counter.fetch_add(1, Ordering::SeqCst);
        wait.recv().ok();
        reply(question)
    });
    (directory.unwrap(), go, asked)
}

fn until_heard(directory: &mut Directory, answers: usize) {
    for _ in 0..answers {
        let told = directory.answers.recv_timeout(Duration::from_secs(10)).unwrap();
        directory.take(told);
    }
}

fn alice() -> Answer {
    Answer::User { name: "alice".into(), groups: vec![Group { gid: Gid(7), name: "vision".into() }] }
}

#[test]
fn two_hundred_processes_of_one_unknown_uid_cost_one_lookup_and_no_time() {
    let (mut directory, go, asked) = directory(|_| Ok(None));
    let began = Instant::now();
    for _ in 0..200 {
        directory.take_answers();
        let user = directory.user(Uid(60001));
        assert_eq!((user.name.clone(), user.label()), (Lookup::Pending, "60001".into()));
    }
    assert!(began.elapsed() < Duration::from_secs(1));

    go.send(()).unwrap();
    until_heard(&mut directory, 1);
    for _ in 0..200 {
        assert_eq!(directory.user(Uid(60001)).name, Lookup::Absent);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn names_and_groups_are_known_once_the_directory_has_spoken() {
    let (mut directory, go, _) = directory(|question| {
        Ok(Some(match question {
            Question::User(_) => alice(),
            Question::UserNamed(_) => Answer::Uid(Uid(1000)),
            Question::GroupNamed(_) => Answer::Gid(Gid(7)),
        }))
    });
    assert_eq!(directory.uid_of("alice"), Lookup::Pending);
    assert_eq!(directory.gid_of("vision"), Lookup::Pending);
    assert_eq!(directory.user(Uid(1000)).groups, Lookup::Pending);
    (0..3).for_each(|_| go.send(()).unwrap());
    until_heard(&mut directory, 3);
    assert_eq!(directory.uid_of("alice"), Lookup::Known(Uid(1000)));
    assert_eq!(directory.gid_of("vision"), Lookup::Known(Gid(7)));
    let user = directory.user(Uid(1000));
    assert_eq!((user.label(), user.groups.known().unwrap()[0].gid), ("alice".into(), Gid(7)));
    assert!(directory.health.answered && directory.health.fault.is_none());
}

#[test]
fn a_failure_is_no_answer_and_what_was_known_serves_on() {
    let up = Arc::new(AtomicUsize::new(0));
    let turn = up.clone();
    let (mut directory, go, _) = directory(move |_| match turn.fetch_add(1, Ordering::SeqCst) {
        0 => Err("getpwuid(1000): connection refused".into()),
        1 => Ok(Some(alice())),
        // A directory that is down knows nobody.
        _ => Ok(None),
    });
    let again = |directory: &mut Directory| {
        directory.cache.values_mut().for_each(|entry| entry.again = Some(Instant::now()));
        directory.user(Uid(1000));
        go.send(()).unwrap();
        until_heard(directory, 1);
        directory.user(Uid(1000)).name
    };
    assert_eq!(directory.user(Uid(1000)).name, Lookup::Pending);
    go.send(()).unwrap();
    until_heard(&mut directory, 1);
    assert_eq!(directory.user(Uid(1000)).name, Lookup::Pending);
    assert_eq!((directory.health.errors, directory.health.fault.is_some()), (1, true));

    assert_eq!(again(&mut directory), Lookup::Known("alice".into()));
    assert_eq!(again(&mut directory), Lookup::Known("alice".into()));
    // Not for ever.
    directory.cache.values_mut().for_each(|entry| entry.known = None);
    assert_eq!(again(&mut directory), Lookup::Absent);
}

#[test]
fn a_group_that_goes_missing_is_doubted_for_a_while() {
    let up = Arc::new(AtomicUsize::new(0));
    let turn = up.clone();
    let (mut directory, go, _) = directory(move |_| {
        let alone = Answer::User { name: "alice".into(), groups: Vec::new() };
        Ok(Some(if turn.fetch_add(1, Ordering::SeqCst) == 0 { alice() } else { alone }))
    });
    let mut groups = |before: &mut dyn FnMut(&mut Directory)| {
        directory.cache.values_mut().for_each(|entry| entry.again = Some(Instant::now()));
        before(&mut directory);
        directory.user(Uid(1000));
        go.send(()).unwrap();
        until_heard(&mut directory, 1);
        directory.user(Uid(1000)).groups.known().unwrap().len()
    };
    assert_eq!(groups(&mut |_| ()), 1);
    assert_eq!(groups(&mut |_| ()), 1);
    let long_ago = &mut |directory: &mut Directory| directory.cache.values_mut().for_each(|entry| entry.known = None);
    assert_eq!(groups(long_ago), 0);
}

#[test]
fn root_is_in_every_directory() {
    assert_eq!(ask_nss(&Question::UserNamed("root".into())), Ok(Some(Answer::Uid(Uid(0)))));
    let Ok(Some(Answer::User { name, groups })) = ask_nss(&Question::User(Uid(0))) else { panic!() };
    assert_eq!((&*name, groups[0].gid), ("root", Gid(0)));
    assert_eq!(ask_nss(&Question::UserNamed("nobody-has-this-name".into())), Ok(None));
}
