package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
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
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Requests and replies as messages: the broker passes a reply on to the producer that asked (325, 326). */
class RequestReplyTest extends Suite {
    private static final String SILENCE = "say nothing";

    private static String topic;

    /** Named with each request, and a callback: else the client gives up as soon as the request is stored. */
    private static MessageQueue queue;
    private static DefaultMQProducer asker;
    private static DefaultMQPushConsumer answerer;

    /** The one that asks has a client of its own, as in another process: replies name it by its id. */
    @BeforeAll
    static void startBoth() throws Exception {
        topic = newTopic(1);
        queue = producer.fetchPublishMessageQueues(topic).get(0);
        asker = newProducer();
        asker.setInstanceName(fresh("instance"));
        asker.start();
        answerer = new DefaultMQPushConsumer(fresh("group"));
        answerer.setNamesrvAddr(NAMESRV);
        answerer.setInstanceName(fresh("instance"));
        answerer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        answerer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
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
    void requestsAreAnswered() throws Exception {
        for (String text : new String[] {"one", "two", "x".repeat(10_000)}) {
            byte[] body = ask(text).get(PATIENCE_MS, TimeUnit.MILLISECONDS).getBody();
            assertEquals("re: " + text, new String(body, StandardCharsets.UTF_8));
        }
    }

    @Test
    void aRequestThatNobodyAnswersTimesOut() throws Exception {
        ExecutionException failed = assertThrows(ExecutionException.class, () ->
            ask(SILENCE, 1_000).get(PATIENCE_MS, TimeUnit.MILLISECONDS));
        assertInstanceOf(RequestTimeoutException.class, failed.getCause());
    }

    private static CompletableFuture<Message> ask(String text) throws Exception {
        return ask(text, PATIENCE_MS);
    }

    private static CompletableFuture<Message> ask(String text, long timeoutMs) throws Exception {
        CompletableFuture<Message> answered = new CompletableFuture<>();
        asker.request(request(text), queue, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                answered.complete(message);
            }

            @Override
            public void onException(Throwable failed) {
                answered.completeExceptionally(failed);
            }
        }, timeoutMs);
        return answered;
    }

    private static Message request(String text) {
        return new Message(topic, text.getBytes(StandardCharsets.UTF_8));
    }
}
