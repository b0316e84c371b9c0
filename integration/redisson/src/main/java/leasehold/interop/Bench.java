package leasehold.interop;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonStreamParser;
import com.sun.management.OperatingSystemMXBean;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.LongSupplier;
import org.redisson.Redisson;
import org.redisson.api.RBloomFilter;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * A worker process of the benchmarks that uses Redisson. It follows the protocol of proof/benchmarks/worker.go: it reads its role
 * from the environment and jobs in JSON from stdin, and writes a result for each to stdout.
 */
public final class Bench {
    private static final String ENV = "LEASEHOLD_BENCHMARKS_WORKER";

    record Settings(String Addr, long Lease, boolean Fair) {}

    record Role(Settings Settings, int Process, String Board) {}

    record Job(String Do, int Goroutines, boolean Each, boolean Read, int Names, int PerSecond, long Inside, long Begin, long End) {}

    private static final class Result {
        String Err = "";
        long[] Counts = {};
        long Total;
        long Switches;
        long Moves;
        long AllMoves;
        long[] Waits = new long[Tally.BUCKETS];
        long Longest;
        long Violations;
        long Failed;
        long Admitted;
        List<Long> Handovers = new ArrayList<>();
        long CPU = cpu();
        long CPUAfter;
        long RSS;
        int Routines;
        long At;
    }

    /** The counts of one thread. */
    private static final class Tally {
        static final int BUCKETS = 40 * 32; // like the histogram in proof/benchmarks/loop.go

        final long[] waits = new long[BUCKETS];
        long count;
        long total;
        long switches;
        long moves;
        long allMoves;
        long longest;
        long violations;
        long failed;

        void note(long took) {
            long n = Math.max(took, 1);
            int shift = 64 - Long.numberOfLeadingZeros(n) - 6;
            waits[n < 32 ? (int) n : Math.min((shift + 1) * 32 + (int) (n >> shift) - 32, BUCKETS - 1)]++;
            longest = Math.max(longest, took);
        }
    }

    /** Shared memory in which all processes record who holds a lock: see proof/benchmarks/board.go. */
    private static final class Board {
        private static final VarHandle INTS = MethodHandles.byteBufferViewVarHandle(int[].class, ByteOrder.nativeOrder());
        private static final VarHandle LONGS = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());
        private static final int SLOTS = 8; // the offset: the time of the latest unlock comes first
        private static final int SLOT = 64;
        private static final int COUNT = 1024;

        private final ByteBuffer memory;

        Board(String path) throws Exception {
            try (FileChannel f = FileChannel.open(Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                memory = f.map(FileChannel.MapMode.READ_WRITE, 0, SLOTS + SLOT * COUNT);
            }
        }

        boolean enter(int n) {
            return (int) INTS.getAndAdd(memory, SLOTS + SLOT * n, 1) == 0;
        }

        long unlocking() {
            return (long) LONGS.getVolatile(memory, 0);
        }

        void unlocks(long at) {
            LONGS.setVolatile(memory, 0, at);
        }

        int last(int n) {
            return (int) INTS.getVolatile(memory, SLOTS + SLOT * n + 4);
        }

        int swap(int n, int holder) {
            return (int) INTS.getAndSet(memory, SLOTS + SLOT * n + 4, holder);
        }

        void leave(int n) {
            INTS.getAndAdd(memory, SLOTS + SLOT * n, -1);
        }
    }

    private final Role role;
    private final Board board;
    private final RedissonClient client;

    private Bench(Role role) throws Exception {
        this.role = role;
        board = new Board(role.Board);
        Config config = new Config();
        config.setLockWatchdogTimeout(TimeUnit.NANOSECONDS.toMillis(role.Settings.Lease));
        config.useSingleServer().setAddress("redis://" + role.Settings.Addr);
        client = Redisson.create(config);
    }

    public static void main(String[] args) throws Exception {
        Gson gson = new Gson();
        PrintStream out = System.out;
        System.setOut(System.err);
        Bench b = new Bench(gson.fromJson(System.getenv(ENV), Role.class));
        b.warmUp();
        JsonStreamParser jobs = new JsonStreamParser(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (jobs.hasNext()) {
            JsonObject text = jobs.next().getAsJsonObject();
            Result r = new Result();
            try {
                b.carryOut(gson.fromJson(text, Job.class), r);
            } catch (Exception e) {
                r.Err = e.toString();
            }
            r.CPUAfter = cpu();
            out.println(gson.toJson(r));
            out.flush();
        }
        b.client.shutdown();
    }

    private void carryOut(Job job, Result r) throws Exception {
        switch (job.Do) {
            case "look" -> look(r);
            case "loop" -> loop(job, r);
            case "handover" -> handOver(job, r);
            case "latch" -> latch(job, r);
            case "limits" -> setLimits(job);
            case "rate" -> rate(job, r);
            case "look up" -> lookUp(job, r);
            default -> throw new IllegalArgumentException("no such job: " + job.Do);
        }
    }

    private void look(Result r) throws Exception {
        System.gc();
        r.Routines = Thread.activeCount();
        r.RSS = Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
    }

    /** Makes the JVM compile the hot paths before anything is measured. */
    private void warmUp() throws Exception {
        for (int threads : new int[] {1, 64}) {
            long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(1500);
            run(threads, n -> {
                RLock own = lock("warm:" + role.Process + ":" + n, false);
                while (System.nanoTime() < end) {
                    own.lock();
                    own.unlock();
                }
            });
        }
    }

    private interface Work {
        void run(int thread) throws Exception;
    }

    /** Runs work in this many threads and waits for them. It throws the first exception that ended one of them. */
    private static void run(int threads, Work work) throws Exception {
        List<Thread> all = new ArrayList<>();
        CountDownLatch begin = new CountDownLatch(1);
        AtomicReference<Exception> first = new AtomicReference<>();
        for (int i = 0; i < threads; i++) {
            int n = i;
            Thread t = new Thread(() -> {
                try {
                    begin.await();
                    work.run(n);
                } catch (Exception e) {
                    first.compareAndSet(null, e);
                }
            });
            t.start();
            all.add(t);
        }
        begin.countDown();
        for (Thread t : all) {
            t.join();
        }
        if (first.get() != null) {
            throw first.get();
        }
    }

    private RLock lock(String name, boolean reads) {
        if (reads) {
            return client.getReadWriteLock(name).readLock();
        }
        return role.Settings.Fair ? client.getFairLock(name) : client.getLock(name);
    }

    private void loop(Job job, Result r) throws Exception {
        Tally[] tallies = new Tally[job.Goroutines];
        for (int i = 0; i < tallies.length; i++) {
            tallies[i] = new Tally();
        }
        begin(job);
        long used = cpu();
        run(job.Goroutines, n -> lockAndUnlock(n, job, tallies[n]));
        r.CPU = cpu() - used;
        r.Counts = new long[job.Goroutines];
        for (int i = 0; i < tallies.length; i++) {
            Tally t = tallies[i];
            r.Counts[i] = t.count;
            r.Total += t.total;
            r.Switches += t.switches;
            r.Moves += t.moves;
            r.AllMoves += t.allMoves;
            r.Violations += t.violations;
            r.Failed += t.failed;
            r.Longest = Math.max(r.Longest, t.longest);
            for (int b = 0; b < r.Waits.length; b++) {
                r.Waits[b] += t.waits[b];
            }
        }
    }

    private static void begin(Job job) throws InterruptedException {
        Thread.sleep(Math.max((job.Begin - System.nanoTime()) / 1_000_000, 0));
    }

    /** Hands a lock off between two processes that both run this method: see proof/benchmarks/handover.go. */
    private void handOver(Job job, Result r) throws Exception {
        begin(job);
        int me = (role.Process + 1) << 16;
        RLock l = lock("bench:0", false);
        while (System.nanoTime() < job.End) {
            l.lock();
            long at = System.nanoTime();
            if (!board.enter(0)) {
                r.Violations++;
            }
            int last = board.swap(0, me);
            long since = board.unlocking();
            if (since != 0 && last != me) {
                r.Handovers.add(at - since);
            }
            TimeUnit.NANOSECONDS.sleep(job.Inside); // the other process is waiting by then
            board.leave(0);
            board.unlocks(System.nanoTime());
            l.unlock();
            r.Total++;
            while (board.last(0) == me && System.nanoTime() < job.End) {
                TimeUnit.MICROSECONDS.sleep(200);
            }
        }
    }

    /** Counts a latch down to zero, round after round: see proof/benchmarks/latches.go. */
    private void latch(Job job, Result r) throws Exception {
        RCountDownLatch l = client.getCountDownLatch("latch");
        Tally[] tallies = new Tally[job.Goroutines];
        for (int i = 0; i < tallies.length; i++) {
            tallies[i] = new Tally();
        }
        begin(job);
        long used = cpu();
        do {
            if (!l.trySetCount((long) job.Goroutines * job.Names)) {
                throw new IllegalStateException("no latch was made");
            }
            long[] opened = new long[1];
            AtomicLong last = new AtomicLong();
            Thread waits = new Thread(() -> {
                try {
                    l.await();
                    opened[0] = System.nanoTime();
                } catch (InterruptedException e) {
                    // A call failed, so the count does not reach zero.
                }
            });
            waits.start();
            try {
                run(job.Goroutines, n -> {
                    for (int i = 0; i < job.Names; i++) {
                        long began = System.nanoTime();
                        l.countDown();
                        tallies[n].note(System.nanoTime() - began);
                        last.accumulateAndGet(began, Math::max); // Redisson does not report which call released it
                    }
                });
            } catch (Exception e) {
                waits.interrupt();
                throw e;
            } finally {
                waits.join();
            }
            r.Handovers.add(opened[0] - last.get());
            r.Total += (long) job.Goroutines * job.Names;
        } while (System.nanoTime() < job.End);
        r.CPU = cpu() - used;
        r.At = System.nanoTime();
        for (Tally t : tallies) {
            for (int b = 0; b < r.Waits.length; b++) {
                r.Waits[b] += t.waits[b];
            }
        }
    }

    /** Writes the settings of all keys with one script: calls of trySetRate would take as long as the rest of the benchmark. */
    private void setLimits(Job job) {
        client.getScript(StringCodec.INSTANCE).eval(RScript.Mode.READ_WRITE,
            "for i = 0, ARGV[1] - 1 do redis.call('HSET', 'k' .. i, 'rate', ARGV[2], 'interval', 1000, 'keepAliveTime', 0, 'type', 0) end",
            RScript.ReturnType.LONG, List.of("k0"), Integer.toString(job.Names), Integer.toString(job.PerSecond));
    }

    private void rate(Job job, Result r) throws Exception {
        spin(job, r, () -> client.getRateLimiter("k" + (job.Names > 1 ? ThreadLocalRandom.current().nextInt(job.Names) : 0)).tryAcquire() ? 1 : 0);
    }

    private void lookUp(Job job, Result r) throws Exception {
        RBloomFilter<String> f = client.getBloomFilter("filter", StringCodec.INSTANCE);
        AtomicLong next = new AtomicLong();
        spin(job, r, () -> {
            if (job.Names == 1) {
                return f.contains("out" + next.incrementAndGet()) ? 1 : 0;
            }
            List<String> some = new ArrayList<>();
            for (int i = 0; i < job.Names; i++) {
                some.add("out" + next.incrementAndGet());
            }
            return f.contains(some);
        });
    }

    /** Repeats the call until the end, and adds up the results: see spin in proof/benchmarks/rates.go. */
    private static void spin(Job job, Result r, LongSupplier call) throws Exception {
        Tally[] tallies = new Tally[job.Goroutines];
        long[] sums = new long[job.Goroutines];
        begin(job);
        long used = cpu();
        run(job.Goroutines, n -> {
            Tally t = new Tally();
            tallies[n] = t;
            for (long began = System.nanoTime(); began < job.End || t.total == 0; t.total++) {
                sums[n] += call.getAsLong();
                long now = System.nanoTime();
                t.note(now - began);
                began = now;
            }
        });
        r.CPU = cpu() - used;
        r.At = System.nanoTime();
        for (int i = 0; i < job.Goroutines; i++) {
            r.Total += tallies[i].total;
            r.Admitted += sums[i];
            for (int b = 0; b < r.Waits.length; b++) {
                r.Waits[b] += tallies[i].waits[b];
            }
        }
    }

    private void lockAndUnlock(int thread, Job job, Tally t) {
        int n = job.Each ? role.Process * job.Goroutines + thread : 0;
        int me = (role.Process + 1) << 16 | thread;
        RLock l = lock("bench:" + n, job.Read);
        while (true) {
            long began = System.nanoTime();
            if (began > job.End && t.total + t.failed > 0) {
                return;
            }
            try {
                l.lock();
                long got = System.nanoTime();
                boolean inTime = got < job.End;
                if (!job.Read) {
                    enter(n, me, inTime, t);
                }
                if (job.Inside > 0) {
                    TimeUnit.NANOSECONDS.sleep(job.Inside);
                }
                if (!job.Read) {
                    board.leave(n);
                }
                l.unlock();
                t.total++;
                t.count += inTime ? 1 : 0;
                t.note((job.Each ? System.nanoTime() : got) - began);
            } catch (Exception e) {
                t.failed++;
            }
        }
    }

    private void enter(int n, int me, boolean inTime, Tally t) {
        if (!board.enter(n)) {
            t.violations++;
        }
        int last = board.swap(n, me);
        if (last != me && inTime) {
            t.switches++;
        }
        if (last >> 16 != me >> 16) {
            t.allMoves++;
            t.moves += inTime ? 1 : 0;
        }
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
