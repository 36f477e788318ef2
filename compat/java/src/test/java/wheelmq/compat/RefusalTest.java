package wheelmq.compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.Random;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;
import org.junit.jupiter.api.Test;

/** What the broker refuses, and the code it gives. */
class RefusalTest extends Suite {
    private static final Duration THREE_DAYS = Duration.ofDays(3);

    @Test
    void topicWithIllegalCharacters() throws Exception {
        assertEquals(ResponseCode.INVALID_PARAMETER, refusalOfTopic("not/a topic"));
    }

    @Test
    void topicOfTheSystem() throws Exception {
        assertEquals(ResponseCode.NO_PERMISSION, refusalOfTopic(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC));
    }

    /** The client checks names itself, so a hook swaps the name after its checks. */
    private static int refusalOfTopic(String name) throws Exception {
        RPCHook swap = new RPCHook() {
            @Override
            public void doBeforeRequest(String address, RemotingCommand request) {
                if (request.readCustomHeader() instanceof SendMessageRequestHeaderV2 header) {
                    header.setB(name);
                }
            }

            @Override
            public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            }
        };
        DefaultMQProducer swapping = new DefaultMQProducer(fresh("producer"), swap);
        swapping.setNamesrvAddr(NAMESRV);
        return refusal(swapping, message(newTopic(1), "refused"));
    }

    @Test
    void bodyOverFourMebibytes() throws Exception {
        DefaultMQProducer generous = newProducer();
        generous.setMaxMessageSize(8 << 20);
        byte[] body = new byte[(4 << 20) + 1];
        new Random(1).nextBytes(body);
        assertEquals(ResponseCode.MESSAGE_ILLEGAL, refusal(generous, new Message(newTopic(1), body)));
    }

    @Test
    void delayBeyondThreeDays() throws Exception {
        Message message = message(newTopic(1), "refused");
        message.setDelayTimeSec(THREE_DAYS.toSeconds() + 1);
        assertEquals(ResponseCode.MESSAGE_ILLEGAL, refusal(newProducer(), message));
    }

    @Test
    void deliverTimeBeyondThreeDays() throws Exception {
        Message message = message(newTopic(1), "refused");
        message.setDeliverTimeMs(System.currentTimeMillis() + THREE_DAYS.toMillis() + 60_000);
        assertEquals(ResponseCode.MESSAGE_ILLEGAL, refusal(newProducer(), message));
    }

    @Test
    void delayThatIsNoNumber() throws Exception {
        Message message = message(newTopic(1), "refused");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DELAY_MS, "soon");
        assertEquals(ResponseCode.MESSAGE_ILLEGAL, refusal(newProducer(), message));
    }

    @Test
    void cancelOfThePast() throws Exception {
        String topic = newTopic(1);
        Message message = message(topic, "refused");
        message.setDeliverTimeMs(System.currentTimeMillis() - 1_000);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, topic + "+" + fresh("nobody"));
        assertEquals(ResponseCode.MESSAGE_ILLEGAL, refusal(newProducer(), message));
    }

    /** The code of the refusal; a producer of its own, because each case sets or hooks it in its own way. */
    private static int refusal(DefaultMQProducer sender, Message message) throws Exception {
        sender.start();
        try {
            Exception refused = assertThrows(Exception.class, () -> sender.send(message, PATIENCE_MS));
            // Codes that the client thinks worth another attempt come out wrapped.
            return refused instanceof MQBrokerException plain
                ? plain.getResponseCode()
                : assertInstanceOf(MQClientException.class, refused).getResponseCode();
        } finally {
            sender.shutdown();
        }
    }
}
