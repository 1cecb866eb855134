import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.support.Observers;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import org.springframework.integration.redis.util.RedisLockRegistry.RedisLockType;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;

/** A peer for holdline's tests: Redisson, Spring, Curator, jetcd and ShedLock behind the line protocol that ../main.rs describes. */
final class Peer {
    /** Gives a lock back. */
    interface Held {
        void unlock() throws Exception;
    }

    /** Takes a lock, waiting or not; null if somebody else has it. */
    interface Kind {
        Held take(String name, boolean wait) throws Exception;
    }

    private static Map.Entry<String, Kind> kind(String name, Kind kind) {
        return Map.entry(name, kind);
    }

    private static String servers;
    private static int lease;
    private static RedissonClient redisson;
    private static CuratorFramework curator;
    private static Client etcd;
    private static RedisLockRegistry spring;
    private static LockProvider shedlock;
    private static Held held;

    private static final Map<String, Kind> KINDS = Map.ofEntries(
            kind("redisson", (name, wait) -> redisson(redisson().getLock(name), wait)),
            kind("redisson-fenced", (name, wait) -> redisson(redisson().getFencedLock(name), wait)),
            kind("redisson-spin", (name, wait) -> redisson(redisson().getSpinLock(name), wait)),
            kind("redisson-read", (name, wait) ->
                    redisson(redisson().getReadWriteLock(name).readLock(), wait)),
            kind("redisson-write", (name, wait) ->
                    redisson(redisson().getReadWriteLock(name).writeLock(), wait)),
            kind("spring-spin", (name, wait) -> spring(RedisLockType.SPIN_LOCK, name, wait)),
            kind("spring-pub-sub", (name, wait) -> spring(RedisLockType.PUB_SUB_LOCK, name, wait)),
            kind("curator", (name, wait) -> curator(new InterProcessMutex(curator(), "/" + name), wait)),
            kind("curator-read", (name, wait) ->
                    curator(new InterProcessReadWriteLock(curator(), "/" + name).readLock(), wait)),
            kind("curator-write", (name, wait) ->
                    curator(new InterProcessReadWriteLock(curator(), "/" + name).writeLock(), wait)),
            kind("jetcd", Peer::jetcd),
            kind("shedlock", (name, wait) -> shedlock(name, wait, Duration.ZERO)),
            kind("shedlock-1h", (name, wait) -> shedlock(name, wait, Duration.ofHours(1))),
            kind("latch", Peer::latch));

    public static void main(String[] args) throws Exception {
        servers = args[0];
        lease = Integer.parseInt(args[1]);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = answer((line + " - -").split(" "));
            } catch (Exception e) {
                answer = "error " + e.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    /**
     * A one-shot lock, held for the lease at most, and at least for this long. The servers are a
     * URL for JDBC.
     */
    private static Held shedlock(String name, boolean wait, Duration atLeast) throws Exception {
        if (shedlock == null) {
            var database = new DriverManagerDataSource("jdbc:" + servers);
            shedlock = new JdbcTemplateLockProvider(
                    JdbcTemplateLockProvider.Configuration.builder()
                            .withJdbcTemplate(new JdbcTemplate(database))
                            .usingDbTime()
                            .build());
        }
        for (; ; Thread.sleep(20)) {
            var lock = shedlock.lock(new LockConfiguration(
                    Instant.now(), name, Duration.ofMillis(lease), atLeast));
            if (lock.isPresent()) {
                return lock.get()::unlock;
            }
            if (!wait) {
                return null;
            }
        }
    }

    /** etcd's own lock service, which has no try: one that is not wanted any more ends with its lease. */
    private static Held jetcd(String name, boolean wait) throws Exception {
        if (etcd == null) {
            etcd = Client.builder().endpoints("http://" + servers.split(",")[0]).build();
        }
        var leases = etcd.getLeaseClient();
        long id = leases.grant(lease / 1000).get().getID();
        var alive = leases.keepAlive(id, Observers.observer(response -> {}));
        var asked = etcd.getLockClient().lock(ByteSequence.from(name, StandardCharsets.UTF_8), id);
        try {
            var key = (wait ? asked.get() : asked.get(300, TimeUnit.MILLISECONDS)).getKey();
            return () -> {
                etcd.getLockClient().unlock(key).get();
                alive.close();
                leases.revoke(id).get();
            };
        } catch (TimeoutException e) {
            alive.close();
            leases.revoke(id).get();
            return null;
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "lock":
            case "try":
                Held got = KINDS.get(words[1]).take(words[2], words[0].equals("lock"));
                if (got == null) {
                    return "refused";
                }
                held = got;
                return "held -";
            case "unlock":
                held.unlock();
                return "released";
            case "leader":
                // One that is not started asks, and takes no part.
                var leader = new LeaderLatch(curator(), "/" + words[2]).getLeader();
                return leader.isLeader() ? "leader " + leader.getId() : "nobody";
            case "quit":
                System.exit(0);
            default:
                throw new IllegalArgumentException("unknown command " + words[0]);
        }
    }

    /** One client for all, as a program has it. */
    private static RedissonClient redisson() {
        if (redisson == null) {
            var config = new Config();
            config.setLockWatchdogTimeout(lease);
            config.setNettyThreads(2).setThreads(2);
            config.useSingleServer().setAddress("redis://" + servers.split(",")[0])
                    .setConnectionMinimumIdleSize(1).setConnectionPoolSize(4)
                    .setSubscriptionConnectionMinimumIdleSize(1);
            redisson = Redisson.create(config);
        }
        return redisson;
    }

    private static Held redisson(RLock lock, boolean wait) {
        if (wait) {
            lock.lock();
        } else if (!lock.tryLock()) {
            return null;
        }
        return lock::unlock;
    }

    /** A registry has locks of one type; a peer is asked for one. */
    private static Held spring(RedisLockType type, String name, boolean wait) {
        if (spring == null) {
            // The other libraries here bring native transports of other versions.
            System.setProperty("io.lettuce.core.epoll", "false");
            var host = servers.split(",")[0].split(":");
            var factory = new LettuceConnectionFactory(host[0], Integer.parseInt(host[1]));
            factory.afterPropertiesSet();
            factory.start();
            spring = new RedisLockRegistry(factory, "spring", lease);
            spring.setRedisLockType(type);
        }
        var lock = spring.obtain(name);
        if (wait) {
            lock.lock();
        } else if (!lock.tryLock()) {
            return null;
        }
        return lock::unlock;
    }

    private static CuratorFramework curator() throws Exception {
        if (curator == null) {
            curator = CuratorFrameworkFactory.newClient(servers, lease, 5000, new RetryOneTime(100));
            curator.start();
            if (!curator.blockUntilConnected(20, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no connection to " + servers);
            }
        }
        return curator;
    }

    private static Held curator(InterProcessMutex lock, boolean wait) throws Exception {
        if (wait) {
            lock.acquire();
        } else if (!lock.acquire(0, TimeUnit.SECONDS)) {
            return null;
        }
        return lock::release;
    }

    private static Held latch(String name, boolean wait) throws Exception {
        var latch = new LeaderLatch(curator(), "/" + name, "java");
        latch.start();
        if (wait) {
            latch.await();
        } else if (!latch.await(1, TimeUnit.SECONDS)) {
            latch.close();
            return null;
        }
        return latch::close;
    }
}
