//! Basic authentication (RFC 7617) against bcrypt hashes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

/// One password takes 2^cost rounds: 70 ms at 10, over a minute at 20.
const HIGHEST_COST: u32 = 18;

/// Good passwords that are remembered. Each server that scrapes has one.
const REMEMBERED: usize = 100;

/// Names with the hashes of their passwords.
pub struct Users {
    hashes: BTreeMap<String, String>,
    /// Whoever is refused costs as much as with a hash of this cost, whether he is known or not.
    highest: u32,
}

/// Hashes are for no log.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} users", self.hashes.len())
    }
}

impl Users {
    pub fn new(hashes: BTreeMap<String, String>) -> Self {
        let highest = hashes.values().filter_map(|hash| cost(hash)).max().unwrap_or(10);
        Self { hashes, highest }
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// What is wrong with a hash, without repeating it.
    pub fn fault(hash: &str) -> Option<String> {
        let Some(cost) = cost(hash) else {
            return Some(
                "not a bcrypt hash, expected such as `htpasswd -nBC 10 \"\"` makes: $2y$10$ and 53 letters".into(),
            );
        };
        (!(4..=HIGHEST_COST).contains(&cost))
            .then(|| format!("a bcrypt hash of cost {cost}, expected 4 to {HIGHEST_COST}; 10 is usual"))
    }

    /// The hash that a password is compared with, and whether it is the user's.
    fn hash(&self, user: &str) -> (String, bool) {
        self.hashes.get(user).map_or_else(|| (nobodys(self.highest), false), |hash| (hash.clone(), true))
    }
}

/// The salt and the hash of no password in particular.
fn nobodys(cost: u32) -> String {
    format!("$2b${cost:02}$UP1pYMSgnHBbXBf5SlkG2uIhq.I6X5OEOLs7LUyI4HcRcdHkAWCbW")
}

/// Whether the password is that of the hash. If not, this takes as long as with the highest cost: one comparison of each
/// cost below it takes 2^c + 2^(c+1) + ... rounds, which with the first 2^c makes 2^highest.
fn compare(password: &[u8], hash: &str, highest: u32) -> bool {
    let same = bcrypt::verify(password, hash).is_ok_and(|same| same);
    let below = cost(hash).filter(|_| !same).map_or(0..0, |cost| cost..highest);
    below.for_each(|cost| drop(std::hint::black_box(bcrypt::verify(password, &nobodys(cost)))));
    same
}

/// The cost of a bcrypt hash, if it is one.
fn cost(hash: &str) -> Option<u32> {
    hash.parse::<bcrypt::HashParts>().ok().map(|parts| parts.get_cost())
}

/// Compares passwords, one at a time and beside the thread that serves, and remembers which were good.
pub struct Passwords {
    key: hmac::Key,
    /// Keyed hashes of user, stored hash and password; the oldest first. None tells a password, nor that of a hash that was
    /// replaced opens anything.
    good: Mutex<VecDeque<[u8; 32]>>,
    one: Arc<Semaphore>,
}

impl Passwords {
    /// An error where the kernel gives no random numbers.
    pub fn new() -> std::io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.map_err(|_| std::io::Error::other("the kernel gives no random numbers"))?;
        Ok(Self { key, good: Mutex::default(), one: Arc::new(Semaphore::new(1)) })
    }

    /// Whether this is the header of a user with his password.
    pub async fn admit(&self, users: &Users, authorization: Option<&HeaderValue>) -> bool {
        let Some((user, password)) = authorization.and_then(|value| credentials(value.as_bytes())) else {
            return false;
        };
        let (hash, known) = users.hash(&user);
        let mark = self.mark(&user, &hash, &password);
        if self.is_good(&mark) {
            return true;
        }
        // Those who wait have come to wait in this order, each with a connection, of which there are not many.
        let Ok(turn) = self.one.clone().acquire_owned().await else { return false };
        // Somebody with the same password may have gone before.
        if self.is_good(&mark) {
            return true;
        }
        let highest = users.highest;
        let compare = move || {
            let same = compare(&password, &hash, highest);
            drop(turn);
            same
        };
        let same = tokio::task::spawn_blocking(compare).await.is_ok_and(|same| same);
        if same && known {
            self.remember(mark);
        }
        same && known
    }

    fn mark(&self, user: &str, hash: &str, password: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [user.as_bytes(), hash.as_bytes(), password] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut mark = [0; 32];
        mark.copy_from_slice(context.sign().as_ref());
        mark
    }

    /// How long this takes tells of the keyed hashes, and nothing of what they are hashes of.
    fn is_good(&self, mark: &[u8; 32]) -> bool {
        self.good.lock().unwrap_or_else(PoisonError::into_inner).contains(mark)
    }

    fn remember(&self, mark: [u8; 32]) {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= REMEMBERED {
            good.pop_front();
        }
        good.push_back(mark);
    }
}

/// User and password of `Basic dXNlcjpwYXNzd29yZA==`.
fn credentials(header: &[u8]) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some((String::from_utf8(decoded[..colon].to_vec()).ok()?, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn users(cost: u32) -> Users {
        Users::new([("alice".to_owned(), bcrypt::hash("secret", cost).unwrap())].into())
    }

    fn header(text: &str) -> HeaderValue {
        format!("Basic {}", STANDARD.encode(text)).parse().unwrap()
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_user_needs_his_password_and_a_stranger_has_none() {
        let (users, passwords) = (users(4), Passwords::new().unwrap());
        let admitted = |value: Option<HeaderValue>| block_on(passwords.admit(&users, value.as_ref()));
        let encoded = STANDARD.encode("alice:secret");
        for good in ["Basic", "basic", "BASIC"] {
            assert!(admitted(Some(format!("{good} {encoded}").parse().unwrap())), "{good}");
        }
        for bad in
            ["alice:", "alice:Secret", "alice:secret ", "bob:secret", ":secret", "alice", ":", "", "alice:fakepassword"]
        {
            assert!(!admitted(Some(header(bad))), "{bad}");
        }
        for bad in ["", "Basic", "Basic ", "Basic ?", "Bearer x", &format!("Bearer {encoded}"), "Basic YWxpY2U"] {
            assert!(!admitted(Some(bad.parse().unwrap())), "{bad}");
        }
        assert!(!admitted(None));
    }

    #[test]
    fn a_good_password_is_compared_once_and_a_replaced_one_no_more() {
        let (old, passwords) = (users(10), Passwords::new().unwrap());
        let good = header("alice:secret");
        assert!(block_on(passwords.admit(&old, Some(&good))));
        let begun = Instant::now();
        assert!((0..20).all(|_| block_on(passwords.admit(&old, Some(&good)))));
        let remembered = begun.elapsed();
        let begun = Instant::now();
        assert!(!block_on(passwords.admit(&old, Some(&header("alice:wrong")))));
        assert!(remembered < begun.elapsed(), "{remembered:?}");
        let new = Users::new([("alice".to_owned(), bcrypt::hash("other", 4).unwrap())].into());
        assert!(!block_on(passwords.admit(&new, Some(&good))));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let passwords = Passwords::new().unwrap();
        (0..=u8::MAX).for_each(|number| passwords.remember([number; 32]));
        assert_eq!(passwords.good.lock().unwrap().len(), REMEMBERED);
        assert!(passwords.is_good(&[u8::MAX; 32]) && !passwords.is_good(&[0; 32]));
    }

    #[test]
    fn a_stranger_costs_as_much_as_a_user() {
        let hashes = [("alice", 4), ("bob", 10)];
        let users = Users::new(hashes.map(|(name, cost)| (name.into(), bcrypt::hash("secret", cost).unwrap())).into());
        let passwords = Passwords::new().unwrap();
        let time = |name: &str| {
            let begun = Instant::now();
            assert!(!block_on(passwords.admit(&users, Some(&header(&format!("{name}:wrong"))))));
            begun.elapsed()
        };
        let [nobody, alice, bob] = ["nobody", "alice", "bob"].map(|name| time(name).min(time(name)));
        for known in [alice, bob] {
            assert!(nobody > known / 4 && nobody < known * 4 + Duration::from_millis(20), "{nobody:?} {known:?}");
        }
    }

    #[test]
    fn a_hash_is_told_from_what_is_none() {
        assert_eq!(Users::fault("$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"), None);
        assert!(Users::fault("secret").unwrap().starts_with("not a bcrypt hash"));
        let costly = Users::fault("$2y$31$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG").unwrap();
        assert!(costly.starts_with("a bcrypt hash of cost 31"), "{costly}");
    }
}
