package wheelmq.bench;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** What the client can do at best on this machine: messages that all wait in the topic, into the hands of a new group. */
final class Drain {
    /** Each run is a group of its own, so that all messages are new to it. */
    private static final AtomicInteger RUNS = new AtomicInteger();

    private Drain() {}

    static String of(String namesrv, String topic, int wanted, int deadlineS) throws Exception {
        AtomicInteger count = new AtomicInteger();
        AtomicLong firstNs = new AtomicLong();
        AtomicLong lastNs = new AtomicLong();
        CountDownLatch reached = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-drain-" + ProcessHandle.current().pid() + "-" + RUNS.incrementAndGet());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            int number = count.addAndGet(messages.size());
            if (number == messages.size()) {
                firstNs.set(nowNs);
            }
            if (number == wanted) {
                lastNs.set(nowNs);
                reached.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.subscribe(topic, "*");
        consumer.start();
        boolean done = reached.await(deadlineS, TimeUnit.SECONDS);
        consumer.shutdown();
        return "\"drained\":" + done + ",\"ms\":" + (lastNs.get() - firstNs.get()) / 1e6;
    }
}
