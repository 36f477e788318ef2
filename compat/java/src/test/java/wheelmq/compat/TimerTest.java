package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestReporter;

/**
 * Timers at a time of the sender's choosing.
 *
 * <p>All cases share one consumer that runs before the first is sent, so that lateness is the broker's alone.
 */
class TimerTest extends Suite {
    private static final long PRECISION_MS = 1_000;

    private static String topic;
    private static Inbox inbox;

    @BeforeAll
    static void openInbox() throws Exception {
        topic = newTopic(4);
        inbox = Inbox.of(topic).open();
        inbox.fence();
    }

    @AfterAll
    static void closeInbox() {
        inbox.close();
    }

    /** The due time as the sender can know it: a relative delay counts from the broker's receipt. */
    private record Due(long earliestMs, long latestMs) {
        static Due at(long dueMs) {
            return new Due(dueMs, dueMs);
        }
    }

    private static Due sendAfter(Message message, long delayMs) throws Exception {
        long startMs = System.currentTimeMillis();
        producer.send(message);
        return new Due(startMs + delayMs, System.currentTimeMillis() + delayMs);
    }

    @Test
    void delayInMilliseconds(TestReporter reporter) throws Exception {
        Message message = message(topic, fresh("ms"));
        message.setDelayTimeMs(1_350);
        arrives(message, sendAfter(message, 1_350), MessageConst.PROPERTY_TIMER_DELAY_MS, reporter);
    }

    @Test
    void delayInSeconds(TestReporter reporter) throws Exception {
        Message message = message(topic, fresh("sec"));
        message.setDelayTimeSec(2);
        arrives(message, sendAfter(message, 2_000), MessageConst.PROPERTY_TIMER_DELAY_SEC, reporter);
    }

    @Test
    void deliverTime(TestReporter reporter) throws Exception {
        long dueMs = System.currentTimeMillis() + 1_700;
        Message message = message(topic, fresh("at"));
        message.setDeliverTimeMs(dueMs);
        producer.send(message);
        arrives(message, Due.at(dueMs), MessageConst.PROPERTY_TIMER_DELIVER_MS, reporter);
    }

    /** Exact multiples of the precision go to the slot before: the edge where an early delivery would show. */
    @Test
    void deliverTimeOnAFullSecond(TestReporter reporter) throws Exception {
        long dueMs = (System.currentTimeMillis() / PRECISION_MS + 3) * PRECISION_MS;
        Message message = message(topic, fresh("full"));
        message.setDeliverTimeMs(dueMs);
        producer.send(message);
        arrives(message, Due.at(dueMs), MessageConst.PROPERTY_TIMER_DELIVER_MS, reporter);
    }

    /** Its slot lies in the past, as Apache rounds down, and yet it must not come early. */
    @Test
    void delayShorterThanThePrecision(TestReporter reporter) throws Exception {
        Message message = message(topic, fresh("short"));
        message.setDelayTimeMs(50);
        arrives(message, sendAfter(message, 50), MessageConst.PROPERTY_TIMER_DELAY_MS, reporter);
    }

    private static void arrives(Message sent, Due due, String askedBy, TestReporter reporter) throws Exception {
        Inbox.Arrival arrival = inbox.awaitOnly(sent.getKeys());
        inbox.fence();
        MessageExt message = inbox.awaitOnly(sent.getKeys()).message();

        assertEquals(topic, message.getTopic());
        assertEquals(topic, message.getProperty(MessageConst.PROPERTY_REAL_TOPIC));
        assertArrayEquals(sent.getBody(), message.getBody());
        assertEquals(MessageClientIDSetter.getUniqID(sent), message.getMsgId());
        assertEquals(sent.getProperty(askedBy), message.getProperty(askedBy));
        long outMs = number(message, MessageConst.PROPERTY_TIMER_OUT_MS);
        assertBetween(slotMs(due.earliestMs()), outMs, slotMs(due.latestMs()));
        assertBetween(due.earliestMs(), number(message, MessageConst.PROPERTY_TIMER_DEQUEUE_MS), arrival.atMs());
        assertTrue(number(message, MessageConst.PROPERTY_TIMER_ENQUEUE_MS) > 0);
        Lateness.of(due.earliestMs(), arrival.atMs()).check(reporter);
    }

    @Test
    void pastDeliverTimeIsDeliveredAtOnceAsAPlainMessage(TestReporter reporter) throws Exception {
        Message sent = message(topic, fresh("past"));
        long pastMs = System.currentTimeMillis() - 5_000;
        sent.setDeliverTimeMs(pastMs);
        long sentAtMs = System.currentTimeMillis();
        producer.send(sent);
        Inbox.Arrival arrival = inbox.awaitOnly(sent.getKeys());
        inbox.fence();

        MessageExt message = inbox.awaitOnly(sent.getKeys()).message();
        assertEquals(Long.toString(pastMs), message.getProperty(MessageConst.PROPERTY_TIMER_DELIVER_MS));
        assertNull(message.getProperty(MessageConst.PROPERTY_TIMER_OUT_MS));
        assertNull(message.getProperty(MessageConst.PROPERTY_REAL_TOPIC));
        Lateness.of(sentAtMs, arrival.atMs()).check(reporter);
    }

    @Test
    void everythingInTheMessageSurvivesTheWait() throws Exception {
        byte[] body = "a wheel turns, and ".repeat(5_000).getBytes(StandardCharsets.UTF_8);
        Message sent = new Message(topic, "TagA", fresh("whole") + " second-key", body);
        sent.setFlag(7);
        sent.putUserProperty("city", "Zürich");
        sent.setDelayTimeMs(500);
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(2);
        SendResult result = producer.send(sent, queue);
        assertEquals(queue.getQueueId(), result.getMessageQueue().getQueueId());

        MessageExt message = inbox.awaitOnly(sent.getKeys()).message();
        assertArrayEquals(body, message.getBody());
        assertEquals("TagA", message.getTags());
        assertEquals(7, message.getFlag());
        assertEquals("Zürich", message.getUserProperty("city"));
        assertEquals(queue.getQueueId(), message.getQueueId());
        assertEquals(result.getMsgId(), message.getMsgId());
        assertTrue(message.getBornTimestamp() < message.getStoreTimestamp(), "born when sent, stored when due");
    }

    @Test
    void twoHundredAtRandomTimesArriveOnceEach(TestReporter reporter) throws Exception {
        Random random = new Random(533);
        Map<String, Long> dueMs = new HashMap<>();
        for (int number = 0; number < 200; number++) {
            Message message = message(topic, fresh("random"));
            long due = System.currentTimeMillis() + 500 + random.nextInt(3_000);
            message.setDeliverTimeMs(due);
            dueMs.put(message.getKeys(), due);
            producer.send(message);
        }
        await("all 200", () -> inbox.ids().containsAll(dueMs.keySet()));
        inbox.fence();

        List<Inbox.Arrival> arrivals = inbox.arrivals().stream()
            .filter(arrival -> dueMs.containsKey(arrival.id()))
            .toList();
        assertEquals(200, arrivals.size());
        Lateness lateness = new Lateness();
        arrivals.forEach(arrival -> lateness.add(dueMs.get(arrival.id()), arrival.atMs()));
        lateness.check(reporter);
    }

    @Test
    void cancelledTimerNeverArrivesButItsSiblingDoes() throws Exception {
        long dueMs = System.currentTimeMillis() + 2_500;
        Message doomed = timerAt(dueMs, "doomed");
        Message sibling = timerAt(dueMs, "sibling");
        Message afterwards = timerAt(dueMs + PRECISION_MS, "afterwards");
        String doomedId = producer.send(doomed).getMsgId();
        producer.send(sibling);
        producer.send(afterwards);
        Message cancel = timerAt(dueMs, "cancel");
        MessageAccessor.putProperty(cancel, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, topic + "+" + doomedId);
        producer.send(cancel);

        inbox.awaitOnly(sibling.getKeys());
        inbox.awaitOnly(afterwards.getKeys());
        inbox.fence();
        assertFalse(inbox.ids().contains(doomed.getKeys()), "the cancelled one came");
        assertFalse(inbox.ids().contains(cancel.getKeys()), "the cancel itself came");
    }

    private static Message timerAt(long dueMs, String name) {
        Message message = message(topic, fresh(name));
        message.setDeliverTimeMs(dueMs);
        return message;
    }

    private static long slotMs(long dueMs) {
        return (dueMs - 1) / PRECISION_MS * PRECISION_MS;
    }

    private static long number(MessageExt message, String property) {
        return Long.parseLong(message.getProperty(property));
    }

    private static void assertBetween(long low, long value, long high) {
        assertTrue(low <= value && value <= high, () -> value + " is not in " + low + " .. " + high);
    }
}
