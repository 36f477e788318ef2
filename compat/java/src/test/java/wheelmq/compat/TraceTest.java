package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** Message traces: what clients send to RMQ_SYS_TRACE_TOPIC of their own accord. */
@Execution(ExecutionMode.CONCURRENT)
class TraceTest extends Suite {
    private static final String TRACE_TOPIC = TopicValidator.RMQ_SYS_TRACE_TOPIC;

    @Test
    void sendAndConsumptionAreTraced() throws Exception {
        String topic = newTopic(1);
        DefaultMQProducer traced = newProducer();
        traced.setInstanceName(fresh("instance"));
        traced.setEnableTrace(true);
        traced.start();
        DefaultLitePullConsumer reader = new DefaultLitePullConsumer(fresh("group"));
        try (Inbox inbox = Inbox.of(topic).traced().open()) {
            String id = traced.send(message(topic, "followed")).getMsgId();
            inbox.awaitOnly("followed");
            awaitRoute(TRACE_TOPIC);
            reader.setNamesrvAddr(NAMESRV);
            reader.setInstanceName(fresh("instance"));
            reader.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            reader.subscribe(TRACE_TOPIC, "*");
            reader.start();
            List<String> traces = new ArrayList<>();
            await(() -> "three traces of " + id + ", of which came " + traces, () -> {
                reader.poll(100).forEach(message -> traces.addAll(tracesOf(id, message.getBody())));
                return traces.size() >= 3;
            });
            assertEquals(Set.of("Pub", "SubBefore", "SubAfter"), kinds(traces));
            assertEquals(3, traces.size());
        } finally {
            reader.shutdown();
            traced.shutdown();
        }
    }

    /** A message holds several; each begins with its kind, and its fields end with the sign of code 1. */
    private static List<String> tracesOf(String id, byte[] body) {
        List<String> all = List.of(new String(body, StandardCharsets.UTF_8).split("\2"));
        return all.stream().filter(trace -> trace.contains(id)).toList();
    }

    private static Set<String> kinds(List<String> traces) {
        return traces.stream().map(trace -> trace.split("\1")[0]).collect(Collectors.toSet());
    }
}
