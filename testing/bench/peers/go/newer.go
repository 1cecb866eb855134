//go:build go1.26

package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func init() {
	libraries["rueidislock"] = func(host string) (library, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{host}},
			KeyValidity:  lease,
			KeyMajority:  1,
		})
		return func(name string) (lock, error) {
			return func() (func() error, error) { return waitAnew(locker, name) }, nil
		}, err
	}
}

// waitAnew takes a lock. Of several goroutines that want one, the last may wait for ever though
// nobody has it: it missed the release. So a wait is begun anew after a second.
func waitAnew(locker rueidislock.Locker, name string) (func() error, error) {
	for {
		held, stop := context.WithCancel(ctx)
		second := time.AfterFunc(time.Second, stop)
		_, cancel, err := locker.WithContext(held, name)
		if second.Stop() {
			return func() error { cancel(); stop(); return nil }, err
		}
		if err == nil {
			cancel()
		}
	}
}
