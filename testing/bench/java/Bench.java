import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Locale;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Curator's side of `cargo xtask bench zookeeper-curator`: InterProcessMutex, as its documentation shows it.
 *
 * <p>Once it is warm it says "ready". Then, for each line that it reads, it does a round of its work, and prints what
 * came of it as one line of JSON. Arguments: the server, the role (alone or wait), the lock's name, for how many seconds
 * a round of alone lasts, how many threads wait, and for how many seconds it warms up.
 */
final class Bench {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final CuratorFramework client;
    private final int waiters;
    private final ExecutorService threads;

    private Bench(String server, int waiters) throws Exception {
        this.waiters = waiters;
        client = CuratorFrameworkFactory.newClient(server, 15_000, 10_000, new ExponentialBackoffRetry(100, 3));
        client.start();
        if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection to " + server);
        }
        threads = Executors.newFixedThreadPool(waiters);
    }

    public static void main(String[] args) throws Exception {
        String role = args[1];
        String name = args[2];
        double seconds = Double.parseDouble(args[3]);
        var bench = new Bench(args[0], Integer.parseInt(args[4]));
        double warm = Double.parseDouble(args[5]);
        String own = "warm-" + UUID.randomUUID();
        if (role.equals("wait")) {
            for (long end = end(warm); System.nanoTime() < end; ) {
                bench.drain(own);
            }
        } else {
            bench.alone(own, warm);
        }
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (int round = 0; lines.readLine() != null; round++) {
            long start = System.nanoTime();
            long used = SYSTEM.getProcessCpuTime();
            int locks = role.equals("wait") ? bench.drain(name + "-" + round) : bench.alone(name, seconds);
            double took = (System.nanoTime() - start) / 1e9;
            double cpu = (SYSTEM.getProcessCpuTime() - used) / 1e9;
            System.out.println(
                    String.format(Locale.ROOT, "{\"locks\":%d,\"seconds\":%.9f,\"cpu\":%.9f}", locks, took, cpu));
        }
        System.exit(0);
    }

    private static long end(double seconds) {
        return System.nanoTime() + (long) (seconds * 1e9);
    }

    /** One thread locks and unlocks. */
    private int alone(String name, double seconds) throws Exception {
        var mutex = new InterProcessMutex(client, "/" + name);
        int locks = 0;
        for (long end = end(seconds); System.nanoTime() < end; locks++) {
            mutex.acquire();
            mutex.release();
        }
        return locks;
    }

    /**
     * Each thread takes the lock once. Whoever lets this begin holds it until all wait. With a mutex for each thread,
     * for one that they share wakes all of them whenever it wakes one.
     */
    private int drain(String name) throws Exception {
        Callable<Void> once = () -> {
            var mutex = new InterProcessMutex(client, "/" + name);
            mutex.acquire();
            mutex.release();
            return null;
        };
        var all = new ArrayList<Future<Void>>();
        for (int i = 0; i < waiters; i++) {
            all.add(threads.submit(once));
        }
        for (var one : all) {
            one.get();
        }
        return waiters;
    }
}
