// A peer for holdline's tests: real Go clients behind the line protocol that ../main.rs describes.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// held is what a lock command leaves behind: a token (or "-"), and how to release it.
type held struct {
	token  string
	unlock func() error
}

// A kind takes a lock, waiting or not; nil without an error means that somebody else has it.
type kind func(name, value string, wait bool) (*held, error)

const poll = 10 * time.Millisecond

// pause is random, so that ties on several servers end.
func pause(int) time.Duration { return poll + time.Duration(rand.Int63n(int64(2*poll))) }

var ctx = context.Background()

func main() {
	servers := strings.Split(os.Args[1], ",")
	millis, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	p := &peer{servers: servers, lease: time.Duration(millis) * time.Millisecond}
	p.kinds = map[string]kind{
		"redsync":   p.redsync,
		"redislock": p.redislock,
		"mutex":     p.mutex,
		"election":  p.election,
	}
	for name, take := range more {
		p.kinds[name] = func(name, value string, wait bool) (*held, error) { return take(p, name, wait) }
	}
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		answer, err := p.do(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}

// more are the kinds of the other files; one of them needs a newer Go.
var more = map[string]func(p *peer, name string, wait bool) (*held, error){}

type peer struct {
	servers []string
	lease   time.Duration
	kinds   map[string]kind
	held    *held
	etcd    *concurrency.Session
}

func (p *peer) do(words []string) (string, error) {
	words = append(words, "", "", "")
	switch words[0] {
	case "lock", "try":
		take := p.kinds[words[1]]
		if take == nil {
			return "", fmt.Errorf("unknown kind %q", words[1])
		}
		got, err := take(words[2], words[3], words[0] == "lock")
		if err != nil {
			return "", err
		}
		if got == nil {
			return "refused", nil
		}
		p.held = got
		return "held " + got.token, nil
	case "unlock":
		return "released", p.held.unlock()
	case "leader":
		return p.leader(words[2])
	case "observe":
		return p.observe(words[2], words[3])
	case "quit":
		os.Exit(0)
	}
	return "", fmt.Errorf("unknown command %q", words[0])
}

func (p *peer) redsync(name, _ string, wait bool) (*held, error) {
	var pools []redsyncredis.Pool
	for _, server := range p.servers {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: server})))
	}
	tries := 1
	if wait {
		tries = 1_000_000
	}
	mutex := redsync.New(pools...).NewMutex(name, redsync.WithExpiry(p.lease),
		redsync.WithTries(tries), redsync.WithRetryDelayFunc(pause))
	err := mutex.Lock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, nil
	}
	unlock := func() error {
		ok, err := mutex.Unlock()
		if err == nil && !ok {
			err = errors.New("not held any more")
		}
		return err
	}
	return &held{"-", unlock}, err
}

func (p *peer) redislock(name, _ string, wait bool) (*held, error) {
	client := redis.NewClient(&redis.Options{Addr: p.servers[0]})
	options := &redislock.Options{}
	within := ctx
	if wait {
		options.RetryStrategy = redislock.LinearBackoff(poll)
		// Without a deadline it would wait for one lease only.
		deadline, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		within = deadline
	}
	lock, err := redislock.Obtain(within, client, name, p.lease, options)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, nil
	}
	return &held{"-", func() error { return lock.Release(ctx) }}, err
}

// session is kept: a session is what a Go program has one of.
func (p *peer) session() (*concurrency.Session, error) {
	if p.etcd == nil {
		client, err := clientv3.New(clientv3.Config{Endpoints: p.servers, DialTimeout: 5 * time.Second})
		if err != nil {
			return nil, err
		}
		p.etcd, err = concurrency.NewSession(client, concurrency.WithTTL(int(p.lease.Seconds())))
		if err != nil {
			return nil, err
		}
	}
	return p.etcd, nil
}

func (p *peer) mutex(name, _ string, wait bool) (*held, error) {
	session, err := p.session()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, name)
	if wait {
		err = mutex.Lock(ctx)
	} else {
		err = mutex.TryLock(ctx)
	}
	if errors.Is(err, concurrency.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	answer, err := session.Client().Get(ctx, mutex.Key())
	if err != nil || len(answer.Kvs) != 1 {
		return nil, fmt.Errorf("%d keys are %q: %v", len(answer.Kvs), mutex.Key(), err)
	}
	token := strconv.FormatInt(answer.Kvs[0].CreateRevision, 10)
	return &held{token, func() error { return mutex.Unlock(ctx) }}, nil
}

func (p *peer) election(name, value string, _ bool) (*held, error) {
	session, err := p.session()
	if err != nil {
		return nil, err
	}
	election := concurrency.NewElection(session, name)
	if err := election.Campaign(ctx, value); err != nil {
		return nil, err
	}
	return &held{strconv.FormatInt(election.Rev(), 10), func() error { return election.Resign(ctx) }}, nil
}

func (p *peer) leader(name string) (string, error) {
	session, err := p.session()
	if err != nil {
		return "", err
	}
	answer, err := concurrency.NewElection(session, name).Leader(ctx)
	if errors.Is(err, concurrency.ErrElectionNoLeader) {
		return "nobody", nil
	}
	if err != nil {
		return "", err
	}
	return "leader " + string(answer.Kvs[0].Value), nil
}

// observe waits until Observe shows this leader.
func (p *peer) observe(name, value string) (string, error) {
	session, err := p.session()
	if err != nil {
		return "", err
	}
	within, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for answer := range concurrency.NewElection(session, name).Observe(within) {
		if string(answer.Kvs[0].Value) == value {
			return "leader " + value, nil
		}
	}
	return "", fmt.Errorf("%q was not seen to lead", value)
}
