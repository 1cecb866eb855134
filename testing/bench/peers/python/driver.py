"""Python's locks behind the line protocol of `cargo xtask bench peers`, which ../README.md describes."""

import json
import math
import sys
import threading
import time

LEASE = 10


def redis_py(host):
    import redis

    address, port = host.split(":")
    client = redis.Redis(host=address, port=int(port))
    # It asks again every 100 ms, which is its default.
    return lambda name: client.lock(name, timeout=LEASE, thread_local=False)


def python_redis_lock(host):
    import redis
    import redis_lock

    address, port = host.split(":")
    client = redis.StrictRedis(host=address, port=int(port))
    return lambda name: redis_lock.Lock(client, name, expire=LEASE, strict=True)


def kazoo(host):
    from kazoo.client import KazooClient

    client = KazooClient(hosts=host, timeout=LEASE)
    client.start(timeout=20)
    return lambda name: client.Lock("/" + name, "driver")


LIBRARIES = {"redis-py": redis_py, "python-redis-lock": python_redis_lock, "kazoo": kazoo}


def one(lock, end, hold, shares, waits, mutex):
    """One thread, until the time is over: how many it got in time, and all of its waits."""
    share, own = 0, {}
    while True:
        asked = time.monotonic_ns()
        if asked >= end:
            break
        lock.acquire()
        got = time.monotonic_ns()
        bucket = int(math.log2(max(got - asked, 1)) * 64)
        own[bucket] = own.get(bucket, 0) + 1
        share += got < end
        if hold:
            time.sleep(hold)
        lock.release()
    with mutex:
        shares.append(share)
        for bucket, count in own.items():
            waits[bucket] = waits.get(bucket, 0) + count


def run(make, prefix, names, tasks, seconds, hold):
    locks = [make(f"{prefix}-{at % int(names)}") for at in range(int(tasks))]
    print("set", flush=True)
    sys.stdin.readline()
    end = time.monotonic_ns() + int(float(seconds) * 1e9)
    shares, waits, mutex = [], {}, threading.Lock()
    rest = (end, int(hold) / 1e6, shares, waits, mutex)
    threads = [threading.Thread(target=one, args=(lock, *rest)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"shares": shares, "waits": list(waits.items())}


def main(peer, url):
    make = LIBRARIES[peer](url.rsplit("/", 1)[1])
    held = []
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        answer = {}
        if words[0] == "run":
            answer = run(make, *words[1:])
        elif words[0] == "hold":
            start = time.monotonic()
            for at in range(int(words[2])):
                lock = make(f"{words[1]}-{at}")
                lock.acquire()
                held.append(lock)
            answer = {"seconds": time.monotonic() - start}
        elif words[0] == "drop":
            for lock in held:
                lock.release()
            held = []
        print(json.dumps(answer), flush=True)


main(*sys.argv[1:])
