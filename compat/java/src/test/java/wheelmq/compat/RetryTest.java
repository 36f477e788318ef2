package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.function.Predicate;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestReporter;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Messages that the consumer gives back (36). */
@Execution(ExecutionMode.CONCURRENT)
class RetryTest extends Suite {
    private static final Predicate<MessageExt> AT_SECOND_SIGHT = message -> message.getReconsumeTimes() > 0;
    private static final int ONE_SECOND_LEVEL = 1;
    private static final int BROKERS_CHOICE = 0;

    @Test
    void messageComesBackAfterTheDelayAskedFor(TestReporter reporter) throws Exception {
        comesBack(ONE_SECOND_LEVEL, 1_000, reporter);
    }

    @Test
    @Tag("slow")
    void messageComesBackAfterTenSecondsByDefault(TestReporter reporter) throws Exception {
        comesBack(BROKERS_CHOICE, 10_000, reporter);
    }

    private static void comesBack(int level, long delayMs, TestReporter reporter) throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).taking(AT_SECOND_SIGHT, level, 16).open()) {
            inbox.awaitRetryQueue();
            producer.send(message(topic, "again"));
            List<Inbox.Arrival> arrivals = inbox.awaitCount(2);
            MessageClientExt first = (MessageClientExt) arrivals.get(0).message();
            MessageExt second = arrivals.get(1).message();

            assertEquals(0, first.getReconsumeTimes());
            assertEquals(1, second.getReconsumeTimes());
            assertEquals(topic, second.getTopic());
            assertEquals(first.getMsgId(), second.getMsgId());
            assertEquals(first.getOffsetMsgId(), second.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID));
            assertEquals(first.getBornTimestamp(), second.getBornTimestamp());
            assertEquals("again", second.getKeys());
            assertArrayEquals(first.getBody(), second.getBody());
            Lateness.of(arrivals.get(0).atMs() + delayMs, arrivals.get(1).atMs()).check(reporter);
        }
    }

    @Test
    void messageNobodyTakesEndsAsADeadLetter() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).taking(message -> false, ONE_SECOND_LEVEL, 1).open()) {
            inbox.awaitRetryQueue();
            String sentId = producer.send(message(topic, "dead")).getMsgId();
            inbox.awaitCount(2);
            String deadLetters = MixAll.getDLQTopic(inbox.group());
            awaitRoute(deadLetters);
            try (Inbox morgue = Inbox.of(deadLetters).open()) {
                MessageExt dead = morgue.awaitOnly("dead").message();
                assertEquals(topic, dead.getProperty(MessageConst.PROPERTY_RETRY_TOPIC));
                assertEquals(sentId, dead.getMsgId());
                assertEquals("dead", new String(dead.getBody()));
            }
            assertEquals(List.of("dead", "dead"), inbox.ids());
        }
    }
}
