// Go's side of `cargo xtask bench etcd-go`: locks of go.etcd.io/etcd/client/v3/concurrency, used as
// its documentation shows.
//
// Like our own workers it says "ready", waits for a line, does its work, and prints what came of
// it as one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// What a round came to.
type result struct {
	Locks   int     `json:"locks"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
}

var (
	endpoint = flag.String("endpoint", "127.0.0.1:2379", "where etcd is")
	name     = flag.String("name", "bench", "the lock")
	role     = flag.String("role", "alone", "alone: lock and unlock by turns, or wait: one lock each")
	seconds  = flag.Float64("seconds", 1, "how long a round of alone takes")
	waiters  = flag.Int("waiters", 1, "how many goroutines wait")
	local    = flag.Bool("local", false, "a sync.Mutex in front of one session, instead of a session each")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/go:", err)
		os.Exit(1)
	}
}

func run() error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{*endpoint},
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	if *role == "wait" {
		return wait(client)
	}
	return alone(client)
}

// Locks and unlocks by turns: a round for every line that is read.
func alone(client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, *name)
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		budget := time.Duration(*seconds * float64(time.Second))
		start, used, locks := time.Now(), cpu(), 0
		for time.Since(start) < budget {
			if err := pair(mutex); err != nil {
				return err
			}
			locks++
		}
		say(result{locks, time.Since(start).Seconds(), cpu() - used})
	}
	return in.Err()
}

func pair(mutex *concurrency.Mutex) error {
	if err := mutex.Lock(context.Background()); err != nil {
		return err
	}
	return mutex.Unlock(context.Background())
}

// So many goroutines take the lock once each. Whoever started this holds it until all wait.
func wait(client *clientv3.Client) error {
	sessions := *waiters
	if *local {
		sessions = 1
	}
	mutexes := make([]*concurrency.Mutex, sessions)
	for i := range mutexes {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
		if err != nil {
			return err
		}
		mutexes[i] = concurrency.NewMutex(session, *name)
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	in.Scan()
	var (
		all   sync.WaitGroup
		queue sync.Mutex
		fails = make(chan error, *waiters)
	)
	start, used := time.Now(), cpu()
	for i := 0; i < *waiters; i++ {
		all.Add(1)
		go func(mutex *concurrency.Mutex) {
			defer all.Done()
			if *local {
				queue.Lock()
				defer queue.Unlock()
			}
			if err := pair(mutex); err != nil {
				fails <- err
			}
		}(mutexes[i%sessions])
	}
	all.Wait()
	select {
	case err := <-fails:
		return err
	default:
	}
	say(result{*waiters, time.Since(start).Seconds(), cpu() - used})
	return nil
}

func say(what any) {
	line, _ := json.Marshal(what)
	fmt.Println(string(line))
}

// The CPU time of this process.
func cpu() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}
