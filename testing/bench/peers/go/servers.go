package main

import (
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func init() {
	libraries["etcd-go"] = func(host string) (library, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{host}, DialTimeout: 5 * time.Second})
		if err != nil {
			return nil, err
		}
		one, err := concurrency.NewSession(client, concurrency.WithTTL(int(lease.Seconds())))
		return func(name string) (lock, error) {
			// A session is one holder of a name, so that goroutines that may want one name have one each.
			session := one
			if !strings.HasPrefix(name, "hold") && !strings.HasPrefix(name, "names") {
				session, err = concurrency.NewSession(client, concurrency.WithTTL(int(lease.Seconds())))
				if err != nil {
					return nil, err
				}
			}
			mutex := concurrency.NewMutex(session, name)
			return func() (func() error, error) {
				return func() error { return mutex.Unlock(ctx) }, mutex.Lock(ctx)
			}, nil
		}, err
	}
	libraries["go-zookeeper"] = func(host string) (library, error) {
		session, events, err := zk.Connect([]string{host}, lease, zk.WithLogInfo(false))
		if err != nil {
			return nil, err
		}
		for event := range events {
			if event.State == zk.StateHasSession {
				break
			}
		}
		go func() {
			for range events {
			}
		}()
		return func(name string) (lock, error) {
			one := zk.NewLock(session, "/"+name, zk.WorldACL(zk.PermAll))
			return func() (func() error, error) { return one.Unlock, one.Lock() }, nil
		}, nil
	}
}
