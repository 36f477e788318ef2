package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Transactions: what is committed comes once, what is rolled back never, what is unknown is asked for. */
@Execution(ExecutionMode.CONCURRENT)
class TransactionTest extends Suite {
    /** The broker looks every 30 s at what is older than 6 s, and asks for what has not ended in 3 s more. */
    private static final long CHECK_MAX_MS = 80_000;

    private static final LocalTransactionState COMMIT = LocalTransactionState.COMMIT_MESSAGE;
    private static final LocalTransactionState ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE;
    private static final LocalTransactionState UNKNOWN = LocalTransactionState.UNKNOW;

    /** A producer whose transactions end as its messages' ids say: at once, and when the broker asks. */
    private static final class Ending implements TransactionListener, AutoCloseable {
        final Queue<MessageExt> asked = new ConcurrentLinkedQueue<>();
        private final Map<String, LocalTransactionState> atOnce = new ConcurrentHashMap<>();
        private final Map<String, LocalTransactionState> whenAsked = new ConcurrentHashMap<>();
        private final TransactionMQProducer sender = new TransactionMQProducer(fresh("producer"));

        Ending() throws Exception {
            sender.setNamesrvAddr(NAMESRV);
            sender.setTransactionListener(this);
            sender.start();
        }

        TransactionSendResult send(Message message, LocalTransactionState now, LocalTransactionState then)
            throws Exception {
            atOnce.put(message.getKeys(), now);
            whenAsked.put(message.getKeys(), then);
            return sender.sendMessageInTransaction(message, null);
        }

        List<String> askedFor() {
            return asked.stream().map(MessageExt::getKeys).toList();
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return atOnce.get(message.getKeys());
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            asked.add(message);
            return whenAsked.get(message.getKeys());
        }

        @Override
        public void close() {
            sender.shutdown();
        }
    }

    @Test
    void committed() throws Exception {
        String topic = newTopic(4);
        try (Inbox inbox = Inbox.of(topic).open(); Ending ending = new Ending()) {
            Message message = message(topic, "committed");
            message.putUserProperty("colour", "green");
            TransactionSendResult sent = ending.send(message, COMMIT, UNKNOWN);
            MessageExt came = inbox.awaitOnly("committed").message();
            inbox.fence();
            assertEquals(SendStatus.SEND_OK, sent.getSendStatus());
            assertEquals(COMMIT, sent.getLocalTransactionState());
            assertEquals(List.of("committed"), inbox.ids());
            assertEquals(sent.getMsgId(), came.getMsgId());
            assertEquals(sent.getTransactionId(), came.getTransactionId());
            assertEquals(sent.getMessageQueue().getQueueId(), came.getQueueId());
            assertEquals("green", came.getUserProperty("colour"));
            assertTrue(came.getPreparedTransactionOffset() > 0 || came.getSysFlag() == 8);
        }
    }

    @Test
    void rolledBack() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open(); Ending ending = new Ending()) {
            ending.send(message(topic, "rolled back"), ROLLBACK, COMMIT);
            ending.send(message(topic, "committed"), COMMIT, COMMIT);
            inbox.awaitOnly("committed");
            inbox.fence();
            assertEquals(List.of("committed"), inbox.ids());
        }
    }

    /** What was decided in the end is what the answers to the broker's checks say. */
    @Test
    @Tag("slow")
    void asked() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open(); Ending ending = new Ending()) {
            ending.send(message(topic, "known"), COMMIT, COMMIT);
            ending.send(message(topic, "to be committed"), UNKNOWN, COMMIT);
            ending.send(message(topic, "to be rolled back"), UNKNOWN, ROLLBACK);
            inbox.awaitOnly("known");
            inbox.fence();
            assertEquals(List.of("known"), inbox.ids());
            await(() -> "checks, of which came " + ending.askedFor(), CHECK_MAX_MS, () -> ending.asked.size() >= 2);
            inbox.awaitOnly("to be committed");
            inbox.fence();
            assertEquals(List.of("known", "to be committed"), inbox.ids());
            assertEquals(List.of("to be committed", "to be rolled back"), ending.askedFor().stream().sorted().toList());
            MessageExt first = ending.asked.element();
            assertEquals(topic, first.getTopic());
            assertEquals("1", first.getUserProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES));
            assertEquals(ending.sender.getProducerGroup(), first.getProperty(MessageConst.PROPERTY_PRODUCER_GROUP));
        }
    }

    /** The client takes the level off. */
    @Test
    void withLevel() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open(); Ending ending = new Ending()) {
            Message message = message(topic, "at once");
            message.setDelayTimeLevel(18);
            ending.send(message, COMMIT, COMMIT);
            inbox.awaitOnly("at once");
        }
    }

    @Test
    void manyAtOnce() throws Exception {
        String topic = newTopic(4);
        try (Inbox inbox = Inbox.of(topic).open(); Ending ending = new Ending()) {
            List<String> ids = ids(100);
            for (String id : ids) {
                ending.send(message(topic, id), id.endsWith("5") ? ROLLBACK : COMMIT, UNKNOWN);
            }
            List<String> committed = ids.stream().filter(id -> !id.endsWith("5")).toList();
            inbox.awaitCount(committed.size());
            inbox.fence();
            assertEquals(committed, inbox.ids().stream().sorted().toList());
        }
    }
}
