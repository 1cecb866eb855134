//! Threads and tasks share these types, and send these futures to one another. This file only has
//! to compile: it does not if a change takes `Send`, `Sync` or `Unpin` away.

use holdline::blocking;
use holdline::{
    Changes, Client, ConnectOptions, Election, Error, Evicted, Fence, Group, Guard, Leader,
    LockInfo, Loss, LossNotice, Member, MembersObserver, Multi, MultiGuard, Mutex, Observer, Owner,
    OwnerInfo, Ownership, ReentrantGuard, ReentrantMutex, Route, RwLock, Semaphore, WriteGuard,
};

const fn shared<T: Send + Sync + Unpin + 'static>() {}
fn sent<T: Send>(_: T) {}

const _: () = {
    shared::<Client>();
    shared::<ConnectOptions>();
    shared::<(Error, Loss, Evicted, LockInfo, OwnerInfo)>();
    shared::<(Mutex, RwLock, Semaphore, ReentrantMutex, Multi, Election, Group)>();
    shared::<(Guard, WriteGuard, ReentrantGuard, MultiGuard, Leader, Member)>();
    shared::<(Changes, Fence, LossNotice, MembersObserver, Observer, Owner)>();
    shared::<(Ownership<'_>, Route<'_>)>();
    shared::<(blocking::Client, blocking::Mutex, blocking::BlockingGuard)>();
};

#[expect(dead_code, reason = "it has to compile")]
fn futures(client: &Client, mutex: &Mutex, election: &Election, guard: Guard) {
    sent(holdline::open("memory:"));
    sent(mutex.lock());
    sent(mutex.try_lock());
    sent(mutex.lock_within(std::time::Duration::ZERO));
    sent(election.campaign("value"));
    sent(client.inspect("name"));
    sent(client.settle());
    sent(guard.lost());
    sent(guard.loss_notice().ended());
    sent(guard.protect(async {}));
    sent(guard.unlock());
}
