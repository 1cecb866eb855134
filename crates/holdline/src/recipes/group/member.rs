//! The member of a group: it queries the store, and answers from the last look.

use super::claims::{Claims, Look, Owner, Step};
use super::local_locks::{LocalLocks, LocalPermit};
use super::members::Members;
use super::{Group, rendezvous};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, protect};
use crate::loss::Loss;
use crate::names::Name;
use crate::options::{Options, Wait};
use crate::recipes::{acquire, expect_acquired};
use crate::sync::Mutex;
use futures_util::future::select;
use holdline_kernel::Time;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use tokio::sync::Notify;

/// A membership in a group. Dropping it leaves the group in the background;
/// [`leave`](Member::leave) does so and reports the result.
///
/// A membership is kept like a held lock, by renewals in the background, and can be lost like one.
/// A member that has lost its place owns nothing from then on; call [`Group::join`] for a new one.
#[must_use = "dropping the membership at once leaves the group at once"]
pub struct Member {
    group: Group,
    capacity: u32,
    address: String,
    guard: Guard,
    state: Mutex<State>,
    /// Notified at the end of a turn.
    turn_ended: Notify,
    locks: LocalLocks,
}

#[derive(Debug)]
struct State {
    claims: Claims,
    /// Why the last look failed.
    failure: Option<(ErrorKind, String)>,
    /// The number of the last turn.
    turn: u64,
    /// When the turn ends at the latest; in the past if there is none.
    turn_ends: Time,
}

/// A task's turn to look, on behalf of all. It ends when it is dropped, or at its time limit, as
/// its task may no longer be polled. Its result is discarded if another task has had a turn since.
struct Turn<'a> {
    member: &'a Member,
    number: u64,
    ends: Time,
}

/// The member that a key belongs to.
#[derive(Debug)]
pub enum Route<'a> {
    /// This member. No other task of this process owns the key, and no other process.
    Mine(Ownership<'a>),
    /// The member at this address, as far as this member knows.
    Other(String),
}

/// The ownership of a key: by this member and, within it, by the task that has this value. Dropping
/// it lets the next task of this process own the key.
///
/// It borrows the member, so it cannot be moved into a spawned task. Spawn a task with a clone of
/// an `Arc<Member>`, and call [`route`](Member::route) there.
#[must_use = "dropping the ownership at once lets other tasks have the key at once"]
pub struct Ownership<'a> {
    member: &'a Member,
    epoch: u64,
    losses: u64,
    permit: LocalPermit<'a>,
}

/// The most steps of one look. Three suffice, unless members leave meanwhile.
const STEPS: u32 = 9;

impl Member {
    pub(super) async fn join(group: &Group, address: String) -> Result<Self> {
        let name = Name::new(&group.name)?;
        let capacity = group.capacity()?;
        if address.is_empty() {
            let message = format!("a member of group \"{name}\" needs an address");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let options = Options { value: Some(address.clone()), ..group.options.clone() };
        let before = Look { sent: clock::now(), members: group.members().await? };
        let place = acquire(&group.client, &options, name, (1, capacity), Wait::Forever).await;
        let guard = expect_acquired(place.map_err(|error| group.explain(error))?);
        let granted = clock::now();
        let claims = Claims::new(guard.ticket(), group.stale_after, before, guard.token());
        let member = Member {
            group: group.clone(),
            capacity,
            address,
            guard,
            state: Mutex::new(State { claims, failure: None, turn: 0, turn_ends: Time(0) }),
            turn_ended: Notify::new(),
            locks: LocalLocks::default(),
        };
        member.look(0).await?;
        let from = member.state.lock().claims.joined(granted, clock::now());
        while clock::now() < from && member.guard.is_valid() {
            let next = member.state.lock().claims.next_look().min(from);
            let _ = clock::within(next, member.guard.lost()).await;
            member.refresh().await;
        }
        member.guard.check().await?;
        Ok(member)
    }

    /// Returns the member that a key belongs to. If it is this one, waits until no other task of
    /// this process owns the key.
    ///
    /// Sends no request to the store, unless the last snapshot of the members is older than a
    /// quarter of [`stale_after`](Group::stale_after).
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if this member has lost its place, and no other member is known to
    /// own the key; [`Unavailable`](ErrorKind::Unavailable), or the store's own error, if the
    /// members have not been seen for `stale_after`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the key's local queue.
    pub async fn route(&self, key: impl AsRef<[u8]>) -> Result<Route<'_>> {
        let key = key.as_ref();
        let hash = rendezvous::of_key(key);
        self.refresh_soon().await;
        if let Owner::Other(address) = self.owner(hash).await? {
            return Ok(Route::Other(address));
        }
        let mut permit = self.locks.of(key, hash);
        permit.wait().await;
        // The wait may have been long.
        self.refresh_soon().await;
        let losses = permit.losses();
        match self.owner(hash).await? {
            Owner::Other(address) => Ok(Route::Other(address)),
            Owner::Me(epoch) => Ok(Route::Mine(Ownership { member: self, epoch, losses, permit })),
            Owner::Unknown => Err(self.unseen()),
        }
    }

    /// The owner of a key, which must be known.
    async fn owner(&self, hash: u64) -> Result<Owner> {
        let owner = self.state.lock().claims.owner(hash, clock::now());
        match owner {
            Owner::Other(address) => Ok(Owner::Other(address)),
            _ if !self.guard.is_valid() => Err(self.guard.lost_error().await),
            Owner::Me(epoch) => Ok(Owner::Me(epoch)),
            Owner::Unknown => Err(self.unseen()),
        }
    }

    /// The error for an unknown owner: the members have not been seen.
    fn unseen(&self) -> Error {
        let state = self.state.lock();
        let (kind, why) = match &state.failure {
            Some((kind, why)) => (*kind, why.as_str()),
            None => (ErrorKind::Unavailable, "this member has no valid view of the others now"),
        };
        let message =
            format!("the owners of keys in group \"{}\" are unknown: {why}", self.guard.name());
        Error::new(kind, message)
    }

    /// Returns the members that this one currently sees. Queries the store if the last snapshot is
    /// older than a quarter of [`stale_after`](Group::stale_after).
    ///
    /// # Errors
    ///
    /// That of the last query, if no snapshot is valid any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn members(&self) -> Result<Members> {
        self.refresh().await;
        let state = self.state.lock();
        if clock::now() < state.claims.until() {
            return Ok(state.claims.members().clone());
        }
        drop(state);
        Err(self.unseen())
    }

    /// The address given to [`Group::join`].
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The current epoch: see [`Ownership::token`].
    pub fn token(&self) -> u64 {
        self.state.lock().claims.epoch()
    }

    /// The id of this member, as in [`inspect`](crate::Client::inspect).
    pub fn ticket(&self) -> crate::store::TicketId {
        self.guard.ticket()
    }

    /// Whether the member certainly still has its place. Once false, it stays false.
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when the place is lost; at once if it already is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// The cause of the loss of the place, as [`Guard::loss`]; `None` while it is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn loss(&self) -> Option<Loss> {
        self.guard.loss().await
    }

    /// Leaves the group. The other members own its keys as soon as they look again.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the group in the background.
    pub async fn leave(self) -> Result<()> {
        self.guard.unlock().await
    }

    /// Looks at the members if a look is due. Does not wait for another task's look while the
    /// current one is valid, so that a slow store delays one request, not all.
    async fn refresh_soon(&self) {
        let can_wait = {
            let (now, state) = (clock::now(), self.state.lock());
            let is_due = now >= state.claims.next_look() && now >= state.turn_ends;
            now < state.claims.until() && !is_due
        };
        if !can_wait {
            self.refresh().await;
        }
    }

    /// Looks at the members if a look is due. The state has the result.
    async fn refresh(&self) {
        let Some(turn) = self.turn().await else { return };
        // Boxed, because it is large and part of every future of this member.
        let failure = match clock::within(turn.ends, Box::pin(self.look(turn.number))).await {
            Some(Ok(())) => None,
            Some(Err(error)) => Some((error.kind(), format!("{error:#}"))),
            None => {
                let why = format!("{} did not answer in time", self.group.client.address());
                Some((ErrorKind::Unavailable, why))
            }
        };
        let mut state = self.state.lock();
        if state.turn == turn.number {
            state.failure = failure;
        }
    }

    /// Takes the turn to look, if a look is due. Waits for another task's turn if the current look
    /// is stale or the next one is due already.
    async fn turn(&self) -> Option<Turn<'_>> {
        loop {
            let ended = self.turn_ended.notified();
            let ends = {
                let (now, mut state) = (clock::now(), self.state.lock());
                let is_had = now < state.turn_ends;
                let is_waited_for = is_had && now >= state.claims.until();
                if now < state.claims.next_look() && !is_waited_for {
                    return None;
                }
                if !is_had {
                    state.turn += 1;
                    // Half of the time that a look is valid: there is time for another if it fails.
                    state.turn_ends = now.after(self.group.stale_after / 2);
                    return Some(Turn { member: self, number: state.turn, ends: state.turn_ends });
                }
                state.turn_ends
            };
            let _ = clock::within(ends, ended).await;
        }
    }

    /// Looks at the members, in this turn.
    async fn look(&self, turn: u64) -> Result<()> {
        let mut looking = self.state.lock().claims.start_looking(clock::now());
        for _ in 0..STEPS {
            if looking.step(clock::now()) == Step::TakeToken {
                looking.token_taken(self.take_token().await?);
                continue;
            }
            let sent = clock::now();
            let members = self.group.members().await?;
            if let Some((look, epoch)) = looking.looked(sent, members, clock::now()) {
                self.rely_on(look, epoch, turn);
                return Ok(());
            }
        }
        let message = format!("members of group \"{}\" leave too often", self.guard.name());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Takes a token from the group's line, by a place that is released at once.
    async fn take_token(&self) -> Result<u64> {
        let (name, numbers) = (self.guard.name().clone(), (1, self.capacity));
        let limit = Wait::Within(self.group.stale_after);
        let options = Options { value: None, ..self.group.options.clone() };
        match acquire(&self.group.client, &options, name, numbers, limit).await? {
            Some(guard) => Ok(guard.token()),
            None => Err(Error::new(ErrorKind::Unavailable, "the group's line is full")),
        }
    }

    /// Relies on a look, unless another task has had a turn since.
    fn rely_on(&self, look: Look, epoch: u64, turn: u64) {
        let mut state = self.state.lock();
        if state.turn != turn {
            return;
        }
        let now = clock::now();
        let all_lost = state.claims.rely_on(look, epoch, now);
        let is_mine = |key| matches!(state.claims.owner(key, now), Owner::Me(_));
        self.locks.lose(|key| all_lost || !is_mine(key));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.member.state.lock();
        let present = state.turn == self.number;
        if present {
            state.turn_ends = Time(0);
        }
        drop(state); // a waker may poll its task on the spot
        if present {
            self.member.turn_ended.notify_waiters();
        }
    }
}

impl Ownership<'_> {
    /// The key.
    pub fn key(&self) -> &[u8] {
        self.permit.key()
    }

    /// The member's epoch: a fencing token, higher than that of every earlier owner of this key.
    /// Successive owners within one process may have the same token.
    ///
    /// Pass it to the guarded resource with every read and write, and have the resource reject any
    /// token lower than the highest it has seen.
    pub fn token(&self) -> u64 {
        self.epoch
    }

    /// Whether the key is certainly still owned. Once false, it stays false.
    pub fn is_valid(&self) -> bool {
        self.until().is_some() && self.member.guard.is_valid()
    }

    /// Until when the current look is valid, if it is and makes this member the owner.
    fn until(&self) -> Option<Time> {
        let state = self.member.state.lock();
        // The clock is read under the mutex, so a look that comes later finds this one stale, too.
        let is_stale = clock::now() >= state.claims.until();
        (!is_stale && self.permit.losses() == self.losses).then(|| state.claims.until())
    }

    /// Resolves when the key is lost; at once if it already is. Looks at the members meanwhile,
    /// once for all waiting tasks.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        let not_seen = async {
            while self.is_valid() {
                let Some(until) = self.until() else { return };
                let next = self.member.state.lock().claims.next_look().min(until);
                let looked = async {
                    clock::sleep_until(next).await;
                    self.member.refresh().await;
                };
                let _ = clock::within(until, looked).await;
            }
        };
        // A look can take long, and the member can lose its place meanwhile.
        select(pin!(self.member.guard.lost()), pin!(not_seen)).await;
    }

    /// Runs `work` as the owner of the key. If the key is lost before the work is done, stops it
    /// and returns an error of kind [`Lost`](ErrorKind::Lost), as [`Guard::protect`] does. Under
    /// [`OnLoss::Continue`](crate::OnLoss::Continue) the work goes on.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost), as [`Guard::protect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await point; the key stays owned.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        let on_loss = self.member.group.options.on_loss;
        match protect(on_loss, || self.is_valid(), self.lost(), work).await {
            Some(output) => Ok(output),
            None => Err(self.lost_error().await),
        }
    }

    async fn lost_error(&self) -> Error {
        if !self.member.guard.is_valid() {
            return self.member.guard.lost_error().await;
        }
        let owner = self.member.state.lock().claims.owner(self.permit.hash(), clock::now());
        let why = match owner {
            Owner::Other(address) => format!("it belongs to {address} now"),
            _ => format!("the members were not seen for {:?}", self.member.group.stale_after),
        };
        let key = String::from_utf8_lossy(self.key());
        let message =
            format!("key {key:?} of group \"{}\" was lost: {why}", self.member.guard.name());
        Error::new(ErrorKind::Lost, message)
    }
}

impl Group {
    /// Explains in an error what the users of a group must agree on.
    fn explain(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Mismatch {
            return error;
        }
        let message = format!(
            "the members of group \"{}\" must agree on `stale_after`, and no lock of another kind \
             may have its name",
            self.name
        );
        Error::because(ErrorKind::Mismatch, message, error)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("group", self.guard.name())
            .field("address", &self.address)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Ownership<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ownership")
            .field("key", &String::from_utf8_lossy(self.key()))
            .field("token", &self.epoch)
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}
