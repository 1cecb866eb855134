//go:build go1.26

package main

import (
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
			return func() (func() error, error) {
				_, cancel, err := locker.WithContext(ctx, name)
				return func() error { cancel(); return nil }, err
			}, nil
		}, err
	}
}
