package leasehold.interop;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RBloomFilter;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.codec.Kryo5Codec;

/** Commands for semaphores, latches, rate limiters and Bloom filters, named after Redisson's methods. */
final class Others {
    private Others() {}

    static Object serve(RedissonClient c, Driver.Request r) throws InterruptedException {
        String[] what = r.what.split("\\.", 2);
        if (what.length == 2 && what[0].equals("rate")) {
            return rate(c.getRateLimiter(r.name), what[1], r);
        }
        if (what.length == 2 && what[0].equals("permit")) {
            return permit(c.getPermitExpirableSemaphore(r.name), what[1], r);
        }
        if (what.length == 2 && what[0].equals("latch")) {
            return latch(c.getCountDownLatch(r.name), what[1], r);
        }
        if (what.length == 2 && what[0].equals("bloom")) {
            return bloom(r.kryo ? c.getBloomFilter(r.name, new Kryo5Codec()) : c.getBloomFilter(r.name), what[1], r);
        }
        throw new IllegalArgumentException("what is " + r.what + "?");
    }

    /** Permit ids are passed as elements. With a wait of 0, acquire makes one attempt. */
    private static Object permit(RPermitExpirableSemaphore s, String method, Driver.Request r) throws InterruptedException {
        switch (method) {
            case "acquire": {
                List<String> ids = s.tryAcquire((int) r.n, r.wait, r.lease, TimeUnit.MILLISECONDS);
                return ids == null ? List.of() : ids;
            }
            case "tryRelease":
                return s.tryRelease(r.elements.get(0));
            case "updateLeaseTime":
                return s.updateLeaseTime(r.elements.get(0), r.lease, TimeUnit.MILLISECONDS);
            case "getLeaseTime":
                return s.getLeaseTime(r.elements.get(0));
            case "permits":
                return List.of(s.availablePermits(), s.acquiredPermits(), s.getPermits());
            case "trySetPermits":
                return s.trySetPermits((int) r.n);
            case "addPermits":
                s.addPermits((int) r.n);
                return null;
            case "setPermits":
                s.setPermits((int) r.n);
                return null;
            default:
                throw new IllegalArgumentException("what is " + method + "?");
        }
    }

    private static Object latch(RCountDownLatch l, String method, Driver.Request r) throws InterruptedException {
        switch (method) {
            case "trySetCount":
                return l.trySetCount(r.n);
            case "getCount":
                return l.getCount();
            case "countDown":
                l.countDown();
                return null;
            case "await":
                return l.await(r.wait, TimeUnit.MILLISECONDS);
            case "delete":
                return l.delete();
            default:
                throw new IllegalArgumentException("what is " + method + "?");
        }
    }

    private static Object rate(RRateLimiter l, String method, Driver.Request r) {
        switch (method) {
            case "trySetRate":
                return l.trySetRate(RateType.OVERALL, r.n, Duration.ofMillis(r.interval));
            case "getConfig":
                return List.of(l.getConfig().getRate(), l.getConfig().getRateInterval());
            case "tryAcquire":
                return r.wait == null ? l.tryAcquire(r.n) : l.tryAcquire(r.n, Duration.ofMillis(r.wait));
            case "release":
                l.release(r.n);
                return null;
            case "availablePermits":
                return l.availablePermits();
            case "delete":
                return l.delete();
            default:
                throw new IllegalArgumentException("what is " + method + "?");
        }
    }

    private static Object bloom(RBloomFilter<String> f, String method, Driver.Request r) {
        switch (method) {
            case "tryInit":
                return f.tryInit(r.n, r.p);
            case "getConfig":
                return List.of(f.getSize(), f.getHashIterations(), f.getExpectedInsertions(), f.getFalseProbability());
            case "add":
                return f.add(r.elements);
            case "contains":
                return r.elements.stream().map(f::contains).toList();
            case "containsAll":
                return f.contains(r.elements);
            case "count":
                return f.count();
            default:
                throw new IllegalArgumentException("what is " + method + "?");
        }
    }
}
