package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Test;

/** Orderly consumers, which lock their queues at the broker (41, 42). */
class OrderTest extends Suite {

    @Test
    void eachQueueKeepsItsOrder() throws Exception {
        String topic = newTopic(3);
        try (Inbox inbox = Inbox.of(topic).orderly().open()) {
            Map<Integer, List<String>> sent = send(topic, "id", 40);
            inbox.fence();
            assertEquals(sent, byQueue(inbox));
        }
    }

    /** A lock that is not given back holds for 60 s, longer than this case waits. */
    @Test
    void lockedQueuesAreHandedOver() throws Exception {
        String topic = newTopic(3);
        String group;
        try (Inbox first = Inbox.of(topic).orderly().open()) {
            group = first.group();
            Map<Integer, List<String>> sent = send(topic, "one", 10);
            first.fence();
            assertEquals(sent, byQueue(first));
            first.awaitDone();
        }
        Map<Integer, List<String>> sent = send(topic, "two", 10);
        try (Inbox second = Inbox.of(topic).group(group).orderly().open()) {
            second.fence();
            assertEquals(sent, byQueue(second));
        }
    }

    @Test
    void whatIsTurnedDownHoldsUpItsQueue() throws Exception {
        String topic = newTopic(1);
        AtomicInteger refusals = new AtomicInteger(2);
        try (Inbox inbox = Inbox.of(topic)
                .orderlyTaking(message -> !"second".equals(message.getKeys()) || refusals.getAndDecrement() <= 0, 16)
                .open()) {
            for (String id : List.of("first", "second", "third")) {
                producer.send(message(topic, id));
            }
            inbox.awaitCount(5);
            assertEquals(List.of("first", "second", "second", "second", "third"), inbox.ids());
        }
    }

    /** The client sends it to the retry topic; the broker sees that the group has locks, and buries it at once. */
    @Test
    void whatIsTurnedDownTooOftenIsADeadLetter() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic)
                .orderlyTaking(message -> !"bad".equals(message.getKeys()), 1).open()) {
            for (String id : List.of("bad", "good")) {
                producer.send(message(topic, id));
            }
            inbox.awaitCount(3);
            assertEquals(List.of("bad", "bad", "good"), inbox.ids());
            String deadLetters = MixAll.getDLQTopic(inbox.group());
            awaitRoute(deadLetters);
            try (Inbox morgue = Inbox.of(deadLetters).open()) {
                assertEquals("bad", new String(morgue.awaitOnly("bad").message().getBody()));
            }
        }
    }

    /** Sends to the queues in turn; what each queue was given, in order. */
    private static Map<Integer, List<String>> send(String topic, String name, int perQueue) throws Exception {
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        Collections.sort(queues);
        Map<Integer, List<String>> sent = new TreeMap<>();
        for (int number = 0; number < perQueue; number++) {
            for (MessageQueue queue : queues) {
                String id = name + "-" + queue.getQueueId() + "-" + number;
                producer.send(message(topic, id), queue);
                sent.computeIfAbsent(queue.getQueueId(), none -> new ArrayList<>()).add(id);
            }
        }
        return sent;
    }

    private static Map<Integer, List<String>> byQueue(Inbox inbox) {
        Map<Integer, List<String>> came = new TreeMap<>();
        for (Inbox.Arrival arrival : inbox.arrivals()) {
            came.computeIfAbsent(arrival.message().getQueueId(), none -> new ArrayList<>()).add(arrival.id());
        }
        return came;
    }
}
