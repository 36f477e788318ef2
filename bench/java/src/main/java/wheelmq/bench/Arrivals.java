package wheelmq.bench;

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** What a push consumer with the client's default settings was handed, and when: the clock is read first of all. */
final class Arrivals {
    private record Arrival(MessageExt message, long atMs) {}

    /** A count and the latch that opens when it is reached. */
    private record Goal(long count, CountDownLatch reached) {}

    private static final long START_DEADLINE_S = 30;

    private final Queue<Arrival> arrivals = new ConcurrentLinkedQueue<>();
    private final AtomicLong count = new AtomicLong();
    private volatile Goal goal = new Goal(0, new CountDownLatch(1));

    private Arrivals() {}

    /** Started, and already given the message that made the topic: so its queues are assigned and pulled. */
    static Arrivals of(String namesrv, String topic) throws Exception {
        Arrivals arrivals = new Arrivals();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-consumer-" + ProcessHandle.current().pid());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowMs = System.currentTimeMillis();
            for (MessageExt message : messages) {
                arrivals.take(new Arrival(message, nowMs));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        arrivals.await(1, (int) TimeUnit.SECONDS.toMillis(START_DEADLINE_S));
        arrivals.reset();
        return arrivals;
    }

    private void take(Arrival arrival) {
        arrivals.add(arrival);
        Goal wanted = goal;
        if (count.incrementAndGet() >= wanted.count) {
            wanted.reached.countDown();
        }
    }

    void reset() {
        arrivals.clear();
        count.set(0);
    }

    String await(int wanted, int deadlineMs) throws InterruptedException {
        goal = new Goal(wanted, new CountDownLatch(1));
        boolean reached = count.get() >= wanted || goal.reached.await(deadlineMs, TimeUnit.MILLISECONDS);
        return "\"reached\":" + reached + ",\"count\":" + count.get();
    }

    String write(Path file) throws Exception {
        int lines = 0;
        try (BufferedWriter out = Files.newBufferedWriter(file)) {
            for (Arrival arrival : arrivals) {
                MessageExt message = arrival.message;
                out.write(message.getMsgId() + " " + message.getQueueId() + " " + arrival.atMs);
                for (String name : new String[] {"TIMER_DELIVER_MS", "TIMER_DELAY_MS", "__WMQ_DUE"}) {
                    String value = message.getProperty(name);
                    out.write(" " + (value == null ? "-1" : value));
                }
                out.newLine();
                lines++;
            }
        }
        return "\"written\":" + lines;
    }
}
