package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * A push consumer that keeps what it was given, with the time.
 *
 * <p>One consuming thread: what stands earlier in a queue is also seen earlier, which {@link #fence} relies on.
 */
final class Inbox implements AutoCloseable {
    record Arrival(MessageExt message, long atMs) {
        String id() {
            return message.getKeys();
        }
    }

    private static final String FENCE = "fence";

    final String topic;
    private final DefaultMQPushConsumer consumer;
    private final Queue<Arrival> arrivals = new ConcurrentLinkedQueue<>();
    private MessageSelector selector = MessageSelector.byTag("*");
    private Predicate<MessageExt> takes = message -> true;
    private int retryLevel;
    private boolean orderly;

    private Inbox(String topic) {
        this.topic = topic;
        this.consumer = new DefaultMQPushConsumer(Suite.fresh("group"));
        consumer.setNamesrvAddr(Suite.NAMESRV);
        consumer.setInstanceName(Suite.fresh("instance"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(Suite.HEARTBEAT_MS);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
    }

    static Inbox of(String topic) {
        return new Inbox(topic);
    }

    Inbox group(String group) {
        consumer.setConsumerGroup(group);
        return this;
    }

    Inbox tags(String expression) {
        this.selector = MessageSelector.byTag(expression);
        return this;
    }

    /** What the expression matches, and fences. */
    Inbox sql(String expression) {
        this.selector = MessageSelector.bySql("(" + expression + ") OR " + FENCE + " IS NOT NULL");
        return this;
    }

    /** With the same name a consumer that broadcasts finds the offsets it kept. */
    Inbox instance(String name) {
        consumer.setInstanceName(name);
        return this;
    }

    /** Tells in RMQ_SYS_TRACE_TOPIC what becomes of each message. */
    Inbox traced() {
        consumer.setEnableTrace(true);
        return this;
    }

    Inbox model(MessageModel model) {
        consumer.setMessageModel(model);
        return this;
    }

    Inbox from(ConsumeFromWhere where) {
        consumer.setConsumeFromWhere(where);
        return this;
    }

    Inbox orderly() {
        this.orderly = true;
        return this;
    }

    /** In order, and those that {@code takes} turns down again at once, before what stands behind them. */
    Inbox orderlyTaking(Predicate<MessageExt> takes, int attemptsMax) {
        consumer.setSuspendCurrentQueueTimeMillis(10);
        return taking(takes, 0, attemptsMax).orderly();
    }

    /** Asks for those that {@code takes} turns down again, after the given delay level (0: the broker's choice). */
    Inbox taking(Predicate<MessageExt> takes, int retryLevel, int attemptsMax) {
        this.takes = takes;
        this.retryLevel = retryLevel;
        consumer.setMaxReconsumeTimes(attemptsMax);
        return this;
    }

    /** Starts without waiting for queues: where several consumers share them, no one gets all. */
    Inbox start() throws MQClientException {
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                note(messages);
                return messages.stream().allMatch(takes)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                note(messages);
                context.setDelayLevelWhenNextConsume(retryLevel);
                return messages.stream().allMatch(takes)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.subscribe(topic, selector);
        consumer.start();
        return this;
    }

    Inbox open() throws Exception {
        start();
        int queues = consumer.fetchSubscribeMessageQueues(topic).size();
        Suite.await("all queues of " + topic, () -> queues().size() == queues);
        return this;
    }

    @Override
    public void close() {
        consumer.shutdown();
    }

    private void note(List<MessageExt> messages) {
        long now = System.currentTimeMillis();
        messages.forEach(message -> arrivals.add(new Arrival(message, now)));
    }

    String group() {
        return consumer.getConsumerGroup();
    }

    /** What came so far, in order, without fences. */
    List<Arrival> arrivals() {
        return arrivals.stream().filter(arrival -> fenceOf(arrival) == null).toList();
    }

    List<String> ids() {
        return arrivals().stream().map(Arrival::id).toList();
    }

    List<Arrival> awaitCount(int count) throws InterruptedException {
        Suite.await(() -> count + " messages, of which came " + ids(), () -> arrivals().size() >= count);
        return arrivals();
    }

    /** The arrival of the message with this id, which must be its only one so far. */
    Arrival awaitOnly(String id) throws InterruptedException {
        Suite.await(() -> id + " among " + ids(), () -> ids().contains(id));
        List<Arrival> found = arrivals().stream().filter(arrival -> arrival.id().equals(id)).toList();
        assertEquals(1, found.size(), () -> id + " came more than once");
        return found.get(0);
    }

    /** The queues of the topic that are this consumer's now. */
    Set<MessageQueue> queues() {
        return inside().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic))
            .collect(Collectors.toSet());
    }

    /** The retry topic is made by the first heartbeat; left alone, the client would find it within 30 s. */
    void awaitRetryQueue() throws InterruptedException {
        String retryTopic = MixAll.getRetryTopic(group());
        MQClientInstance client = inside().getmQClientFactory();
        Suite.await("the queue of " + retryTopic, () -> {
            client.updateTopicRouteInfoFromNameServer(retryTopic);
            client.rebalanceImmediately();
            return inside().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .anyMatch(queue -> queue.getTopic().equals(retryTopic));
        });
    }

    /** Waits until its offsets stand at the end of its queues, so that a shutdown leaves nothing to come again. */
    void awaitDone() throws Exception {
        for (MessageQueue queue : queues()) {
            long end = consumer.maxOffset(queue);
            Suite.await("offset " + end + " of " + queue, () -> end == 0
                || inside().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY) == end);
        }
    }

    /**
     * Waits until everything now in the topic has been seen: sends a last message to each queue and waits for those.
     *
     * <p>This is how a case shows that something does not come, or not twice, without waiting for nothing.
     */
    static void fence(String tag, Inbox... inboxes) throws Exception {
        String topic = inboxes[0].topic;
        String mark = Suite.fresh(FENCE);
        List<MessageQueue> queues = Suite.producer.fetchPublishMessageQueues(topic);
        for (MessageQueue queue : queues) {
            Message message = new Message(topic, tag, FENCE.getBytes(StandardCharsets.UTF_8));
            message.putUserProperty(FENCE, mark);
            Suite.producer.send(message, queue);
        }
        Suite.await("the fence of " + topic, () -> Arrays.stream(inboxes)
            .flatMap(inbox -> inbox.arrivals.stream())
            .filter(arrival -> mark.equals(fenceOf(arrival)))
            .count() == queues.size());
    }

    void fence() throws Exception {
        fence(null, this);
    }

    static List<String> allIds(Inbox... inboxes) {
        List<String> ids = new ArrayList<>();
        for (Inbox inbox : inboxes) {
            ids.addAll(inbox.ids());
        }
        return ids;
    }

    private static String fenceOf(Arrival arrival) {
        return arrival.message().getUserProperty(FENCE);
    }

    /** What administrators' tools ask a broker with. */
    MQClientAPIImpl api() {
        return inside().getmQClientFactory().getMQClientAPIImpl();
    }

    String clientId() {
        return inside().getmQClientFactory().getClientId();
    }

    /** The broker that has the topic. */
    String broker() throws Exception {
        return api().getTopicRouteInfoFromNameServer(topic, Suite.PATIENCE_MS).getBrokerDatas().get(0).selectBrokerAddr();
    }

    private DefaultMQPushConsumerImpl inside() {
        return consumer.getDefaultMQPushConsumerImpl();
    }
}
