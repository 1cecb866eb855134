package main

import (
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func init() {
	libraries["redsync"] = func(host string) (library, error) {
		sync := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: host})))
		return func(name string) (lock, error) {
			// Between tries it waits for 50 to 250 ms, which is its default; it gives up never.
			mutex := sync.NewMutex(name, redsync.WithExpiry(lease), redsync.WithTries(1_000_000))
			return func() (func() error, error) {
				return func() error { _, err := mutex.Unlock(); return err }, mutex.Lock()
			}, nil
		}, nil
	}
	libraries["redislock"] = func(host string) (library, error) {
		client := redislock.New(redis.NewClient(&redis.Options{Addr: host}))
		// As in its documentation.
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
		return func(name string) (lock, error) {
			return func() (func() error, error) {
				for {
					// It waits for one lease, and gives up.
					got, err := client.Obtain(ctx, name, lease, options)
					if errors.Is(err, redislock.ErrNotObtained) {
						continue
					}
					return func() error { return got.Release(ctx) }, err
				}
			}, nil
		}, nil
	}
}
