package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.junit.jupiter.api.Test;

/** Push consumers: groups, filters, offsets. */
class ConsumeTest extends Suite {
    /** Well under the client's own 20 s between rebalances: only the broker's notice (40) can be this fast. */
    private static final long NOTICED_WITHIN_MS = 10_000;

    /** A broker without long polling looks once a second, so the middle one of many messages waits for half of that. */
    private static final long AT_ONCE_MS = 250;

    @Test
    void groupSharesQueuesAndTheSurvivorTakesOver() throws Exception {
        String topic = newTopic(4);
        try (Inbox left = Inbox.of(topic).open();
             Inbox right = Inbox.of(topic).group(left.group()).start()) {
            Set<MessageQueue> all = left.queues();
            await(() -> "two queues each: " + left.queues() + right.queues(), NOTICED_WITHIN_MS, () ->
                left.queues().size() == 2
                    && right.queues().size() == 2
                    && union(left.queues(), right.queues()).equals(all));
            List<String> ids = ids(200);
            send(topic, ids.subList(0, 100));
            Inbox.fence(null, left, right);
            assertEquals(ids.subList(0, 100), Inbox.allIds(left, right).stream().sorted().toList());
            assertFalse(left.ids().isEmpty() || right.ids().isEmpty(), "both got some");

            left.awaitDone();
            left.close();
            await(() -> "all queues with the survivor: " + right.queues(), NOTICED_WITHIN_MS, () ->
                right.queues().equals(all));
            send(topic, ids.subList(100, 200));
            right.fence();
            assertEquals(ids, Inbox.allIds(left, right).stream().sorted().toList());
        }
    }

    @Test
    void tagFilterLetsThroughOnlyWhatItNames() throws Exception {
        String topic = newTopic(2);
        assertEquals("Aa".hashCode(), "BB".hashCode(), "the broker compares hashes, the client tags");
        try (Inbox inbox = Inbox.of(topic).tags("TagA || Aa").open()) {
            for (String tag : new String[] {"TagA", "TagB", "Aa", "BB", null}) {
                Message message = message(topic, "tagged-" + tag);
                message.setTags(tag);
                producer.send(message);
            }
            Inbox.fence("TagA", inbox);
            assertEquals(List.of("tagged-Aa", "tagged-TagA"), inbox.ids().stream().sorted().toList());
        }
    }

    @Test
    void broadcastReachesEveryConsumer() throws Exception {
        String topic = newTopic(4);
        try (Inbox left = Inbox.of(topic).model(MessageModel.BROADCASTING).open();
             Inbox right = Inbox.of(topic).model(MessageModel.BROADCASTING).group(left.group()).open()) {
            send(topic, ids(40));
            left.awaitCount(40);
            right.awaitCount(40);
            assertEquals(ids(40), left.ids().stream().sorted().toList());
            assertEquals(ids(40), right.ids().stream().sorted().toList());
        }
    }

    /** The client keeps its offsets itself, in a file. */
    @Test
    void broadcastGoesOnWhereItWas() throws Exception {
        String topic = newTopic(2);
        String group;
        String instance = fresh("instance");
        send(topic, List.of("early"));
        try (Inbox before = Inbox.of(topic).model(MessageModel.BROADCASTING).instance(instance).open()) {
            group = before.group();
            before.fence();
            assertEquals(List.of("early"), before.ids());
            before.awaitDone();
        }
        send(topic, List.of("later"));
        try (Inbox after = Inbox.of(topic).model(MessageModel.BROADCASTING).instance(instance).group(group).open()) {
            after.fence();
            assertEquals(List.of("later"), after.ids());
        }
    }

    @Test
    void offsetsSurviveARestartOfTheGroup() throws Exception {
        String topic = newTopic(4);
        String group;
        send(topic, ids(40));
        try (Inbox before = Inbox.of(topic).open()) {
            group = before.group();
            before.awaitCount(40);
            before.awaitDone();
        }
        send(topic, List.of("later"));
        try (Inbox after = Inbox.of(topic).group(group).open()) {
            after.fence();
            assertEquals(List.of("later"), after.ids());
        }
    }

    /** While a queue still has its first message in memory, "from the last offset" means from the first. */
    @Test
    void newGroupOfAYoungTopicStartsAtTheFirstMessage() throws Exception {
        String topic = newTopic(1);
        send(topic, ids(5));
        try (Inbox inbox = Inbox.of(topic).from(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET).open()) {
            inbox.fence();
            assertEquals(ids(5), inbox.ids());
        }
    }

    @Test
    void waitingConsumerIsServedAtOnce() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open()) {
            inbox.fence();
            List<Long> tookMs = new ArrayList<>();
            for (String id : ids(20)) {
                long sentAtMs = System.currentTimeMillis();
                producer.send(message(topic, id));
                tookMs.add(inbox.awaitOnly(id).atMs() - sentAtMs);
            }
            Collections.sort(tookMs);
            assertTrue(tookMs.get(10) < AT_ONCE_MS, () -> "held for " + tookMs + " ms: the pulls did not wake");
        }
    }

    private static void send(String topic, List<String> ids) throws Exception {
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Collections.sort(queues);
        for (int at = 0; at < ids.size(); at++) {
            producer.send(message(topic, ids.get(at)), queues.get(at % queues.size()));
        }
    }

    private static Set<MessageQueue> union(Set<MessageQueue> one, Set<MessageQueue> other) {
        Set<MessageQueue> both = new HashSet<>(one);
        both.addAll(other);
        return both;
    }
}
