package wheelmq.bench;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * What is sent. A send that fails is made again as a new message, and counted: the client's own retry would send the
 * same key twice.
 */
final class Load {
    private static final int FAILURES_MAX = 100_000;
    private static final int THREADS_FOR_DELAYS = 8;
    /** The first byte of a body that holds the time, in nanoseconds of this process, when it was to be sent. */
    static final byte STAMPED = 1;

    private final DefaultMQProducer producer;
    final String namesrv;
    final String topic;
    private final byte[] body;

    private interface Making {
        Message make(int number, long dueNs);
    }

    Load(String namesrv, String topic, int queues, int bodyBytes) throws Exception {
        this.namesrv = namesrv;
        this.topic = topic;
        this.body = new byte[bodyBytes];
        Arrays.fill(body, (byte) 'x');
        producer = new DefaultMQProducer("bench-producer-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(namesrv);
        producer.setDefaultTopicQueueNums(queues);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
    }

    /** A first message makes the topic; the consumer must not subscribe before there is a route. */
    void makeTopic() {
        while (!sent(plain(0))) { // a JVM that has just begun may take longer than a send waits
            LockSupport.parkNanos(100_000_000);
        }
    }

    private Message plain(int number) {
        return new Message(topic, "TagA", body);
    }

    String at(int count, int spanMs, int afterMs, int threads) throws Exception {
        long firstMs = System.currentTimeMillis() + afterMs;
        AtomicInteger late = new AtomicInteger();
        return spread(count, threads, 0, (number, dueNs) -> {
            Message message = plain(number);
            long dueMs = firstMs + (long) number * spanMs / count;
            if (dueMs - System.currentTimeMillis() < 1000) {
                late.incrementAndGet();
            }
            message.setDeliverTimeMs(dueMs);
            return message;
        }) + ",\"first_due_ms\":" + firstMs + ",\"sent_within_a_second_of_due\":" + late;
    }

    String delays(int countOfEach, int perSecond, String delays) throws Exception {
        int[] delaysMs = Arrays.stream(delays.split(",")).mapToInt(Integer::parseInt).toArray();
        return spread(countOfEach * delaysMs.length, THREADS_FOR_DELAYS, perSecond, (number, dueNs) -> {
            Message message = plain(number);
            message.setDelayTimeMs(delaysMs[number % delaysMs.length]);
            return message;
        });
    }

    String levels(int countOfEach, int perSecond, String levels) throws Exception {
        int[] asked = Arrays.stream(levels.split(",")).mapToInt(Integer::parseInt).toArray();
        return spread(countOfEach * asked.length, THREADS_FOR_DELAYS, perSecond, (number, dueNs) -> {
            Message message = plain(number);
            message.setDelayTimeLevel(asked[number % asked.length]);
            return message;
        });
    }

    String seconds(int count, int perSecond, int seconds) throws Exception {
        return spread(count, THREADS_FOR_DELAYS, perSecond, (number, dueNs) -> {
            Message message = plain(number);
            message.putUserProperty("delayInSeconds", String.valueOf(seconds));
            return message;
        });
    }

    /** Messages that say when they were to be sent: a stall delays those behind it, and that is told of them. */
    String stamped(int count, int perSecond, int threads) throws Exception {
        return spread(count, threads, perSecond, (number, dueNs) -> {
            byte[] stamped = body.clone();
            ByteBuffer.wrap(stamped).put(STAMPED).putLong(dueNs);
            return new Message(topic, "TagA", stamped);
        });
    }

    /** Sends messages 0 to count - 1 from several threads, at most perSecond if that is not 0. */
    private String spread(int count, int threads, int perSecond, Making making) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        long beganNs = System.nanoTime();
        together(threads, () -> {
            for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                long dueNs = System.nanoTime();
                if (perSecond > 0) {
                    long waitNs = beganNs + number * 1_000_000_000L / perSecond - dueNs;
                    dueNs += waitNs;
                    if (waitNs > 0) {
                        LockSupport.parkNanos(waitNs);
                    }
                }
                while (!sent(making.make(number, dueNs))) {
                    if (failed.incrementAndGet() > FAILURES_MAX) {
                        return;
                    }
                }
            }
        });
        double seconds = (System.nanoTime() - beganNs) / 1e9;
        return "\"sent\":" + count + ",\"failed\":" + failed + ",\"seconds\":" + seconds;
    }

    /** As many as can be in that time, one by one or in batches; messages are counted. */
    String sends(int seconds, int threads, int bodyBytes, int batch) throws Exception {
        byte[] filled = new byte[bodyBytes];
        Arrays.fill(filled, (byte) 'x');
        AtomicLong good = new AtomicLong();
        AtomicInteger failed = new AtomicInteger();
        long beganNs = System.nanoTime();
        long endNs = beganNs + seconds * 1_000_000_000L;
        together(threads, () -> {
            long mine = 0;
            while (System.nanoTime() < endNs && failed.get() < FAILURES_MAX) {
                if (batch == 1 ? sent(new Message(topic, "TagA", filled)) : sentBatch(filled, batch)) {
                    mine += batch;
                } else {
                    failed.incrementAndGet();
                }
            }
            good.addAndGet(mine);
        });
        double took = (System.nanoTime() - beganNs) / 1e9;
        return "\"sent\":" + good + ",\"failed\":" + failed + ",\"seconds\":" + took;
    }

    private boolean sentBatch(byte[] filled, int batch) {
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(new Message(topic, "TagA", filled));
        }
        return did(() -> producer.send(messages));
    }

    private boolean sent(Message message) {
        return did(() -> producer.send(message));
    }

    private static boolean did(Callable<SendResult> send) {
        try {
            return send.call().getSendStatus() == SendStatus.SEND_OK;
        } catch (Exception error) {
            LockSupport.parkNanos(1_000_000);
            return false;
        }
    }

    private static void together(int threads, Runnable work) throws InterruptedException {
        CountDownLatch done = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } finally {
                    done.countDown();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        done.await();
    }
}
