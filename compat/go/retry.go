package main

import (
	"context"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var retryTests = []test{
	{name: "Retry.givenBack", body: retryGivenBack},
	{name: "Retry.deadLetter", body: retryDeadLetter},
	{name: "Retry.brokersDelay", body: retryBrokersDelay, slow: true},
}

// retrying starts a consumer whose group has its retry topic already: left alone, the client would find that within
// 30 s.
func (c *check) retrying(topic string, level int, times int32, gives func(*primitive.MessageExt) bool) *inbox {
	group := fresh("group")
	c.createTopic("%RETRY%"+group, 1)
	return c.inbox(topic, inGroup(group), with(consumer.WithMaxReconsumeTimes(times)),
		taking(func(ctx context.Context, m *primitive.MessageExt) consumer.ConsumeResult {
			if !gives(m) {
				return consumer.ConsumeSuccess
			}
			if context, known := primitive.GetConcurrentlyCtx(ctx); known {
				context.DelayLevelWhenNextConsume = level
			}
			return consumer.ConsumeRetryLater
		}))
}

func retryGivenBack(c *check) {
	topic := c.newTopic(1)
	in := c.retrying(topic, 1, 16, func(m *primitive.MessageExt) bool { return m.ReconsumeTimes < 2 })
	p := c.producer()
	sent := c.send(p, message(topic, "again").WithTag("tag"))
	came := in.awaitCount(3)
	for times, one := range came {
		found := one.message
		c.that(int(found.ReconsumeTimes) == times, "%d times, expected %d", found.ReconsumeTimes, times)
		c.that(idOf(found) == "again" && found.GetTags() == "tag" && string(found.Body) == "again", "%v", found)
		if times > 0 {
			c.that(found.GetProperty("RETRY_TOPIC") == topic, "%v", found.GetProperties())
			c.that(found.GetProperty("ORIGIN_MESSAGE_ID") == sent.OffsetMsgID || found.GetProperty("ORIGIN_MESSAGE_ID") == sent.MsgID,
				"of %q, sent %s, %s", found.GetProperty("ORIGIN_MESSAGE_ID"), sent.MsgID, sent.OffsetMsgID)
			c.late(one, came[times-1].atMs+1_000, came[times-1].atMs+1_000)
		}
	}
}

// After the attempts it may have, a message goes to the group's dead letters, and comes no more.
func retryDeadLetter(c *check) {
	topic := c.newTopic(1)
	in := c.retrying(topic, 1, 1, func(m *primitive.MessageExt) bool { return true })
	sent := c.send(c.producer(), message(topic, "dead"))
	in.awaitCount(2)
	letters := "%DLQ%" + in.group
	c.await(func() string { return "a route to " + letters }, func() bool { return len(c.queuesOf(letters)) == 1 })
	dead := c.pullAll(letters, 1)[0]
	c.that(idOf(dead) == "dead" && string(dead.Body) == "dead", "%v", dead)
	c.that(dead.GetProperty("RETRY_TOPIC") == topic, "%v", dead.GetProperties())
	c.that(dead.MsgId == sent.MsgID, "%s, sent %s", dead.MsgId, sent.MsgID)
	c.that(len(in.ids()) == 2, "came %v", in.ids())
}

// Level 0 leaves it to the broker: ten seconds for the first attempt.
func retryBrokersDelay(c *check) {
	topic := c.newTopic(1)
	in := c.retrying(topic, 0, 16, func(m *primitive.MessageExt) bool { return m.ReconsumeTimes == 0 })
	c.send(c.producer(), message(topic, "again"))
	came := in.awaitCount(2)
	c.late(came[1], came[0].atMs+10_000, came[0].atMs+10_000)
}
