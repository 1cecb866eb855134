"""A peer for holdline's tests: redis-py, python-redis-lock and kazoo behind the line protocol that ../main.rs describes."""

import sys

SERVERS, LEASE = sys.argv[1], float(sys.argv[2]) / 1000


def redis_py(name, wait):
    import redis

    host, port = SERVERS.split(",")[0].split(":")
    client = redis.Redis(host=host, port=int(port))
    lock = client.lock(name, timeout=LEASE, sleep=0.01)
    return lock if lock.acquire(blocking=wait) else None


def python_redis_lock(name, wait):
    import redis
    import redis_lock

    host, port = SERVERS.split(",")[0].split(":")
    client = redis.Redis(host=host, port=int(port), socket_timeout=None)
    lock = redis_lock.Lock(client, name, expire=int(LEASE))
    return lock if lock.acquire(blocking=wait) else None


_zookeeper = None


def zookeeper():
    """One session for all, as a program has it."""
    global _zookeeper
    if _zookeeper is None:
        from kazoo.client import KazooClient

        _zookeeper = KazooClient(hosts=SERVERS, timeout=LEASE)
        _zookeeper.start(timeout=20)
    return _zookeeper


def kazoo(kind):
    def take(name, wait):
        from kazoo.exceptions import NoNodeError

        while True:
            lock = getattr(zookeeper(), kind)("/" + name, "peer")
            try:
                return lock if lock.acquire(blocking=wait) else None
            except NoNodeError:
                # kazoo makes sure of the folder, and then makes its node there. In between the
                # servers may remove the folder, a container that is empty for a moment.
                continue

    return take


KINDS = {
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "kazoo": kazoo("Lock"),
    "kazoo-read": kazoo("ReadLock"),
    "kazoo-write": kazoo("WriteLock"),
}

held = None


def do(verb, kind="", name=""):
    global held
    if verb in ("lock", "try"):
        got = KINDS[kind](name, verb == "lock")
        held = got or held
        return "held -" if got else "refused"
    if verb == "unlock":
        held.release()
        return "released"
    if verb == "quit":
        sys.exit(0)
    raise ValueError(f"unknown command {verb}")


print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = do(*line.split())
    except Exception as error:  # whatever it is, the test wants to see it
        answer = f"error {type(error).__name__}: {error}".replace("\n", " ")
    print(answer, flush=True)
