//go:build go1.26

package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func init() {
	// With one key, and with a majority of three keys on one server, which is its default.
	more["rueidislock"] = func(p *peer, name string, wait bool) (*held, error) {
		return p.rueidislock(1, name, wait)
	}
	more["rueidislock-three"] = func(p *peer, name string, wait bool) (*held, error) {
		return p.rueidislock(2, name, wait)
	}
}

var lockers = map[int32]rueidislock.Locker{}

func (p *peer) rueidislock(majority int32, name string, wait bool) (*held, error) {
	locker := lockers[majority]
	if locker == nil {
		made, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: p.servers[:1]},
			KeyValidity:  p.lease,
			KeyMajority:  majority,
			// After its usual 20 ms it gives up a request that it has perhaps not sent, and then
			// waits for a notice of a key that is free: for ever, if nobody else wants it.
			TryNextAfter: p.lease,
		})
		if err != nil {
			return nil, err
		}
		locker, lockers[majority] = made, made
	}
	if wait {
		return waitAnew(locker, name)
	}
	_, cancel, err := locker.TryWithContext(context.Background(), name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, nil
	}
	return &held{"-", func() error { cancel(); return nil }}, err
}

// waitAnew takes a lock. A wait may last for ever though nobody has the lock: if the process stood
// still at the wrong moment, or the last of several goroutines missed the release. So it is begun
// anew after some seconds.
func waitAnew(locker rueidislock.Locker, name string) (*held, error) {
	for {
		ctx, stop := context.WithCancel(context.Background())
		limit := time.AfterFunc(5*time.Second, stop)
		_, cancel, err := locker.WithContext(ctx, name)
		if limit.Stop() {
			return &held{"-", func() error { cancel(); stop(); return nil }}, err
		}
		if err == nil {
			cancel()
		}
	}
}
