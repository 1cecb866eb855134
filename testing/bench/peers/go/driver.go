// Go's locks behind the line protocol of `cargo xtask bench peers`, which ../README.md describes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// How long a lock lasts unless it is renewed.
const lease = 10 * time.Second

var ctx = context.Background()

// A lock is one goroutine's handle of one name. It waits, and says how to release.
type lock func() (func() error, error)

// A library is connected to its server; it makes handles, which is not measured.
type library func(name string) (lock, error)

// libraries connect to host:port.
var libraries = map[string]func(host string) (library, error){}

func main() {
	url := os.Args[2]
	host := url[strings.LastIndex(url, "/")+1:]
	must(serve(os.Args[1], host))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func serve(peer, host string) error {
	connect := libraries[peer]
	if connect == nil {
		return fmt.Errorf("unknown peer %q", peer)
	}
	make, err := connect(host)
	if err != nil {
		return err
	}
	var held []func() error
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "run":
			if err := run(make, in, words[1:]); err != nil {
				return err
			}
		case "hold":
			start := time.Now()
			count, _ := strconv.Atoi(words[2])
			for i := 0; i < count; i++ {
				take, err := make(fmt.Sprint(words[1], "-", i))
				if err != nil {
					return err
				}
				release, err := take()
				if err != nil {
					return err
				}
				held = append(held, release)
			}
			say(map[string]any{"seconds": time.Since(start).Seconds()})
		case "drop":
			for _, release := range held {
				if err := release(); err != nil {
					return err
				}
			}
			held = nil
			say(map[string]any{})
		}
	}
	return in.Err()
}

func run(make library, in *bufio.Scanner, words []string) error {
	names, _ := strconv.Atoi(words[1])
	tasks, _ := strconv.Atoi(words[2])
	seconds, _ := strconv.ParseFloat(words[3], 64)
	hold, _ := strconv.Atoi(words[4])
	var locks []lock
	for i := 0; i < tasks; i++ {
		one, err := make(fmt.Sprint(words[0], "-", i%names))
		if err != nil {
			return err
		}
		locks = append(locks, one)
	}
	fmt.Println("set")
	in.Scan()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var (
		all    sync.WaitGroup
		lock   sync.Mutex
		shares []int
		waits  = map[int]int{}
	)
	for _, take := range locks {
		all.Add(1)
		go func() {
			defer all.Done()
			share, own := one(take, end, time.Duration(hold)*time.Microsecond)
			lock.Lock()
			defer lock.Unlock()
			shares = append(shares, share)
			for bucket, count := range own {
				waits[bucket] += count
			}
		}()
	}
	all.Wait()
	list := [][2]int{}
	for bucket, count := range waits {
		list = append(list, [2]int{bucket, count})
	}
	say(map[string]any{"shares": shares, "waits": list})
	return nil
}

// One goroutine, until the time is over: how many it got in time, and all of its waits.
func one(take lock, end time.Time, hold time.Duration) (int, map[int]int) {
	share, waits := 0, map[int]int{}
	for {
		asked := time.Now()
		if !asked.Before(end) {
			return share, waits
		}
		release, err := take()
		must(err)
		got := time.Now()
		waits[int(math.Log2(math.Max(float64(got.Sub(asked)), 1))*64)]++
		if got.Before(end) {
			share++
		}
		if hold > 0 {
			time.Sleep(hold)
		}
		must(release())
	}
}

func say(what any) {
	line, _ := json.Marshal(what)
	fmt.Println(string(line))
}
