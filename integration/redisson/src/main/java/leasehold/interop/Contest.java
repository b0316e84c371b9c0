package leasehold.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * Threads that repeatedly acquire the same few locks, in competition with goroutines of other processes.
 * It is the counterpart of the contest in the Go tests, which document the keys of a section.
 */
final class Contest {
    record Place(String kind, String name) {}

    record Plan(List<String> clients, List<Place> locks, int threads, long millis, int pause, long seed) {}

    record Result(int waits, int refused, int written, int read, List<String> wrong, List<Long> handOvers, Map<String, Long> longest) {}

    private static final int LEASE_MS = 60_000;

    private final Plan plan;
    private final List<RedissonClient> clients;
    private final AtomicInteger waits = new AtomicInteger();
    private final AtomicInteger refused = new AtomicInteger();
    private final AtomicInteger written = new AtomicInteger();
    private final AtomicInteger read = new AtomicInteger();
    private final List<String> wrong = Collections.synchronizedList(new ArrayList<>());
    private final List<Long> handOvers = Collections.synchronizedList(new ArrayList<>());
    private final Map<String, Long> longest = new ConcurrentHashMap<>(); // kind -> wait

    Contest(Plan plan, List<RedissonClient> clients) {
        this.plan = plan;
        this.clients = clients;
    }

    Result run() throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(plan.millis);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < plan.threads; i++) {
            RedissonClient c = clients.get(i % clients.size());
            Random random = new Random(plan.seed + i);
            threads.add(new Thread(() -> {
                while (System.nanoTime() < end && wrong.isEmpty()) {
                    Place p = plan.locks.get(random.nextInt(plan.locks.size()));
                    try {
                        Thread.sleep(random.nextInt(plan.pause));
                        once(c, p, random);
                    } catch (Exception e) {
                        wrong.add("Java: " + p + ": " + e);
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread t : threads) {
            t.join();
        }
        return new Result(waits.get(), refused.get(), written.get(), read.get(), wrong, handOvers, longest);
    }

    /** Acquires a lock in a random way, re-enters it at random, and releases it. */
    private void once(RedissonClient c, Place p, Random random) throws Exception {
        RLock l = Driver.lock(c, p.kind, p.name);
        long called = System.nanoTime();
        int dice = random.nextInt(100);
        if (dice < 50) {
            l.lock();
        } else if (dice < 65) {
            l.lock(LEASE_MS, TimeUnit.MILLISECONDS);
        } else if (dice < 80 ? !l.tryLock() : !l.tryLock(random.nextInt(20), TimeUnit.MILLISECONDS)) {
            refused.incrementAndGet();
            return;
        }
        long granted = System.nanoTime();
        longest.merge(p.kind, granted - called, Math::max);
        int holds = 1;
        while (random.nextInt(4) == 0) {
            if (!l.tryLock()) {
                wrong.add("Java: " + p + ": a reentry was refused");
                break;
            }
            holds++;
        }
        new Section(c, p, called, granted).pass();
        for (; holds > 0; holds--) {
            l.unlock();
        }
    }

    private final class Section {
        private final RedissonClient client;
        private final Place place;
        private final long called;
        private final long granted;

        Section(RedissonClient client, Place place, long called, long granted) {
            this.client = client;
            this.place = place;
            this.called = called;
            this.granted = granted;
        }

        void pass() {
            boolean reads = place.kind.equals("read");
            RAtomicLong writers = client.getAtomicLong("inside:" + place.name);
            RAtomicLong readers = client.getAtomicLong("reading:" + place.name);
            if (reads) {
                readers.incrementAndGet();
                expect("writers beside a reader", writers.get(), 0);
                expect("writers beside a reader that leaves", writers.get(), 0);
                handedOver("written:");
                bucket("read:").set(System.nanoTime() + " java");
                readers.decrementAndGet();
                read.incrementAndGet();
                return;
            }
            expect("inside", writers.incrementAndGet(), 1);
            RAtomicLong updates = client.getAtomicLong("updates:" + place.name);
            long before = updates.get();
            expect("readers beside a writer", readers.get(), 0);
            handedOver("written:", "read:");
            updates.set(before + 1);
            expect("left inside", writers.decrementAndGet(), 0);
            bucket("written:").set(System.nanoTime() + " java");
            written.incrementAndGet();
        }

        private RBucket<String> bucket(String prefix) {
            return client.getBucket(prefix + place.name, StringCodec.INSTANCE);
        }

        /** If this thread waited for the previous holder, counts the wait, and records the hand-off time if that holder was in Go. */
        private void handedOver(String... prefixes) {
            long at = 0;
            String by = "";
            for (String prefix : prefixes) {
                String stamp = bucket(prefix).get();
                if (stamp != null) {
                    String[] parts = stamp.split(" ");
                    if (Long.parseLong(parts[0]) > at) {
                        at = Long.parseLong(parts[0]);
                        by = parts[1];
                    }
                }
            }
            if (at > called && at < granted) {
                waits.incrementAndGet();
                if (!by.equals("java")) {
                    handOvers.add(granted - at);
                }
            }
        }

        private void expect(String what, long got, long want) {
            if (got != want) {
                wrong.add("Java: " + place + ": " + what + ": " + got + ", not " + want);
            }
        }
    }
}
