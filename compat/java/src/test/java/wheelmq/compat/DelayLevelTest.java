package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestReporter;

/** The eighteen fixed delays of old. */
class DelayLevelTest extends Suite {

    @Test
    void levelOneIsOneSecond(TestReporter reporter) throws Exception {
        arrivesAfter(1, 1_000, reporter);
    }

    @Test
    void levelTwoIsFiveSeconds(TestReporter reporter) throws Exception {
        arrivesAfter(2, 5_000, reporter);
    }

    private static void arrivesAfter(int level, long delayMs, TestReporter reporter) throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).open()) {
            inbox.fence();
            Message sent = message(topic, "levelled");
            sent.setTags("TagA");
            sent.setDelayTimeLevel(level);
            long sentAtMs = System.currentTimeMillis();
            String sentId = producer.send(sent).getMsgId();
            Inbox.Arrival arrival = inbox.awaitOnly("levelled");
            inbox.fence();

            MessageExt message = inbox.awaitOnly("levelled").message();
            assertEquals(topic, message.getTopic());
            assertEquals(sentId, message.getMsgId());
            assertEquals("TagA", message.getTags());
            assertEquals("levelled", new String(message.getBody()));
            assertEquals(level, message.getDelayTimeLevel());
            assertEquals(topic, message.getProperty(MessageConst.PROPERTY_REAL_TOPIC));
            Lateness.of(sentAtMs + delayMs, arrival.atMs()).check(reporter);
        }
    }
}
