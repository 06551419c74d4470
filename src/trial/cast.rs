//! Who takes part in a test: people and groups with invented ids, for no directory is asked.

use std::collections::{BTreeMap, BTreeSet};

use super::script::Script;
use crate::policy::check::{Complaint, steps};
use crate::snapshot::{Grantee, Group, Lookup, User};
use crate::source::assignment::entry::{Entry, To};
use crate::units::{Gid, Uid};

/// Below are the ids of services, which many a site exempts.
const FIRST_INVENTED: u32 = 2001;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cast {
    people: BTreeMap<String, Uid>,
    /// Owners without a name.
    nameless: BTreeSet<Uid>,
    /// Gid and members.
    groups: BTreeMap<String, (Gid, Vec<String>)>,
}

impl Cast {
    /// Everybody whom the script names.
    pub fn of(script: &Script) -> Result<Self, Complaint> {
        let mut cast = Self { people: given_uids(script)?, ..Self::default() };
        let nameless = script.processes.iter().filter(|actor| actor.user.is_none()).filter_map(|actor| actor.uid);
        cast.nameless = nameless.filter(|uid| !cast.people.values().any(|taken| taken == uid)).collect();
        names(script).for_each(|name| cast.invite(name));
        for (gid, (name, members)) in (FIRST_INVENTED..).zip(&script.groups) {
            cast.groups.insert(name.clone(), (Gid(gid), members.clone()));
        }
        Ok(cast)
    }

    fn invite(&mut self, name: &str) {
        if self.people.contains_key(name) {
            return;
        }
        let free = |uid: &Uid| !self.nameless.contains(uid) && !self.people.values().any(|taken| taken == uid);
        let invented = if name == "root" { Some(Uid(0)) } else { (FIRST_INVENTED..).map(Uid).find(free) };
        self.people.extend(invented.map(|uid| (name.to_owned(), uid)));
    }

    pub fn uid(&self, name: &str) -> Option<Uid> {
        self.people.get(name).copied()
    }

    pub fn has_group(&self, name: &str) -> bool {
        self.groups.contains_key(name)
    }

    /// What the directory knows of everybody; nothing while it is silent.
    pub fn users(&self, silent: bool) -> BTreeMap<Uid, User> {
        let named = self.people.iter().map(|(name, uid)| {
            let groups = self.groups_of(name);
            User { uid: *uid, name: Lookup::Known(name.as_str().into()), groups: Lookup::Known(groups) }
        });
        let nameless = self.nameless.iter().map(|uid| User { uid: *uid, name: Lookup::Absent, groups: Lookup::Absent });
        let speechless = |user: User| User { name: Lookup::Pending, groups: Lookup::Pending, ..user };
        named.chain(nameless).map(|user| (user.uid, if silent { speechless(user) } else { user })).collect()
    }

    fn groups_of(&self, name: &str) -> Vec<Group> {
        let joined = self.groups.iter().filter(|(_, (_, members))| members.iter().any(|member| member == name));
        joined.map(|(group, (gid, _))| Group { gid: *gid, name: group.as_str().into() }).collect()
    }

    /// Whom a right names; a name that nobody can look up could be anybody's.
    pub fn grantee(&self, to: &To, silent: bool) -> Grantee {
        let found = match to {
            To::Everyone => return Grantee::Everyone,
            To::User(name) => self.uid(name).map(|uid| Grantee::User { uid, name: name.clone() }),
            To::Group(name) => self.groups.get(name).map(|(gid, _)| Grantee::Group { gid: *gid, name: name.clone() }),
        };
        let (To::User(name) | To::Group(name)) = to else { return Grantee::Everyone };
        found.filter(|_| !silent).unwrap_or_else(|| Grantee::Unresolved(name.clone()))
    }
}

/// The uids that the script gives to names.
fn given_uids(script: &Script) -> Result<BTreeMap<String, Uid>, Complaint> {
    let mut given = BTreeMap::new();
    for (number, actor) in script.processes.iter().enumerate() {
        let (Some(name), Some(uid)) = (&actor.user, actor.uid) else { continue };
        let before = given.insert(name.clone(), uid);
        let namesake = given.iter().find(|(other, taken)| *other != name && **taken == uid);
        if before.is_some_and(|before| before != uid) || namesake.is_some() {
            let what =
                format!("`{name}` has uid {uid} here and another elsewhere, or shares it, expected one for each");
            return Err(Complaint { at: steps!["processes", number, "uid"], what });
        }
    }
    Ok(given)
}

fn names(script: &Script) -> impl Iterator<Item = &str> {
    let owners = script.processes.iter().filter_map(|actor| actor.user.as_deref());
    let members = script.groups.values().flatten().map(String::as_str);
    let entries = script.assignments.iter().flat_map(|timed| timed.values().flatten());
    owners.chain(members).chain(entries.filter_map(named_user))
}

fn named_user(entry: &Entry) -> Option<&str> {
    match &entry.to {
        To::User(name) => Some(name),
        To::Everyone | To::Group(_) => None,
    }
}
