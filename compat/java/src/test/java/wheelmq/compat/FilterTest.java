package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.Stream;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** SQL92 filters; the broker has enablePropertyFilter. What an expression means is in tests/golden/filters.jsonl. */
class FilterTest extends Suite {
    private static final int QUEUES = 2;
    private static final long AT_ONCE_MS = 250;

    @ParameterizedTest
    @CsvSource(delimiter = '|', value = {
        "amount > 50                                | a-100 a-75",
        "amount = 7 OR region IN ('north', 'south') | a-100 a-7",
        "amount BETWEEN 7 AND 75 AND amount <> 75   | a-7",
        "amount IS NULL                             | none",
        "TAGS = 'big' AND region STARTSWITH 'no'    | a-100",
        "NOT (amount < 1e2)                         | a-100",
    })
    void whatMatchesComesAndNothingElse(String expression, String expected) throws Exception {
        String topic = newTopic(QUEUES);
        try (Inbox inbox = Inbox.of(topic).sql(expression).open()) {
            sendAmounts(topic);
            inbox.fence();
            assertEquals(List.of(expected.split(" ")), inbox.ids().stream().sorted().toList());
        }
    }

    @Test
    void whatWasThereBeforeIsFilteredToo() throws Exception {
        String topic = newTopic(QUEUES);
        for (int at = 0; at < 300; at++) {
            producer.send(amount(topic, at));
        }
        try (Inbox inbox = Inbox.of(topic).sql("amount BETWEEN 290 AND 294").open()) {
            inbox.fence();
            List<String> expected = Stream.of(290, 291, 292, 293, 294).map(at -> "a-" + at).toList();
            assertEquals(expected, inbox.ids().stream().sorted().toList());
        }
    }

    @Test
    void aWaitingConsumerIsWokenByWhatMatches() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).sql("amount > 50").open()) {
            inbox.fence();
            List<Long> tookMs = new ArrayList<>();
            for (int at = 0; at < 10; at++) {
                producer.send(amount(topic, at));
                long sentAtMs = System.currentTimeMillis();
                producer.send(amount(topic, 100 + at));
                tookMs.add(inbox.awaitOnly("a-" + (100 + at)).atMs() - sentAtMs);
            }
            assertEquals(10, inbox.ids().size());
            Collections.sort(tookMs);
            assertTrue(tookMs.get(5) < AT_ONCE_MS, () -> "held for " + tookMs + " ms: the pulls did not wake");
        }
    }

    @Test
    void aTimerIsFilteredAsItComesOut() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).sql("amount > 50").open()) {
            for (int amount : new int[] {10, 100}) {
                Message message = amount(topic, amount);
                message.setDelayTimeMs(1_000);
                producer.send(message);
            }
            inbox.awaitOnly("a-100");
            inbox.fence();
            assertEquals(List.of("a-100"), inbox.ids());
        }
    }

    /** The retry topic is subscribed to by tags, all of them. */
    @Test
    void whatIsGivenBackComesAgain() throws Exception {
        String topic = newTopic(1);
        try (Inbox inbox = Inbox.of(topic).sql("amount > 50")
                .taking(message -> message.getReconsumeTimes() > 0 || message.getKeys() == null, 1, 3).open()) {
            inbox.awaitRetryQueue();
            sendAmounts(topic);
            inbox.awaitCount(4);
            assertEquals(List.of("a-100", "a-100", "a-75", "a-75"), inbox.ids().stream().sorted().toList());
        }
    }

    @Test
    void aPullConsumerBringsItsExpressionAlong() throws Exception {
        String topic = newTopic(QUEUES);
        sendAmounts(topic);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(fresh("group"));
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName(fresh("instance"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, MessageSelector.bySql("amount > 50"));
        consumer.start();
        try {
            List<String> ids = new ArrayList<>();
            await(() -> "two messages, of which came " + ids, PATIENCE_MS, () -> {
                consumer.poll(100).forEach(message -> ids.add(message.getKeys()));
                return ids.size() >= 2;
            });
            assertEquals(List.of("a-100", "a-75"), ids.stream().sorted().toList());
        } finally {
            consumer.shutdown();
        }
    }

    @Test
    void anExpressionThatIsNoneIsRefusedAtTheStart() throws Exception {
        String topic = newTopic(1);
        Inbox inbox = Inbox.of(topic).sql("amount >");
        MQClientException refused = assertThrows(MQClientException.class, inbox::open);
        assertEquals(ResponseCode.SUBSCRIPTION_PARSE_FAILED, refused.getResponseCode());
        inbox.close();
    }

    private static void sendAmounts(String topic) throws Exception {
        Message big = amount(topic, 100);
        big.setTags("big");
        big.putUserProperty("region", "north");
        producer.send(big);
        producer.send(amount(topic, 75));
        Message small = amount(topic, 7);
        small.putUserProperty("region", "south");
        producer.send(small);
        producer.send(message(topic, "none"));
    }

    private static Message amount(String topic, int amount) {
        Message message = message(topic, "a-" + amount);
        message.putUserProperty("amount", Integer.toString(amount));
        return message;
    }
}
