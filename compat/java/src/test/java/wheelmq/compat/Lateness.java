package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.TestReporter;

/** How late delayed messages came: collected, reported, judged. */
final class Lateness {
    private final List<Long> samplesMs = new ArrayList<>();

    static Lateness of(long dueMs, long arrivedMs) {
        Lateness lateness = new Lateness();
        lateness.add(dueMs, arrivedMs);
        return lateness;
    }

    void add(long dueMs, long arrivedMs) {
        samplesMs.add(arrivedMs - dueMs);
    }

    /** Reports first, so that the figures of a failure are seen as well. */
    void check(TestReporter reporter) {
        Collections.sort(samplesMs);
        long max = samplesMs.get(samplesMs.size() - 1);
        reporter.publishEntry(Map.of(
            "lateness_p50_ms", Long.toString(quantile(0.50)),
            "lateness_p99_ms", Long.toString(quantile(0.99)),
            "lateness_max_ms", Long.toString(max)));
        assertTrue(samplesMs.get(0) >= 0, () -> "early by " + -samplesMs.get(0) + " ms");
        assertTrue(max <= Suite.LATENESS_MAX_MS, () -> "late by " + max + " ms");
    }

    private long quantile(double share) {
        return samplesMs.get((int) Math.ceil(share * samplesMs.size()) - 1);
    }
}
