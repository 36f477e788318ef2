package wheelmq.compat;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.reporting.ReportEntry;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/** Prints each case as one line of JSON the moment it ends; run.py reads them. */
public final class JsonLines implements TestExecutionListener {
    private final Map<String, Long> startedAtNs = new ConcurrentHashMap<>();
    private final Map<String, Map<String, String>> measures = new ConcurrentHashMap<>();

    @Override
    public void executionStarted(TestIdentifier test) {
        startedAtNs.put(test.getUniqueId(), System.nanoTime());
    }

    @Override
    public void reportingEntryPublished(TestIdentifier test, ReportEntry entry) {
        measures.computeIfAbsent(test.getUniqueId(), id -> new ConcurrentHashMap<>()).putAll(entry.getKeyValuePairs());
    }

    @Override
    public void executionSkipped(TestIdentifier test, String reason) {
        print(test, "skipped", 0, reason);
    }

    /** A class counts only when its own set-up or tear-down failed: its cases would be missing in silence. */
    @Override
    public void executionFinished(TestIdentifier test, TestExecutionResult result) {
        boolean passed = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (test.isContainer() && passed) {
            return;
        }
        double seconds = (System.nanoTime() - startedAtNs.get(test.getUniqueId())) / 1e9;
        print(test, passed ? "passed" : "failed", seconds, result.getThrowable().map(JsonLines::describe).orElse(""));
    }

    private void print(TestIdentifier test, String outcome, double seconds, String reason) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("case", name(test));
        line.put("outcome", outcome);
        line.put("seconds", seconds);
        line.put("reason", reason);
        line.put("measures", measures.getOrDefault(test.getUniqueId(), Map.of()));
        System.out.println(RemotingSerializable.toJson(line, false));
    }

    private static String name(TestIdentifier test) {
        return test.getSource().map(source -> {
            if (source instanceof MethodSource method) {
                return method.getJavaClass().getSimpleName() + "." + method.getMethodName();
            }
            return source instanceof ClassSource type ? type.getJavaClass().getSimpleName() : test.getDisplayName();
        }).orElse(test.getDisplayName());
    }

    /** The message and the line of ours it comes from. */
    private static String describe(Throwable thrown) {
        for (StackTraceElement at : thrown.getStackTrace()) {
            if (at.getClassName().startsWith("wheelmq.compat.") && at.getClassName().endsWith("Test")) {
                return thrown + " (" + at.getFileName() + ":" + at.getLineNumber() + ")";
            }
        }
        return thrown.toString();
    }
}
