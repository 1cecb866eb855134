import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.grpc.stub.StreamObserver;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.DriverManager;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;

/** Java's locks behind the line protocol of `cargo xtask bench peers`, which ../README.md describes. */
final class Driver {
    /** How long a lock lasts unless it is renewed. */
    private static final Duration LEASE = Duration.ofSeconds(10);

    /** Gives a lock back. */
    interface Release {
        void run() throws Exception;
    }

    /** One thread's handle of one name: it waits, and says how to release. */
    interface Lock {
        Release take() throws Exception;

        /** Gives back what the handle itself has of the server. */
        default void close() {}
    }

    /** Makes a handle, which is not measured. */
    interface Library {
        Lock lock(String name) throws Exception;
    }

    private static final BufferedReader LINES =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    public static void main(String[] args) throws Exception {
        var library = connect(args[0], args[1].substring(args[1].indexOf("//") + 2));
        var held = new ArrayList<Release>();
        System.out.println("ready");
        for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "run":
                    run(library, words);
                    break;
                case "hold":
                    long start = System.nanoTime();
                    for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                        held.add(library.lock(words[1] + "-" + i).take());
                    }
                    System.out.println("{\"seconds\":" + (System.nanoTime() - start) / 1e9 + "}");
                    break;
                default:
                    for (var release : held) {
                        release.run();
                    }
                    held.clear();
                    System.out.println("{}");
            }
        }
        System.exit(0);
    }

    private static void run(Library library, String[] words) throws Exception {
        int names = Integer.parseInt(words[2]);
        int tasks = Integer.parseInt(words[3]);
        long time = (long) (Double.parseDouble(words[4]) * 1e9);
        long hold = Long.parseLong(words[5]);
        var locks = new ArrayList<Lock>();
        for (int i = 0; i < tasks; i++) {
            locks.add(library.lock(words[1] + "-" + i % names));
        }
        var threads = Executors.newFixedThreadPool(tasks);
        System.out.println("set");
        LINES.readLine();
        long end = System.nanoTime() + time;
        var waits = new TreeMap<Integer, Integer>();
        var all = new ArrayList<Future<Integer>>();
        for (Lock lock : locks) {
            all.add(threads.submit((Callable<Integer>) () -> one(lock, end, hold, waits)));
        }
        var shares = new ArrayList<Integer>();
        for (var one : all) {
            shares.add(one.get());
        }
        threads.shutdown();
        locks.forEach(Lock::close);
        String buckets = waits.entrySet().stream()
                .map(it -> "[" + it.getKey() + "," + it.getValue() + "]")
                .collect(Collectors.joining(","));
        System.out.println("{\"shares\":" + shares + ",\"waits\":[" + buckets + "]}");
    }

    /** One thread, until the time is over: how many it got in time. All of its waits are added. */
    private static int one(Lock lock, long end, long hold, Map<Integer, Integer> waits) throws Exception {
        int share = 0;
        var own = new TreeMap<Integer, Integer>();
        for (long asked = System.nanoTime(); asked - end < 0; asked = System.nanoTime()) {
            Release release = lock.take();
            long got = System.nanoTime();
            int bucket = (int) (Math.log(Math.max(got - asked, 1)) / Math.log(2) * 64);
            own.merge(bucket, 1, Integer::sum);
            if (got - end < 0) {
                share++;
            }
            if (hold > 0) {
                TimeUnit.MICROSECONDS.sleep(hold);
            }
            release.run();
        }
        synchronized (waits) {
            own.forEach((bucket, count) -> waits.merge(bucket, count, Integer::sum));
        }
        return share;
    }

    private static Library connect(String peer, String host) throws Exception {
        switch (peer) {
            case "redisson":
                RedissonClient redisson = redisson(host);
                return name -> redisson(redisson.getLock(name));
            case "redisson-fair":
                RedissonClient fair = redisson(host);
                return name -> redisson(fair.getFairLock(name));
            case "curator":
                return curator(host);
            case "jetcd":
                return jetcd(host);
            case "shedlock":
                return shedlock(host);
            default:
                throw new IllegalArgumentException("unknown peer " + peer);
        }
    }

    private static RedissonClient redisson(String host) {
        var config = new Config();
        config.setLockWatchdogTimeout(LEASE.toMillis());
        config.useSingleServer().setAddress("redis://" + host);
        return Redisson.create(config);
    }

    private static Lock redisson(RLock lock) {
        return () -> {
            lock.lock();
            return lock::unlock;
        };
    }

    private static Library curator(String host) throws Exception {
        var retry = new ExponentialBackoffRetry(100, 3);
        var client = CuratorFrameworkFactory.newClient(host, (int) LEASE.toMillis(), 10_000, retry);
        client.start();
        if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + host);
        }
        return name -> {
            // One that threads share wakes all of them whenever it wakes one.
            var mutex = new InterProcessMutex(client, "/" + name);
            return () -> {
                mutex.acquire();
                return mutex::release;
            };
        };
    }

    private static Library jetcd(String host) throws Exception {
        var client = Client.builder().endpoints("http://" + host).build();
        long one = lease(client);
        return name -> {
            // A lease is one holder of a name, so that threads that may want one name have one each.
            boolean shared = name.startsWith("hold") || name.startsWith("names");
            long lease = shared ? one : lease(client);
            var key = ByteSequence.from(name, StandardCharsets.UTF_8);
            var locks = client.getLockClient();
            return () -> {
                var held = locks.lock(key, lease).get().getKey();
                return () -> locks.unlock(held).get();
            };
        };
    }

    /** A lease that is kept alive as long as the process lives. */
    private static long lease(Client client) throws Exception {
        long lease = client.getLeaseClient().grant(LEASE.toSeconds()).get().getID();
        client.getLeaseClient().keepAlive(lease, new StreamObserver<LeaseKeepAliveResponse>() {
            @Override
            public void onNext(LeaseKeepAliveResponse answer) {}

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {}
        });
        return lease;
    }

    /** A connection for each thread; what somebody has is asked for again after 20 ms. */
    private static Library shedlock(String host) throws Exception {
        String url = "jdbc:postgresql://" + host.substring(host.indexOf('@') + 1) + "?user=postgres";
        try (var connection = DriverManager.getConnection(url); var statement = connection.createStatement()) {
            statement.execute("CREATE TABLE IF NOT EXISTS shedlock (name VARCHAR(64) PRIMARY KEY,"
                    + " lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)");
        }
        return name -> new ShedLock(new SingleConnectionDataSource(url, true), name);
    }

    /** A row of ShedLock's table, by a connection. */
    private static final class ShedLock implements Lock {
        private final SingleConnectionDataSource database;
        private final LockProvider provider;
        private final String name;

        ShedLock(SingleConnectionDataSource database, String name) {
            this.database = database;
            this.name = name;
            provider = new JdbcTemplateLockProvider(JdbcTemplateLockProvider.Configuration.builder()
                    .withJdbcTemplate(new JdbcTemplate(database))
                    .usingDbTime()
                    .build());
        }

        @Override
        public Release take() throws Exception {
            for (; ; Thread.sleep(20)) {
                var lock = provider.lock(new LockConfiguration(Instant.now(), name, LEASE, Duration.ZERO));
                if (lock.isPresent()) {
                    return lock.get()::unlock;
                }
            }
        }

        @Override
        public void close() {
            database.destroy();
        }
    }
}
