package main

import (
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

func init() {
	more["go-zookeeper"] = (*peer).zookeeper
}

var session *zk.Conn

// zookeeper has no try: it looks first whether anybody is there.
func (p *peer) zookeeper(name string, wait bool) (*held, error) {
	if session == nil {
		made, events, err := zk.Connect(p.servers, p.lease, zk.WithLogInfo(false))
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
				time.Sleep(time.Millisecond)
			}
		}()
		session = made
	}
	if !wait {
		children, _, err := session.Children("/" + name)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		if len(children) > 0 {
			return nil, nil
		}
	}
	lock := zk.NewLock(session, "/"+name, zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		return nil, err
	}
	return &held{"-", lock.Unlock}, nil
}
