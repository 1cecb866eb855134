//! One member of a group: it looks at the store, and answers by what it saw.

use super::claims::{Claims, Look, Owner, Step};
use super::local_locks::{LocalLocks, LocalPermit};
use super::members::Members;
use super::{Group, rendezvous};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, protect};
use crate::loss::Loss;
use crate::names::Name;
use crate::options::{OnLoss, Options, Wait};
use crate::recipes::{acquire, expect_acquired};
use crate::sync::Mutex;
use holdline_kernel::Time;
use std::fmt;
use std::future::Future;
use tokio::sync::Notify;

/// A membership of a group. Dropping it leaves the group in the background;
/// [`leave`](Member::leave) says how that went.
///
/// It is kept like a held lock, by renewals in the background, and lost like one. A member that has
/// lost its place owns nothing from that moment on; [`Group::join`] makes a new one.
#[must_use = "dropping the membership at once leaves the group at once"]
pub struct Member {
    group: Group,
    capacity: u32,
    address: String,
    guard: Guard,
    state: Mutex<State>,
    /// Tells of the end of a turn.
    turn_ended: Notify,
    locks: LocalLocks,
}

#[derive(Debug)]
struct State {
    claims: Claims,
    /// Why the last look came to nothing.
    failure: Option<(ErrorKind, String)>,
    /// The number of the last turn.
    turn: u64,
    /// When the turn is over at the latest; in the past if there is none.
    turn_ends: Time,
}

/// A task's turn to look, for all. It ends when it is dropped, or by its time: its task may have
/// stopped to poll it. Once another has had a turn, what comes of this one is not relied on.
struct Turn<'a> {
    member: &'a Member,
    number: u64,
    ends: Time,
}

/// The member that a key belongs to.
#[derive(Debug)]
pub enum Route<'a> {
    /// To this member. No other task of this process has it, and no other process.
    Mine(Ownership<'a>),
    /// To the member at this address, as far as this one knows.
    Other(String),
}

/// A key that is owned: by this member, and within it by the task that has this. Dropping it lets
/// the next task of this process have the key.
#[must_use = "dropping the ownership at once lets other tasks have the key at once"]
pub struct Ownership<'a> {
    member: &'a Member,
    epoch: u64,
    losses: u64,
    permit: LocalPermit<'a>,
}

/// The most steps of one look. Three are enough, unless members leave meanwhile.
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

    /// The member that a key belongs to. If it is this one, waits until no other task of this
    /// process has the key, and returns it.
    ///
    /// Costs no request to the store, unless the last look at the members is older than a quarter
    /// of [`stale_after`](Group::stale_after).
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if this member has lost its place, and so the key, and nobody else
    /// is seen to have it; [`Unavailable`](ErrorKind::Unavailable), or what the store says, if the
    /// members have not been seen for `stale_after`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the turn for the key.
    pub async fn route(&self, key: impl AsRef<[u8]>) -> Result<Route<'_>> {
        let key = key.as_ref();
        let hash = rendezvous::of_key(key);
        self.refresh_soon().await;
        if let Owner::Other(address) = self.owner(hash).await? {
            return Ok(Route::Other(address));
        }
        let mut permit = self.locks.of(key, hash);
        permit.wait().await;
        // It may have taken long.
        self.refresh_soon().await;
        let losses = permit.losses();
        match self.owner(hash).await? {
            Owner::Other(address) => Ok(Route::Other(address)),
            Owner::Me(epoch) => Ok(Route::Mine(Ownership { member: self, epoch, losses, permit })),
            Owner::Unknown => Err(self.unseen()),
        }
    }

    /// The owner of a key, which is known.
    async fn owner(&self, hash: u64) -> Result<Owner> {
        let owner = self.state.lock().claims.owner(hash, clock::now());
        match owner {
            Owner::Other(address) => Ok(Owner::Other(address)),
            _ if !self.guard.is_valid() => Err(self.guard.lost_error().await),
            Owner::Me(epoch) => Ok(Owner::Me(epoch)),
            Owner::Unknown => Err(self.unseen()),
        }
    }

    /// The error that says that the members are not known.
    fn unseen(&self) -> Error {
        let state = self.state.lock();
        let (kind, why) = match &state.failure {
            Some((kind, why)) => (*kind, why.as_str()),
            None => (ErrorKind::Unavailable, "the last look is too old"),
        };
        let message =
            format!("it is not known who has what in group \"{}\": {why}", self.guard.name());
        Error::new(kind, message)
    }

    /// The members that this one sees at present. It asks the store if its last look is older than
    /// a quarter of [`stale_after`](Group::stale_after).
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

    /// The address that it joined with.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its epoch at present: see [`Ownership::token`].
    pub fn token(&self) -> u64 {
        self.state.lock().claims.epoch()
    }

    /// The id that [`inspect`](crate::Client::inspect) shows for this member.
    pub fn ticket(&self) -> crate::store::TicketId {
        self.guard.ticket()
    }

    /// Whether it certainly still has its place. Once false, it stays false.
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

    /// Why the place was lost, as [`Guard::loss`]; `None` while it is not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn loss(&self) -> Option<Loss> {
        self.guard.loss().await
    }

    /// Leaves the group: its keys are the others' as soon as they look again. Errors as
    /// [`Guard::unlock`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the group in the background.
    pub async fn leave(self) -> Result<()> {
        self.guard.unlock().await
    }

    /// Looks at the members if it is time to, but does not wait for another task that does, as long
    /// as what is known can be relied on: a store that is slow holds up one request, not all.
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

    /// Looks at the members, if it is time to. What comes of it is seen in the state.
    async fn refresh(&self) {
        let Some(turn) = self.turn().await else { return };
        // Boxed, because it is large, and every future of this member has one in it.
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

    /// The turn to look, if it is time to. It waits for the turn of another task, if what is known
    /// cannot be relied on, or that takes so long that it is time to look again.
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
                    // Half of the time that a look is relied on: a second one can be made if it
                    // fails.
                    state.turn_ends = now.after(self.group.stale_after / 2);
                    return Some(Turn { member: self, number: state.turn, ends: state.turn_ends });
                }
                state.turn_ends
            };
            let _ = clock::within(ends, ended).await;
        }
    }

    /// Looks at the members, in the turn of this number.
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

    /// Takes a token from the group's line, by a place that is given up at once.
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
        if state.turn == self.number {
            state.turn_ends = Time(0);
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
    /// Tasks of one process that have the key one after the other may have the same.
    ///
    /// Give it to whatever the key stands for, with reads and with writes, and let that refuse a
    /// token lower than the highest it has seen.
    pub fn token(&self) -> u64 {
        self.epoch
    }

    /// Whether the key is certainly still owned. Once false, it stays false.
    pub fn is_valid(&self) -> bool {
        self.until().is_some_and(|until| clock::now() < until) && self.member.guard.is_valid()
    }

    /// Until when the look is good that says that it is ours, if one does.
    fn until(&self) -> Option<Time> {
        let state = self.member.state.lock();
        (self.permit.losses() == self.losses).then(|| state.claims.until())
    }

    /// Resolves when the key is lost; at once if it already is. It looks at the members meanwhile,
    /// once for all that wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        while self.is_valid() {
            let Some(until) = self.until() else { return };
            let next = self.member.state.lock().claims.next_look().min(until);
            let looked = async {
                let _ = clock::within(next, self.member.guard.lost()).await;
                self.member.refresh().await;
            };
            let _ = clock::within(until, looked).await;
        }
    }

    /// Does `work` as the owner of the key: stops it and returns an error of kind
    /// [`Lost`](ErrorKind::Lost) if the key is lost before it is done, as [`Guard::protect`] does
    /// with a lock. Under [`OnLoss::Continue`] the work goes on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, wherever it is; the key stays owned.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        if self.member.group.options.on_loss == OnLoss::Continue {
            return Ok(work.await);
        }
        match protect(|| self.is_valid(), self.lost(), work).await {
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
    /// Says what a group's users must agree on, if they do not.
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
