package leasehold.interop;

import java.time.Duration;
import java.util.List;
import org.redisson.api.RBloomFilter;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.codec.Kryo5Codec;

/** What is no lock: rate limiters and Bloom filters. The commands are named as Redisson's methods. */
final class Others {
    private Others() {}

    static Object serve(RedissonClient c, Driver.Request r) {
        String[] what = r.what.split("\\.", 2);
        if (what.length == 2 && what[0].equals("rate")) {
            return rate(c.getRateLimiter(r.name), what[1], r);
        }
        if (what.length == 2 && what[0].equals("bloom")) {
            return bloom(r.kryo ? c.getBloomFilter(r.name, new Kryo5Codec()) : c.getBloomFilter(r.name), what[1], r);
        }
        throw new IllegalArgumentException("what is " + r.what + "?");
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
            case "count":
                return f.count();
            default:
                throw new IllegalArgumentException("what is " + method + "?");
        }
    }
}
