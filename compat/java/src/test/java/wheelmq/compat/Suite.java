package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.fail;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.topic.TopicValidator;

/** What every class of cases starts from: the broker under test, a producer, and names no earlier run has used. */
abstract class Suite {
    static final String NAMESRV = Objects.requireNonNull(System.getProperty("namesrv"), "-Dnamesrv=host:port");

    /** How late a delayed message may be. Apache moves its wheel once a second, so its default is generous. */
    static final long LATENESS_MAX_MS = Long.getLong("maxLatenessMs", 2_500);

    static final long PATIENCE_MS = 15_000;

    /** Of push consumers: one that meets another under way is dropped, and pulls are refused (25) until the next. */
    static final int HEARTBEAT_MS = 1_000;

    private static final long POLL_MS = 5;

    private static final String RUN = Long.toString(System.currentTimeMillis(), Character.MAX_RADIX);
    private static final AtomicInteger NAMES = new AtomicInteger();

    /** One for all classes, some of which run side by side; it goes with the JVM. */
    static final DefaultMQProducer producer = startedProducer();

    private static DefaultMQProducer startedProducer() {
        DefaultMQProducer producer = newProducer();
        try {
            producer.start();
        } catch (MQClientException problem) {
            throw new IllegalStateException(problem);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(producer::shutdown));
        return producer;
    }

    static DefaultMQProducer newProducer() {
        DefaultMQProducer producer = new DefaultMQProducer(fresh("producer"));
        producer.setNamesrvAddr(NAMESRV);
        return producer;
    }

    static String fresh(String what) {
        return "compat_" + what + "_" + RUN + "_" + NAMES.incrementAndGet();
    }

    /** One at a time: the first cases of classes that run side by side all begin with one. */
    static synchronized String newTopic(int queues) throws Exception {
        String topic = fresh("topic");
        producer.createTopic(TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC, topic, queues, null);
        awaitRoute(topic);
        return topic;
    }

    /** A consumer that starts before its topic has a route would look again only after 30 s. */
    static void awaitRoute(String topic) throws InterruptedException {
        await("a route to " + topic, () -> {
            try {
                return !producer.fetchPublishMessageQueues(topic).isEmpty();
            } catch (MQClientException noRouteYet) {
                return false;
            }
        });
    }

    static Message message(String topic, String id) {
        return new Message(topic, null, id, id.getBytes(StandardCharsets.UTF_8));
    }

    /** Ids that sort as they count. */
    static List<String> ids(int count) {
        return IntStream.range(0, count).mapToObj(number -> String.format("id-%04d", number)).toList();
    }

    static void await(String what, BooleanSupplier condition) throws InterruptedException {
        await(() -> what, PATIENCE_MS, condition);
    }

    static void await(Supplier<String> what, BooleanSupplier condition) throws InterruptedException {
        await(what, PATIENCE_MS, condition);
    }

    /** {@code what} is asked at the end, so that it can tell how far things got. */
    static void await(Supplier<String> what, long patienceMs, BooleanSupplier condition) throws InterruptedException {
        long deadlineNs = System.nanoTime() + patienceMs * 1_000_000;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadlineNs) {
                fail("not within " + patienceMs + " ms: " + what.get());
            }
            Thread.sleep(POLL_MS);
        }
    }
}
