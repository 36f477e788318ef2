package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Lite pull consumers (361), which choose their queues and offsets themselves or have them shared out. */
class LitePullTest extends Suite {
    private static final long POLL_MS = 100;

    @Test
    void aGroupTakesEachMessageOnce() throws Exception {
        String topic = newTopic(4);
        send(topic, 20);
        DefaultLitePullConsumer left = subscribed(topic, fresh("group"));
        DefaultLitePullConsumer right = subscribed(topic, left.getConsumerGroup());
        try {
            await("two queues each", () -> queues(left) == 2 && queues(right) == 2);
            for (String id : ids(40).subList(20, 40)) {
                producer.send(message(topic, id));
            }
            List<String> came = new ArrayList<>();
            await(() -> "40 messages, of which came " + came, () -> {
                came.addAll(poll(left));
                came.addAll(poll(right));
                return Set.copyOf(came).size() == 40;
            });
        } finally {
            left.shutdown();
            right.shutdown();
        }
    }

    @Test
    void committedOffsetsAreGoneOnFrom() throws Exception {
        String topic = newTopic(1);
        send(topic, 5);
        String group = fresh("group");
        DefaultLitePullConsumer before = subscribed(topic, group);
        try {
            assertEquals(ids(5), poll(before, 5));
            MessageQueue queue = before.assignment().iterator().next();
            before.commit();
            await(() -> "offset 5 of " + queue, () -> committed(before, queue) == 5);
        } finally {
            before.shutdown();
        }
        producer.send(message(topic, "later"));
        DefaultLitePullConsumer after = subscribed(topic, group);
        try {
            assertEquals(List.of("later"), poll(after, 1));
        } finally {
            after.shutdown();
        }
    }

    @Test
    void queuesAndOffsetsOfItsOwnChoice() throws Exception {
        String topic = newTopic(2);
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        Collections.sort(queues);
        for (String id : ids(10)) {
            producer.send(message(topic, id), queues.get(1));
        }
        DefaultLitePullConsumer consumer = consumer(fresh("group"));
        consumer.start();
        try {
            Collection<MessageQueue> found = consumer.fetchMessageQueues(topic);
            assertTrue(found.contains(queues.get(1)));
            consumer.assign(List.of(queues.get(1)));
            // The client can take the answer of a pull from before the seek (FINDINGS). No such pull runs after this.
            assertEquals(ids(10), poll(consumer, 10));
            consumer.seek(queues.get(1), 7);
            assertEquals(ids(10).subList(7, 10), poll(consumer, 3));
            consumer.seekToBegin(queues.get(1));
            assertEquals(ids(10), poll(consumer, 10));
            consumer.seekToEnd(queues.get(1));
            producer.send(message(topic, "last"), queues.get(1));
            assertEquals(List.of("last"), poll(consumer, 1));
        } finally {
            consumer.shutdown();
        }
    }

    @Test
    void anOffsetIsFoundByTime() throws Exception {
        String topic = newTopic(1);
        DefaultLitePullConsumer consumer = consumer(fresh("group"));
        consumer.start();
        try {
            send(topic, 3);
            MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
            consumer.assign(List.of(queue));
            List<MessageExt> came = new ArrayList<>();
            await("three messages", () -> came.addAll(consumer.poll(POLL_MS)) && came.size() >= 3);
            MessageExt last = came.get(2);
            Long offset = consumer.offsetForTimestamp(queue, last.getStoreTimestamp());
            assertTrue(offset <= 2 && came.get(offset.intValue()).getStoreTimestamp() == last.getStoreTimestamp());
            assertEquals(0L, consumer.offsetForTimestamp(queue, 1L));
            assertEquals(3L, consumer.offsetForTimestamp(queue, last.getStoreTimestamp() + 1));
        } finally {
            consumer.shutdown();
        }
    }

    private static DefaultLitePullConsumer consumer(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName(fresh("instance"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        return consumer;
    }

    private static DefaultLitePullConsumer subscribed(String topic, String group) throws Exception {
        DefaultLitePullConsumer consumer = consumer(group);
        consumer.subscribe(topic, "*");
        consumer.start();
        return consumer;
    }

    private static List<String> poll(DefaultLitePullConsumer consumer) {
        return consumer.poll(POLL_MS).stream().map(MessageExt::getKeys).toList();
    }

    private static List<String> poll(DefaultLitePullConsumer consumer, int count) throws InterruptedException {
        List<String> came = new ArrayList<>();
        await(() -> count + " messages, of which came " + came, () -> {
            came.addAll(poll(consumer));
            return came.size() >= count;
        });
        return came;
    }

    private static int queues(DefaultLitePullConsumer consumer) {
        try {
            return consumer.assignment().size();
        } catch (MQClientException notYet) {
            return -1;
        }
    }

    private static long committed(DefaultLitePullConsumer consumer, MessageQueue queue) {
        try {
            return consumer.committed(queue);
        } catch (MQClientException notYet) {
            return -1;
        }
    }

    private static void send(String topic, int count) throws Exception {
        for (String id : ids(count)) {
            producer.send(message(topic, id));
        }
    }
}
