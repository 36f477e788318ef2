package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;

/** Messages found again by key, by unique key and by offset id (12, 33). */
class QueryTest extends Suite {

    @Test
    void byEachOfItsKeys() throws Exception {
        String topic = newTopic(2);
        producer.send(keyed(topic, "first", "a both"));
        producer.send(keyed(topic, "second", "both  b"));
        assertEquals(List.of("first"), found(topic, "a", 1));
        assertEquals(List.of("second"), found(topic, "b", 1));
        assertEquals(List.of("first", "second"), found(topic, "both", 2));
    }

    @Test
    void byUniqueKey() throws Exception {
        String topic = newTopic(2);
        SendResult sent = producer.send(keyed(topic, "body", "k"));
        AtomicReference<MessageExt> seen = new AtomicReference<>();
        await("the message with id " + sent.getMsgId(), () -> {
            try {
                seen.set(producer.viewMessage(topic, sent.getMsgId()));
                return seen.get() != null;
            } catch (Exception notYet) {
                return false;
            }
        });
        assertEquals("body", text(seen.get()));
        assertEquals(sent.getQueueOffset(), seen.get().getQueueOffset());
    }

    @Test
    void byOffsetId() throws Exception {
        String topic = newTopic(2);
        SendResult sent = producer.send(keyed(topic, "body", "k"));
        MessageExt seen = producer.viewMessage(topic, sent.getOffsetMsgId());
        assertEquals("body", text(seen));
        assertEquals(sent.getMessageQueue().getQueueId(), seen.getQueueId());
    }

    @Test
    void aDelayedOneWhenItIsOut() throws Exception {
        String topic = newTopic(2);
        Message message = keyed(topic, "late", "k");
        message.setDelayTimeMs(1500);
        producer.send(message);
        assertThrows(MQClientException.class, () -> query(topic, "k"));
        assertEquals(List.of("late"), found(topic, "k", 1));
    }

    @Test
    void notByAnotherKeyOrTopic() throws Exception {
        String topic = newTopic(2);
        producer.send(keyed(topic, "body", "k"));
        found(topic, "k", 1);
        assertThrows(MQClientException.class, () -> query(topic, "K"));
        assertThrows(MQClientException.class, () -> query(newTopic(1), "k"));
    }

    private static Message keyed(String topic, String body, String keys) {
        return new Message(topic, null, keys, body.getBytes(StandardCharsets.UTF_8));
    }

    private static List<MessageExt> query(String topic, String key) throws Exception {
        long nowMs = System.currentTimeMillis();
        return producer.queryMessage(topic, key, 32, nowMs - 3_600_000, nowMs + 3_600_000).getMessageList();
    }

    /** The bodies of the messages with a key, once there are so many: the index may lag behind. */
    private static List<String> found(String topic, String key, int count) throws Exception {
        AtomicReference<List<MessageExt>> seen = new AtomicReference<>(List.of());
        await(() -> seen.get().size() + " of " + count + " with key " + key, PATIENCE_MS, () -> {
            try {
                seen.set(query(topic, key));
                return seen.get().size() >= count;
            } catch (Exception notYet) {
                return false;
            }
        });
        return seen.get().stream().map(QueryTest::text).sorted().toList();
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
