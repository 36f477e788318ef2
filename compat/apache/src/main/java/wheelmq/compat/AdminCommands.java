package wheelmq.compat;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs one command of Apache's admin tool after the other in this JVM, whose start takes longer than most of them.
 *
 * A line of standard input is a command, its words between tabs; what it prints comes behind a line with its bytes.
 * Besides mqadmin's commands: @send, @produce, @consume and @stop, for clients that are there while others run.
 */
public final class AdminCommands {
    private static final long DEADLINE_S = 60;
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    private AdminCommands() {
    }

    /** Knows the tool's commands, some of which keep the client of their first run, which they have shut down. */
    private static final class Tool extends MQAdminStartup {
        private Tool() {
        }

        static void forget() {
            SUB_COMMANDS.clear();
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream caught = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(caught);
            System.setErr(caught);
            runWithin(line.split("\t", -1), caught);
            byte[] text = said.toByteArray();
            out.write((text.length + "\n").getBytes(StandardCharsets.UTF_8));
            out.write(text);
            out.flush();
        }
        Runtime.getRuntime().halt(0); // the tool's clients leave threads behind
    }

    /** Some commands never end, as startMonitoring: those are left running and cut off at the deadline. */
    private static void runWithin(String[] words, PrintStream caught) throws InterruptedException {
        Thread thread = new Thread(() -> {
            try {
                run(words);
            } catch (Throwable error) {
                error.printStackTrace(caught);
            }
        });
        thread.setDaemon(true);
        thread.start();
        thread.join(TimeUnit.SECONDS.toMillis(DEADLINE_S));
        if (thread.isAlive()) {
            caught.println("@still running");
            thread.interrupt();
        }
    }

    private static void run(String[] words) throws Exception {
        switch (words[0]) {
            case "@send" -> send(words[1], Integer.parseInt(words[2]), words[3], words[4], words[5]);
            case "@produce" -> producer(words[1]);
            case "@consume" -> consume(words[1], words[2], Integer.parseInt(words[3]));
            case "@stop" -> stop(words[1]);
            default -> {
                Tool.forget();
                MQAdminStartup.main(words);
            }
        }
    }

    private static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer known = PRODUCERS.get(group);
        if (known == null) {
            known = new DefaultMQProducer(group);
            known.setInstanceName(group);
            known.start();
            PRODUCERS.put(group, known);
        }
        return known;
    }

    private static void send(String topic, int queueId, String tags, String keys, String body) throws Exception {
        DefaultMQProducer producer = producer("P_TOOL");
        Message message = new Message(topic, tags, keys, body.getBytes(StandardCharsets.UTF_8));
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).stream()
            .filter(one -> one.getQueueId() == queueId).findFirst().orElseThrow();
        SendResult sent = producer.send(message, queue);
        System.out.printf("%s %s %s %d%n", sent.getSendStatus(), sent.getMsgId(), sent.getOffsetMsgId(), sent.getQueueOffset());
    }

    /** Returns once so many messages were consumed. */
    private static void consume(String group, String topic, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(group, consumer);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(DEADLINE_S / 2);
        while (left.getCount() > 0 || consumed(consumer, topic) < count) {
            if (System.nanoTime() > deadline) {
                System.out.printf("@only %d of %d came%n", count - left.getCount(), count);
                return;
            }
            left.await(50, TimeUnit.MILLISECONDS);
        }
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
    }

    /** How far the consumer itself says that it is, in all queues: the listener runs before that is noted. */
    private static long consumed(DefaultMQPushConsumer consumer, String topic) throws Exception {
        return consumer.fetchSubscribeMessageQueues(topic).stream()
            .mapToLong(queue -> consumer.getDefaultMQPushConsumerImpl().getOffsetStore()
                .readOffset(queue, ReadOffsetType.READ_FROM_MEMORY))
            .filter(offset -> offset > 0).sum();
    }

    private static void stop(String group) {
        for (DefaultMQPushConsumer consumer : Arrays.asList(CONSUMERS.remove(group))) {
            if (consumer != null) {
                consumer.shutdown();
            }
        }
        DefaultMQProducer producer = PRODUCERS.remove(group);
        if (producer != null) {
            producer.shutdown();
        }
    }
}
