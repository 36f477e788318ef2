package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Queue;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Each way to send, and what comes out at the other end. */
class SendTest extends Suite {
    private static final int DEFAULT_BODY_BYTES_MAX = 4 << 20;

    @Test
    void syncSendAnswersWithIdsAndGrowingOffsets() throws Exception {
        String topic = newTopic(4);
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(1);
        List<SendResult> results = new ArrayList<>();
        for (String id : ids(5)) {
            results.add(producer.send(message(topic, id), queue));
        }

        long logPositionBefore = -1;
        for (int at = 0; at < results.size(); at++) {
            SendResult result = results.get(at);
            assertEquals(SendStatus.SEND_OK, result.getSendStatus());
            assertEquals(queue, result.getMessageQueue());
            assertEquals(at, result.getQueueOffset());
            MessageId stored = MessageDecoder.decodeMessageId(result.getOffsetMsgId());
            assertEquals(brokerPort(queue), ((InetSocketAddress) stored.getAddress()).getPort());
            assertTrue(stored.getOffset() > logPositionBefore, "log positions grow");
            logPositionBefore = stored.getOffset();
        }
        try (Inbox inbox = Inbox.of(topic).open()) {
            List<Inbox.Arrival> arrivals = inbox.awaitCount(5);
            assertEquals(ids(5), inbox.ids());
            for (int at = 0; at < results.size(); at++) {
                MessageClientExt message = (MessageClientExt) arrivals.get(at).message();
                assertEquals(results.get(at).getMsgId(), message.getMsgId());
                assertEquals(results.get(at).getOffsetMsgId(), message.getOffsetMsgId());
                assertEquals(at, message.getQueueOffset());
                assertEquals(queue.getQueueId(), message.getQueueId());
                assertTrue(message.getStoreTimestamp() >= message.getBornTimestamp(), "born before stored");
            }
        }
    }

    @Test
    void asyncSendsAllCallBackAndArrive() throws Exception {
        String topic = newTopic(4);
        Queue<SendStatus> answers = new ConcurrentLinkedQueue<>();
        Queue<Throwable> errors = new ConcurrentLinkedQueue<>();
        for (String id : ids(50)) {
            producer.send(message(topic, id), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answers.add(result.getSendStatus());
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(error);
                }
            });
        }
        await("50 answers", () -> answers.size() + errors.size() == 50);
        assertEquals(List.of(), List.copyOf(errors));
        assertEquals(Collections.nCopies(50, SendStatus.SEND_OK), List.copyOf(answers));
        assertArriveOnce(topic, ids(50));
    }

    @Test
    void onewaySendsArrive() throws Exception {
        String topic = newTopic(4);
        for (String id : ids(50)) {
            producer.sendOneway(message(topic, id));
        }
        assertArriveOnce(topic, ids(50));
    }

    @Test
    void batchIsStoredAsSingleMessagesInARow() throws Exception {
        String topic = newTopic(4);
        List<Message> batch = new ArrayList<>();
        for (String id : ids(10)) {
            Message message = message(topic, id);
            message.setTags("tag-" + id);
            message.putUserProperty("colour", "blue-" + id);
            batch.add(message);
        }
        SendResult result = producer.send(batch);

        assertEquals(SendStatus.SEND_OK, result.getSendStatus());
        assertEquals(0, result.getQueueOffset());
        String[] storedIds = result.getOffsetMsgId().split(",");
        assertEquals(10, storedIds.length);
        try (Inbox inbox = Inbox.of(topic).open()) {
            List<Inbox.Arrival> arrivals = inbox.awaitCount(10);
            inbox.fence();
            assertEquals(ids(10), inbox.ids());
            for (int at = 0; at < 10; at++) {
                MessageClientExt message = (MessageClientExt) arrivals.get(at).message();
                String id = arrivals.get(at).id();
                assertEquals(id, new String(message.getBody(), StandardCharsets.UTF_8));
                assertEquals("tag-" + id, message.getTags());
                assertEquals("blue-" + id, message.getUserProperty("colour"));
                assertEquals(storedIds[at], message.getOffsetMsgId());
                assertEquals(result.getMessageQueue().getQueueId(), message.getQueueId());
                assertEquals(at, message.getQueueOffset());
            }
        }
    }

    @Test
    void largeBodyTravelsCompressedWithTagKeysPropertiesAndFlag() throws Exception {
        String topic = newTopic(1);
        byte[] body = "a wheel turns, and ".repeat(5_000).getBytes(StandardCharsets.UTF_8);
        Message sent = new Message(topic, "TagA", "key1 key2", body);
        sent.setFlag(7);
        sent.putUserProperty("city", "Zürich");
        sent.putUserProperty("quote", "\"a\\b\"");
        producer.send(sent);
        try (Inbox inbox = Inbox.of(topic).open()) {
            MessageExt message = inbox.awaitCount(1).get(0).message();
            assertArrayEquals(body, message.getBody());
            assertEquals("TagA", message.getTags());
            assertEquals("key1 key2", message.getKeys());
            assertEquals(7, message.getFlag());
            assertEquals("Zürich", message.getUserProperty("city"));
            assertEquals("\"a\\b\"", message.getUserProperty("quote"));
            assertEquals(MessageClientIDSetter.getUniqID(sent), message.getMsgId());
            assertTrue(message.getStoreSize() < body.length, "stored as it travelled, compressed");
        }
    }

    @Test
    void bodyOfTheLargestSizeArrives() throws Exception {
        String topic = newTopic(1);
        byte[] body = new byte[DEFAULT_BODY_BYTES_MAX];
        new Random(1).nextBytes(body);
        DefaultMQProducer plain = newProducer();
        plain.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        plain.start();
        try (Inbox inbox = Inbox.of(topic).open()) {
            plain.send(new Message(topic, body), PATIENCE_MS);
            assertArrayEquals(body, inbox.awaitCount(1).get(0).message().getBody());
        } finally {
            plain.shutdown();
        }
    }

    @Test
    void firstSendCreatesTheTopic() throws Exception {
        String topic = fresh("unknown");
        assertEquals(SendStatus.SEND_OK, producer.send(message(topic, ids(1).get(0))).getSendStatus());
        awaitRoute(topic);
        assertEquals(producer.getDefaultTopicQueueNums(), producer.fetchPublishMessageQueues(topic).size());
        assertArriveOnce(topic, ids(1));
    }

    private static void assertArriveOnce(String topic, List<String> ids) throws Exception {
        try (Inbox inbox = Inbox.of(topic).open()) {
            inbox.awaitCount(ids.size());
            inbox.fence();
            assertEquals(ids, inbox.ids().stream().sorted().toList());
        }
    }

    private static int brokerPort(MessageQueue queue) {
        String address = producer.getDefaultMQProducerImpl().getMqClientFactory()
            .findBrokerAddressInPublish(queue.getBrokerName());
        return Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
    }
}
