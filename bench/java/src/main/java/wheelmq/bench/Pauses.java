package wheelmq.bench;

import com.sun.management.GarbageCollectionNotificationInfo;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import javax.management.NotificationEmitter;
import javax.management.openmbean.CompositeData;

/**
 * How far this process itself is to be trusted: pauses of its collector, and how much too late a thread wakes that
 * asked to sleep for a millisecond. No lateness can be measured that is finer than this.
 */
final class Pauses {
    private static final int BUCKETS = 10_000; // of 0.1 ms

    private final AtomicLong collections = new AtomicLong();
    private final AtomicLong collectionMs = new AtomicLong();
    private final AtomicLong longestCollectionMs = new AtomicLong();
    private final int[] wakes = new int[BUCKETS];

    Pauses() {
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            ((NotificationEmitter) collector).addNotificationListener((notification, handback) -> {
                if (notification.getType().equals(GarbageCollectionNotificationInfo.GARBAGE_COLLECTION_NOTIFICATION)) {
                    note(GarbageCollectionNotificationInfo.from((CompositeData) notification.getUserData()));
                }
            }, null, null);
        }
        Thread watching = new Thread(this::watch);
        watching.setDaemon(true);
        watching.start();
    }

    private void note(GarbageCollectionNotificationInfo info) {
        long tookMs = info.getGcInfo().getDuration();
        collections.incrementAndGet();
        collectionMs.addAndGet(tookMs);
        longestCollectionMs.accumulateAndGet(tookMs, Math::max);
    }

    private void watch() {
        while (true) {
            long beganNs = System.nanoTime();
            LockSupport.parkNanos(1_000_000);
            long overNs = System.nanoTime() - beganNs - 1_000_000;
            synchronized (wakes) {
                wakes[(int) Math.max(0, Math.min(BUCKETS - 1, overNs / 100_000))]++;
            }
        }
    }

    void reset() {
        collections.set(0);
        collectionMs.set(0);
        longestCollectionMs.set(0);
        synchronized (wakes) {
            java.util.Arrays.fill(wakes, 0);
        }
    }

    String text() {
        synchronized (wakes) {
            return "\"collections\":" + collections + ",\"collection_ms\":" + collectionMs + ",\"longest_collection_ms\":"
                + longestCollectionMs + ",\"wake_p99_ms\":" + wake(0.99) + ",\"wake_max_ms\":" + wake(1.0);
        }
    }

    private double wake(double share) {
        long total = 0;
        for (int count : wakes) {
            total += count;
        }
        long left = (long) Math.ceil(total * share);
        for (int i = 0; i < BUCKETS; i++) {
            left -= wakes[i];
            if (left <= 0) {
                return (i + 1) / 10.0;
            }
        }
        return 0;
    }
}
