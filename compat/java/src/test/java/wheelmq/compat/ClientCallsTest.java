package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** What the broker asks consumers for an administrator (307, 309, 221), and offsets that are reset (222). */
@Execution(ExecutionMode.CONCURRENT)
class ClientCallsTest extends Suite {
    private static final long TO_THE_BEGINNING = 0;
    private static final long TO_THE_END = -1;

    /** A client that is sent elsewhere lets go of the queue and takes it again, some at their next rebalance. */
    private static final long ANEW_WITHIN_MS = 40_000;

    private static Map<MessageQueue, Long> reset(Inbox inbox, long timestamp) throws Exception {
        return inbox.api().invokeBrokerToResetOffset(
            inbox.broker(), inbox.topic, inbox.group(), timestamp, true, PATIENCE_MS);
    }

    @Test
    void aConsumerTellsWhatItDoes() throws Exception {
        String topic = newTopic(2);
        try (Inbox inbox = Inbox.of(topic).open()) {
            inbox.fence();
            ConsumerRunningInfo info = inbox.api().getConsumerRunningInfo(
                inbox.broker(), inbox.group(), inbox.clientId(), true, PATIENCE_MS);
            Set<MessageQueue> queues = info.getMqTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic)).collect(Collectors.toSet());
            assertEquals(inbox.queues(), queues);
            assertEquals("CONSUME_PASSIVELY", info.getProperties().getProperty(ConsumerRunningInfo.PROP_CONSUME_TYPE));
            assertTrue(info.getSubscriptionSet().stream().anyMatch(one -> one.getTopic().equals(topic)));
            assertTrue(info.getJstack().contains("ConsumeMessageThread_"), info::getJstack);
        }
    }

    @Test
    void aConsumerThatIsNotThereTellsNothing() throws Exception {
        try (Inbox inbox = Inbox.of(newTopic(1)).open()) {
            MQClientException refused = assertThrows(MQClientException.class, () -> inbox.api().getConsumerRunningInfo(
                inbox.broker(), inbox.group(), "nobody", false, PATIENCE_MS));
            assertEquals(ResponseCode.SYSTEM_ERROR, refused.getResponseCode());
        }
    }

    @Test
    void aMessageIsConsumedOnceMoreWhenAskedFor() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open()) {
            String offsetId = producer.send(message(topic, "again")).getOffsetMsgId();
            inbox.awaitOnly("again");
            ConsumeMessageDirectlyResult result = inbox.api().consumeMessageDirectly(
                inbox.broker(), inbox.group(), inbox.clientId(), topic, offsetId, PATIENCE_MS);
            assertEquals(CMResult.CR_SUCCESS, result.getConsumeResult());
            assertEquals(List.of("again", "again"), inbox.ids());
        }
    }

    @Test
    void consumersTellTheirOffsets() throws Exception {
        String topic = newTopic(2);
        try (Inbox inbox = Inbox.of(topic).open()) {
            for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
                for (int at = 0; at <= queue.getQueueId(); at++) {
                    producer.send(message(topic, "one"), queue);
                }
            }
            inbox.awaitCount(3);
            inbox.awaitDone();
            Map<String, Map<MessageQueue, Long>> told = inbox.api().invokeBrokerToGetConsumerStatus(
                inbox.broker(), topic, inbox.group(), null, PATIENCE_MS);
            assertEquals(Set.of(inbox.clientId()), told.keySet());
            told.get(inbox.clientId()).forEach((queue, offset) -> assertEquals(queue.getQueueId() + 1L, offset));
            assertEquals(inbox.queues(), told.get(inbox.clientId()).keySet());
        }
    }

    @Test
    void aConsumerThatRunsIsSentToTheBeginning() throws Exception {
        String topic = newTopic(2);
        try (Inbox inbox = Inbox.of(topic).open()) {
            send(topic, 10);
            inbox.awaitCount(10);
            inbox.awaitDone();
            Set<MessageQueue> queues = inbox.queues();
            Map<MessageQueue, Long> offsets = reset(inbox, TO_THE_BEGINNING);
            assertEquals(Set.of(0L), Set.copyOf(offsets.values()));
            assertEquals(queues, offsets.keySet());
            inbox.fence(); // wakes the pulls of a broker that leaves them waiting
            await(() -> "all twice: " + inbox.ids(), ANEW_WITHIN_MS, () -> inbox.ids().size() >= 20);
            List<String> twice = new ArrayList<>(ids(10));
            twice.addAll(ids(10));
            assertEquals(twice.stream().sorted().toList(), inbox.ids().stream().sorted().toList());
        }
    }

    @Test
    void aGroupThatIsOffLineBeginsWhereItWasSent() throws Exception {
        String topic = newTopic(2);
        String group;
        try (Inbox before = Inbox.of(topic).open()) {
            group = before.group();
            send(topic, 10);
            before.awaitCount(10);
            before.awaitDone();
        }
        try (Inbox other = Inbox.of(topic).open()) {
            other.api().invokeBrokerToResetOffset(
                other.broker(), topic, group, TO_THE_BEGINNING, true, PATIENCE_MS);
        }
        try (Inbox after = Inbox.of(topic).group(group).open()) {
            after.awaitCount(10);
            after.fence();
            assertEquals(ids(10), after.ids().stream().sorted().toList());
        }
    }

    @Test
    void aGroupSkipsWhatItIsSentBehind() throws Exception {
        String topic = newTopic(1);
        String group;
        try (Inbox before = Inbox.of(topic).open()) {
            group = before.group();
            before.fence();
            before.awaitDone();
        }
        send(topic, 10);
        try (Inbox other = Inbox.of(topic).open()) {
            other.awaitCount(10);
            other.api().invokeBrokerToResetOffset(other.broker(), topic, group, TO_THE_END, true, PATIENCE_MS);
        }
        try (Inbox after = Inbox.of(topic).group(group).open()) {
            after.fence();
            assertEquals(List.of(), after.ids());
        }
    }

    private static void send(String topic, int count) throws Exception {
        for (String id : ids(count)) {
            producer.send(message(topic, id));
        }
    }
}
