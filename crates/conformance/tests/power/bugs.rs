//! The planted bugs, each with the case of the suite that must fail because of it.

macro_rules! planted {
    ($($(#[$doc:meta])+ $bug:ident => $case:literal,)+) => {
        /// A small deviation of the toy store from the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Bug {
            $($(#[$doc])+ $bug,)+
        }

        /// Every bug, with the case that must catch it.
        pub(crate) const BUGS: &[(Bug, &str)] = &[$((Bug::$bug, $case)),+];
    };
}

planted! {
    // Admission.
    /// A line admits one more than its capacity.
    AdmitsOneTooMany => "mutex::mutex::locks_and_unlocks",
    /// A line of several permits never gives the last one.
    AdmitsOneTooFew => "semaphore::so_many_and_no_more",
    /// Every ticket counts as 1, whatever its weight.
    IgnoresWeights => "rwlock::readers_share",
    /// A light ticket is admitted past a heavy one that waits.
    PassesHeavyWaiters => "contract::a_try_does_not_pass_waiters",
    /// A new waiter goes ahead of those that wait.
    LastComeFirstServed => "contract::a_departure_admits_the_next",
    /// A departure makes all waiters lose their places.
    ForgetsWaiters => "contract::a_departure_admits_the_next",
    /// A ticket is taken that names another capacity than those in the line.
    AcceptsAnotherCapacity => "contract::another_capacity_is_refused_and_changes_nothing",
    /// The weight of a held ticket can be raised.
    RaisesWeights => "contract::bad_weights_are_refused",
    /// A held ticket keeps its weight when it is lowered.
    KeepsWeights => "contract::a_lower_weight_admits_the_next",

    // Entering and keeping a place.
    /// A repeated request takes a second place.
    RetryEntersTwice => "contract::enter_is_idempotent",
    /// A repeated request of a waiter moves it to the end.
    RetryMovesToTheEnd => "contract::enter_is_idempotent_while_waiting",
    /// Waiters have no places, although the store promises a fair queue.
    PromisesAQueueItHasNot => "contract::enter_is_idempotent_while_waiting",
    /// `Keep` takes a place if there is none.
    KeepTakesAPlace => "contract::keep_never_takes_a_place",
    /// `Keep` does not compare the place number.
    KeepsAnyPlace => "contract::keep_never_takes_a_place",
    /// `Keep` compares the place number, and not the ticket.
    KeepsAnothersPlace => "contract::keep_never_takes_a_place",
    /// `Try` keeps its place in the line.
    TryTakesAPlace => "contract::a_try_leaves_no_trace",
    /// `Try` passes waiters if it fits beside the holders.
    TryPassesWaiters => "fairness::a_try_does_not_overtake_waiters",
    /// `Try` refuses although the line is empty.
    TryRefusesAlways => "contract::a_try_leaves_no_trace",
    /// Waiters are told to ask again only after a minute.
    AsksTooSeldom => "contract::a_waiter_looks_again_within_a_second",
    /// Waiters are told to ask again at once.
    AsksWithoutAPause => "fairness::a_release_wakes_only_whom_it_admits",
    /// A dropped `enter` leaves the place of a ticket that nobody has.
    HalfDoneWhenDropped => "contract::dropped_calls_are_done_or_not_done",
    /// The background handle is a store of its own.
    ForksInTheBackground => "contract::a_background_handle_is_the_same_store",
    /// A lease is refused that the capabilities allow.
    RefusesLongLeases => "leases::leases_outside_the_limits_are_refused",

    // Tokens.
    /// A holder of an empty line has the token of the last one.
    TokensRepeat => "tokens::they_rise_after_the_line_was_empty",
    /// Tokens start again when a line has become empty.
    TokensRestart => "tokens::they_rise_after_the_line_was_empty",
    /// Tokens fall.
    TokensFall => "contract::a_departure_admits_the_next",
    /// A renewal gives a new token.
    RenewalsChangeTokens => "contract::enter_is_idempotent",
    /// An admitted waiter has another token than its place.
    AdmissionChangesTokens => "contract::a_departure_admits_the_next",
    /// A ticket that reserves several tokens has one.
    IgnoresTokenCounts => "contract::a_span_reserves_tokens",
    /// A new ticket's lower bound of tokens is ignored.
    JoinsBelowLowerBounds => "contract::a_lower_bound_raises_tokens",
    /// The same of a ticket that has a place.
    KeepsBelowLowerBounds => "contract::a_lower_bound_raises_tokens",

    // Leaving.
    /// A departure removes the first place, whatever its ticket.
    LeaveRemovesTheFirst => "contract::leave_is_idempotent",
    /// A departure says that there was a place when there was none.
    LeaveSaysAlwaysYes => "contract::leave_is_idempotent",
    /// A departure says that there was no place when there was one.
    LeaveSaysAlwaysNo => "contract::leave_is_idempotent",
    /// A departure of a holder removes nothing.
    LeaveKeepsHolders => "contract::a_try_leaves_no_trace",
    /// A departure of a waiter removes nothing.
    LeaveKeepsWaiters => "contract::a_departure_admits_the_next",

    // Leases.
    /// A renewal does not extend the lease.
    RenewalsExtendNothing => "contract::a_renewal_lengthens_and_never_shortens",
    /// A waiter that asks again does not keep its place for longer.
    PollsExtendNothing => "contract::a_place_lasts_no_longer_than_its_lease",
    /// A late, shorter renewal shortens the lease.
    RenewalsShorten => "contract::a_renewal_lengthens_and_never_shortens",
    /// A renewal brings a place back whose lease is over.
    RenewalsRevive => "contract::what_is_not_heard_of_lapses",
    /// A holder that is not heard of blocks the line for ever.
    HoldersNeverLapse => "contract::what_is_not_heard_of_lapses",
    /// A waiter that is not heard of stays for ever.
    WaitersNeverLapse => "contract::a_dead_waiter_blocks_nobody",
    /// A place lasts half of its lease.
    LapsesTooSoon => "leases::a_fixed_lease_ends",
    /// A place lasts twice its lease.
    LapsesTooLate => "contract::a_place_lasts_no_longer_than_its_lease",
    /// A waiter has the lease of a holder.
    IgnoresWaitLeases => "contract::a_place_lasts_no_longer_than_its_lease",
    /// An admitted waiter has the lease of a waiter.
    KeepsWaitLeases => "contract::a_place_lasts_no_longer_than_its_lease",

    // Notices.
    /// No waiter is ever told.
    WatchNeverWakes => "contract::a_notice_comes_while_it_is_watched_for",
    /// A notice that nobody is watching for is lost.
    NoticesAreNotKept => "contract::a_notice_is_kept_until_it_is_watched_for",
    /// A departure tells nobody; an eviction does.
    LeaveWakesNobody => "contract::a_notice_is_kept_until_it_is_watched_for",
    /// An eviction tells nobody; a departure does.
    EvictionsWakeNobody => "contract::an_eviction_wakes_the_next",
    /// A holder that takes less than before tells nobody.
    LowerWeightsWakeNobody => "contract::a_lower_weight_wakes_the_next",
    /// A departure tells every waiter.
    WakesEverybody => "fairness::a_release_wakes_only_whom_it_admits",
    /// A departure tells every waiter that it is admitted.
    TellsEverybodyOfAnAdmission => "contract::a_notice_that_gives_a_place_is_true",

    // Snapshots.
    /// A snapshot has no holders.
    HidesHolders => "contract::enter_is_idempotent",
    /// A snapshot has no waiters.
    HidesWaiters => "contract::enter_is_idempotent_while_waiting",
    /// A snapshot shows waiters as holders.
    ShowsWaitersAsHolders => "contract::enter_is_idempotent_while_waiting",
    /// A snapshot begins with the last place.
    ShowsTheLastFirst => "contract::a_departure_admits_the_next",
    /// A snapshot shows the first place's note at every place.
    ShowsAnothersNote => "admin::waiters_are_shown_in_order",
    /// A snapshot shows no notes.
    ShowsNoNotes => "admin::the_holder_is_shown_as_it_is",
    /// A snapshot shows the note of the first request.
    ShowsOldNotes => "election::a_proclamation_is_seen_and_outlives_renewals",
    /// A snapshot shows the weight 1 at every place.
    ShowsNoWeights => "admin::weights_are_shown",
    /// A snapshot shows the weight 1 at every waiting place.
    ShowsNoWeightsOfWaiters => "contract::a_lower_weight_admits_the_next",
    /// A snapshot shows no waiter's lease.
    ShowsNoLeasesOfWaiters => "contract::a_place_lasts_no_longer_than_its_lease",
    /// A snapshot shows the capacity 1.
    ShowsNoCapacity => "contract::an_empty_line_takes_another_capacity",

    // Lists.
    /// A list has all names, whatever the prefix.
    ListsEverything => "names::lists_are_by_prefix",
    /// A list has names without places.
    ListsEmptyLines => "names::lists_are_by_prefix",
    /// A list has names whose places have expired.
    ListsLapsedPlaces => "contract::what_is_not_heard_of_lapses",
    /// A list is in no order.
    ListsInNoOrder => "names::lists_are_by_prefix",
    /// A `_` of the prefix stands for any character.
    ListsByPatterns => "names::odd_prefixes_are_just_prefixes",
    /// A list ends after 100 names.
    ListsAreCut => "leases::renewal_survives_an_unread_list",

    // Evictions.
    /// An eviction removes the first place, whatever its ticket.
    EvictRemovesTheFirst => "contract::an_eviction_takes_one_place",
    /// An eviction by an unknown ticket removes the first place.
    EvictRemovesForStrangers => "contract::an_eviction_by_a_wrong_id_does_nothing",
    /// An eviction removes nothing, and says that it did.
    EvictRemovesNothing => "contract::an_eviction_takes_one_place",
    /// An eviction gives no token.
    EvictGivesNoToken => "contract::an_eviction_takes_one_place",
    /// An eviction gives the removed place's own token.
    EvictGivesALowToken => "contract::an_eviction_fences_the_victim_and_nobody_else",
    /// An eviction gives a token that fences the next holder.
    EvictGivesAHighToken => "contract::an_eviction_fences_the_victim_and_nobody_else",
    /// Evictions are not listed.
    EvictionsAreForgotten => "admin::a_removal_is_shown_and_only_the_last_few",
    /// Evictions are listed without their notes.
    EvictionsHaveNoNotes => "admin::a_removal_is_shown_and_only_the_last_few",
    /// The oldest evictions are listed, and not the latest.
    EvictionsAreTheOldest => "admin::a_removal_is_shown_and_only_the_last_few",
    /// The evictions of all lines are listed.
    EvictionsAreOfAllLines => "admin::a_removal_is_shown_and_only_the_last_few",

    // Names.
    /// A name has 255 bytes, and the rest is cut off.
    CutsNames => "names::the_longest_names_are_different",
    /// Names differ in more than their case.
    FoldsNames => "names::look_alikes_are_different",
    /// Names have no spaces around them.
    TrimsNames => "names::look_alikes_are_different",

    // News for observers.
    /// Observers are told nothing.
    TellsNothing => "observers::a_leader_is_seen_without_polling",
    /// Observers are not told of entries.
    TellsNoEntries => "observers::a_dropped_wait_loses_no_change",
    /// Observers are not told of departures.
    TellsNoDepartures => "observers::a_leader_is_seen_without_polling",
    /// Observers are not told of changed notes.
    TellsNoNotes => "observers::a_leader_is_seen_without_polling",
    /// Observers are not told of evictions.
    TellsNoEvictions => "observers::a_leader_is_seen_without_polling",
    /// An observer of a prefix is told of the line with that name only.
    TellsNoPrefixes => "observers::locks_with_a_prefix_are_seen_without_polling",
}
