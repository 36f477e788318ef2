package wheelmq.bench;

import java.io.BufferedWriter;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** How long messages are on their way: from when each was to be sent to the listener of a push consumer. */
final class Times {
    private static final int START_DEADLINE_S = 30;
    private static final int LAST_DEADLINE_S = 30;

    /** What is expected of the messages of one run; those beyond it are not looked at. */
    private record Run(long[] tookNs, AtomicInteger next, AtomicInteger done, CountDownLatch reached) {
        static Run of(int count) {
            return new Run(new long[count], new AtomicInteger(), new AtomicInteger(), new CountDownLatch(1));
        }
    }

    private final CountDownLatch started = new CountDownLatch(1);
    private volatile Run run = Run.of(0);

    private Times() {}

    /** Started, and already given the message that made the topic. */
    static Times of(String namesrv, String topic) throws Exception {
        Times times = new Times();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-times-" + ProcessHandle.current().pid());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            for (MessageExt message : messages) {
                times.take(message.getBody(), nowNs);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        times.started.await(START_DEADLINE_S, TimeUnit.SECONDS);
        return times;
    }

    private void take(byte[] body, long nowNs) {
        started.countDown();
        Run now = run;
        if (body[0] != Load.STAMPED) {
            return;
        }
        int number = now.next.getAndIncrement();
        if (number < now.tookNs.length) {
            now.tookNs[number] = nowNs - ByteBuffer.wrap(body).getLong(1);
            if (now.done.incrementAndGet() == now.tookNs.length) {
                now.reached.countDown();
            }
        }
    }

    String measure(Load load, int count, int perSecond, int threads, Path file) throws Exception {
        Run now = Run.of(count);
        run = now;
        String said = load.stamped(count, perSecond, threads);
        now.reached.await(LAST_DEADLINE_S, TimeUnit.SECONDS);
        int came = now.done.get();
        try (BufferedWriter out = Files.newBufferedWriter(file)) {
            for (int i = 0; i < came; i++) {
                out.write(now.tookNs[i] / 1000 + "\n");
            }
        }
        return said + ",\"came\":" + came;
    }
}
