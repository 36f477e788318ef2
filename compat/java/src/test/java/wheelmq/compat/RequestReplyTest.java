package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Requests and replies as messages: the broker passes a reply on to the producer that asked (325, 326). */
class RequestReplyTest extends Suite {
    private static final String SILENCE = "say nothing";

    private static String topic;
    private static DefaultMQProducer asker;
    private static DefaultMQPushConsumer answerer;

    /** The one that asks has a client of its own, as in another process: replies name it by its id. */
    @BeforeAll
    static void startBoth() throws Exception {
        topic = newTopic(1);
        asker = newProducer();
        asker.setInstanceName(fresh("instance"));
        asker.start();
        answerer = new DefaultMQPushConsumer(fresh("group"));
        answerer.setNamesrvAddr(NAMESRV);
        answerer.setInstanceName(fresh("instance"));
        answerer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        answerer.subscribe(topic, "*");
        answerer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(RequestReplyTest::reply);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        answerer.start();
    }

    @AfterAll
    static void stopBoth() {
        asker.shutdown();
        answerer.shutdown();
    }

    private static void reply(MessageExt request) {
        String text = new String(request.getBody(), StandardCharsets.UTF_8);
        if (text.equals(SILENCE)) {
            return;
        }
        try {
            producer.send(MessageUtil.createReplyMessage(request, ("re: " + text).getBytes(StandardCharsets.UTF_8)));
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    @Test
    void aRequestIsAnswered() throws Exception {
        for (String text : new String[] {"one", "two", "x".repeat(10_000)}) {
            Message reply = asker.request(request(text), PATIENCE_MS);
            assertEquals("re: " + text, new String(reply.getBody(), StandardCharsets.UTF_8));
        }
    }

    @Test
    void aRequestIsAnsweredToItsCallback() throws Exception {
        CompletableFuture<Message> answered = new CompletableFuture<>();
        asker.request(request("later"), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                answered.complete(message);
            }

            @Override
            public void onException(Throwable failed) {
                answered.completeExceptionally(failed);
            }
        }, PATIENCE_MS);
        byte[] body = answered.get(PATIENCE_MS, TimeUnit.MILLISECONDS).getBody();
        assertEquals("re: later", new String(body, StandardCharsets.UTF_8));
    }

    @Test
    void aRequestThatNobodyAnswersTimesOut() throws Exception {
        assertThrows(RequestTimeoutException.class, () -> asker.request(request(SILENCE), 1_000));
    }

    private static Message request(String text) {
        return new Message(topic, text.getBytes(StandardCharsets.UTF_8));
    }
}
