package leasehold.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.annotations.SerializedName;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RList;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.ShardedSubscriptionMode;

/**
 * Drives Redisson's locks with lines of JSON, for the Go tests.
 *
 * <p>Each line on standard input is a command. When it is done, a line on standard output with the same
 * id is the reply. Commands of one thread run one after the other; all others run concurrently. An
 * exception is returned as a reply, too. The process ends only when the input ends or when it is killed.
 * To run it by hand:
 *
 * <pre>
 * mvn -q package && java -jar target/driver.jar
 * {"id":1,"do":"open","client":"a","addresses":["127.0.0.1:6379"]}
 * {"id":2,"do":"lock","client":"a","thread":"t","kind":"plain","name":"orders"}
 * {"id":3,"do":"tryLock","client":"a","thread":"u","kind":"plain","name":"orders","wait":2000}
 * {"id":4,"do":"unlock","client":"a","thread":"t","kind":"plain","name":"orders"}
 * {"id":5,"do":"close","client":"a"}
 * </pre>
 *
 * <p>See {@link Request} for the fields of a command, and {@link #call} for the commands of a thread,
 * which are named after Redisson's methods.
 */
public final class Driver {
    /** A command. All times are in milliseconds. */
    static final class Request {
        long id;
        @SerializedName("do") String what;

        /** The name of the RedissonClient, which "open" creates. */
        String client;

        /** The name of one of its threads. It is a real thread, because Redisson distinguishes owners by thread id. */
        String thread;

        /** plain, fair, read, write or fenced. */
        String kind;
        String name;

        /** Without a lease, the watchdog renews the lock. Without a wait, tryLock does not wait. */
        Long wait;
        Long lease;

        /** Only for isHeldByThread. */
        long threadId;

        // Only for open. With a master, these are the addresses of its Sentinels. Otherwise, several addresses, or
        // "cluster", mean a cluster.
        List<String> addresses;
        boolean cluster;
        String master;
        Long lockWatchdogTimeout;
        Long fairLockWaitTimeout;

        /** Only for a cluster: AUTO, ON or OFF. */
        ShardedSubscriptionMode shardedSubscriptionMode;

        Contest.Plan contest;

        /** Only for share: the number of threads, which run until "enough", and the list to which each holder adds its side. */
        int threads;
        String history;

        // Only for objects other than locks; see Others.
        long n;
        long interval;
        double p;
        List<String> elements;
        boolean kryo;
    }

    /** A reply: a value, or an error with the class names of its chain of causes. */
    record Reply(long id, Object value, String err, List<String> is) {}

    /** What a thread did: the result, its owner, and when it began and ended, by a clock that all processes of a host share. */
    record Did(Object result, String owner, long called, long returned) {}

    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, Worker> workers = new ConcurrentHashMap<>();
    private volatile boolean enough; // ends the threads of share

    public static void main(String[] args) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        Driver driver = new Driver();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            driver.take(line);
        }
        Runtime.getRuntime().halt(0); // the process that sent commands is gone
    }

    /** Runs a command, on its thread if it names one. */
    private void take(String line) {
        Request r = new Request();
        try {
            Request parsed = GSON.fromJson(line, Request.class);
            if (parsed == null) {
                return; // an empty line
            }
            r = parsed;
            if (r.thread == null || r.what.equals("waits")) {
                Request own = r;
                new Thread(() -> answer(own, null)).start();
            } else {
                worker(r).todo.add(r);
            }
        } catch (RuntimeException e) {
            reply(failure(r, e));
        }
    }

    private Worker worker(Request r) {
        return workers.computeIfAbsent(r.client + "/" + r.thread, name -> {
            Worker w = new Worker(name);
            w.start();
            return w;
        });
    }

    private RedissonClient client(String name) {
        RedissonClient c = name == null ? null : clients.get(name);
        if (c == null) {
            throw new IllegalArgumentException("there is no client " + name);
        }
        return c;
    }

    private void answer(Request r, Worker w) {
        Reply reply;
        try {
            reply = new Reply(r.id, w == null ? serve(r) : w.serve(r), null, null);
        } catch (Throwable e) {
            reply = failure(r, e);
        }
        reply(reply);
    }

    private static Reply failure(Request r, Throwable e) {
        List<String> is = new ArrayList<>();
        for (Throwable cause = e; cause != null; cause = cause.getCause()) {
            is.add(cause.getClass().getSimpleName());
        }
        return new Reply(r.id, null, e.toString(), is);
    }

    private void reply(Reply reply) {
        String line = GSON.toJson(reply);
        synchronized (out) {
            out.println(line);
        }
    }

    /** Runs a command that names no thread. */
    private Object serve(Request r) throws Exception {
        switch (r.what) {
            case "open":
                RedissonClient c = open(r);
                clients.put(r.client, c);
                return c.getId();
            case "close":
                client(r.client).shutdown(0, 1, TimeUnit.SECONDS);
                clients.remove(r.client);
                return null;
            case "waits": // does the thread wait for a message?
                return Arrays.stream(worker(r).getStackTrace()).anyMatch(f -> f.getClassName().equals(Semaphore.class.getName()));
            case "contest":
                List<RedissonClient> all = new ArrayList<>();
                for (String name : r.contest.clients()) {
                    all.add(client(name));
                }
                return new Contest(r.contest, all).run();
            case "share":
                return share(client(r.client), r);
            case "enough":
                enough = true;
                return null;
            default:
                return Others.serve(client(r.client), r);
        }
    }

    /** Has threads lock and unlock without a pause, and returns how often they did. */
    private int share(RedissonClient c, Request r) throws Exception {
        enough = false;
        List<FutureTask<Integer>> all = new ArrayList<>();
        for (int i = 0; i < r.threads; i++) {
            FutureTask<Integer> task = new FutureTask<>(() -> {
                RLock l = r.kind == null ? c.getLock(r.name) : lock(c, r.kind, r.name);
                RList<String> history = r.history == null ? null : c.getList(r.history);
                int n = 0;
                for (; !enough; n++) {
                    l.lock();
                    try {
                        if (history != null) {
                            history.add("java");
                        }
                    } finally {
                        l.unlock();
                    }
                }
                return n;
            });
            all.add(task);
            new Thread(task).start();
        }
        int sum = 0;
        for (FutureTask<Integer> task : all) {
            sum += task.get();
        }
        return sum;
    }

    private static RedissonClient open(Request r) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setThreads(4);
        config.setNettyThreads(4);
        if (r.lockWatchdogTimeout != null) {
            config.setLockWatchdogTimeout(r.lockWatchdogTimeout);
        }
        if (r.fairLockWaitTimeout != null) {
            config.setFairLockWaitTimeout(r.fairLockWaitTimeout);
        }
        String[] urls = r.addresses.stream().map(a -> "redis://" + a).toArray(String[]::new);
        if (r.master != null) {
            var sentinels = config.useSentinelServers().setMasterName(r.master).addSentinelAddress(urls);
            sentinels.setMasterConnectionMinimumIdleSize(IDLE).setSlaveConnectionMinimumIdleSize(IDLE);
            sentinels.setReadMode(ReadMode.MASTER); // reads from a replica can be stale
            patient(sentinels);
        } else if (r.cluster || urls.length > 1) {
            var cluster = config.useClusterServers().addNodeAddress(urls);
            if (r.shardedSubscriptionMode != null) {
                cluster.setShardedSubscriptionMode(r.shardedSubscriptionMode);
            }
            cluster.setMasterConnectionMinimumIdleSize(IDLE).setSlaveConnectionMinimumIdleSize(IDLE);
            cluster.setReadMode(ReadMode.MASTER); // reads from a replica can be stale
            patient(cluster);
        } else {
            patient(config.useSingleServer().setAddress(urls[0]).setConnectionMinimumIdleSize(IDLE));
        }
        return Redisson.create(config);
    }

    /** The idle connections of a client. It is small, because a test opens many clients. */
    private static final int IDLE = 2;

    /** Sets longer timeouts than the defaults, because the machine may be busy. */
    private static void patient(BaseConfig<?> config) {
        config.setTimeout(10_000).setSubscriptionTimeout(30_000);
    }

    static RLock lock(RedissonClient c, String kind, String name) {
        return switch (kind) {
            case "plain" -> c.getLock(name);
            case "fair" -> c.getFairLock(name);
            case "read" -> c.getReadWriteLock(name).readLock();
            case "write" -> c.getReadWriteLock(name).writeLock();
            case "fenced" -> c.getFencedLock(name);
            default -> throw new IllegalArgumentException("what kind is " + kind + "?");
        };
    }

    /** A thread that acquires and releases locks. It keeps its handles, as applications do. */
    private final class Worker extends Thread {
        final BlockingQueue<Request> todo = new LinkedBlockingQueue<>();
        private final Map<String, RLock> locks = new HashMap<>();

        Worker(String name) {
            super(name);
        }

        @Override
        public void run() {
            try {
                while (true) {
                    answer(todo.take(), this);
                }
            } catch (InterruptedException e) {
                // it is never interrupted
            }
        }

        Did serve(Request r) throws Exception {
            RedissonClient c = client(r.client);
            RLock l = locks.computeIfAbsent(c.getId() + r.kind + r.name, k -> lock(c, r.kind, r.name));
            long called = System.nanoTime();
            Object result = call(l, r);
            return new Did(result, c.getId() + ":" + getId(), called, System.nanoTime());
        }
    }

    /** Calls the method of Redisson that the command is named after. */
    private static Object call(RLock l, Request r) throws Exception {
        TimeUnit ms = TimeUnit.MILLISECONDS;
        switch (r.what) {
            case "lock":
                if (r.lease == null) {
                    l.lock();
                } else {
                    l.lock(r.lease, ms);
                }
                return null;
            case "tryLock":
                if (r.wait == null && r.lease == null) {
                    return l.tryLock();
                }
                return l.tryLock(r.wait == null ? 0 : r.wait, r.lease == null ? -1 : r.lease, ms);
            case "lockAndGetToken":
                return r.lease == null ? ((RFencedLock) l).lockAndGetToken() : ((RFencedLock) l).lockAndGetToken(r.lease, ms);
            case "tryLockAndGetToken":
                if (r.wait == null && r.lease == null) {
                    return ((RFencedLock) l).tryLockAndGetToken();
                }
                return ((RFencedLock) l).tryLockAndGetToken(r.wait == null ? 0 : r.wait, r.lease == null ? -1 : r.lease, ms);
            case "getToken":
                return ((RFencedLock) l).getToken();
            case "unlock":
                l.unlock();
                return null;
            case "forceUnlock":
                return l.forceUnlock();
            case "isLocked":
                return l.isLocked();
            case "getHoldCount":
                return l.getHoldCount();
            case "isHeldByCurrentThread":
                return l.isHeldByCurrentThread();
            case "isHeldByThread":
                return l.isHeldByThread(r.threadId);
            case "remainTimeToLive":
                return l.remainTimeToLive();
            default:
                throw new IllegalArgumentException("what is " + r.what + "?");
        }
    }
}
