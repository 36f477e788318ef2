package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var consumeTests = []test{
	{name: "Consume.tags", body: consumeTags},
	{name: "Consume.sql", body: consumeSQL},
	{name: "Consume.shared", body: consumeShared},
	{name: "Consume.broadcast", body: consumeBroadcast},
	{name: "Consume.resumes", body: consumeResumes},
	{name: "Consume.fromLast", body: consumeFromLast},
	{name: "Consume.fromTimestamp", body: consumeFromTimestamp},
	{name: "Consume.longPoll", body: consumeLongPoll},
}

var orderTests = []test{
	{name: "Order.inQueues", body: orderInQueues},
	{name: "Order.suspended", body: orderSuspended},
}

// sendTagged sends ids in turn with each of the tags, and a number as a property.
func (c *check) sendTagged(topic string, count int, tags ...string) map[string][]string {
	p := c.producer()
	sent := map[string][]string{}
	for position, id := range ids(count) {
		tag := tags[position%len(tags)]
		m := message(topic, id).WithTag(tag)
		m.WithProperty("number", fmt.Sprint(position))
		c.send(p, m)
		sent[tag] = append(sent[tag], id)
	}
	return sent
}

func consumeTags(c *check) {
	topic := c.newTopic(2)
	in := c.inbox(topic, tags("a || c"))
	sent := c.sendTagged(topic, 12, "a", "b", "c")
	c.fence("a", in)
	c.sameIds(in.ids(), slices.Concat(sent["a"], sent["c"]))
}

func consumeSQL(c *check) {
	topic := c.newTopic(2)
	in := c.inbox(topic, sql("number BETWEEN 2 AND 5 OR TAGS = 'b' AND number > 8"))
	c.sendTagged(topic, 12, "a", "b")
	c.fence("", in)
	all := ids(12)
	c.sameIds(in.ids(), []string{all[2], all[3], all[4], all[5], all[9], all[11]})
}

// Two of a group have two queues each, and together see each message once.
func consumeShared(c *check) {
	topic, group := c.newTopic(4), fresh("group")
	one, other := c.inbox(topic, inGroup(group)), c.inbox(topic, inGroup(group))
	mark := ""
	queuesOf := func(in *inbox) map[int]bool {
		found := map[int]bool{}
		in.lock.Lock()
		defer in.lock.Unlock()
		for _, one := range in.arrivals {
			if one.message.GetProperty(fenceProperty) == mark {
				found[one.message.Queue.QueueId] = true
			}
		}
		return found
	}
	c.await(func() string { return fmt.Sprintf("two queues each: %v, %v", queuesOf(one), queuesOf(other)) }, func() bool {
		before := fmt.Sprint(queuesOf(one), queuesOf(other))
		mark = c.fence("", one, other)
		ones, others := queuesOf(one), queuesOf(other)
		if fmt.Sprint(ones, others) != before {
			return false // a queue that was released a moment ago may still have a pull
		}
		for queue := range ones {
			if others[queue] {
				return false
			}
		}
		return len(ones) == 2 && len(others) == 2
	})
	p := c.producer()
	for _, id := range ids(40) {
		c.send(p, message(topic, id))
	}
	c.fence("", one, other)
	c.sameIds(slices.Concat(one.ids(), other.ids()), ids(40))
	c.that(len(one.ids()) == 20 && len(other.ids()) == 20, "%d and %d", len(one.ids()), len(other.ids()))
}

func consumeBroadcast(c *check) {
	topic, group := c.newTopic(2), fresh("group")
	all := with(consumer.WithConsumerModel(consumer.BroadCasting))
	one, other := c.inbox(topic, inGroup(group), all), c.inbox(topic, inGroup(group), all)
	p := c.producer()
	for _, id := range ids(10) {
		c.send(p, message(topic, id))
	}
	c.fence("", one)
	other.awaitCount(10)
	c.sameIds(one.ids(), ids(10))
	c.sameIds(other.ids(), ids(10))
}

// A consumer leaves its offsets at the broker, and the next one of its group goes on there.
func consumeResumes(c *check) {
	topic, group := c.newTopic(2), fresh("group")
	p := c.producer()
	for _, id := range ids(6) {
		c.send(p, message(topic, id))
	}
	first := c.inbox(topic, inGroup(group))
	c.fence("", first)
	c.sameIds(first.ids(), ids(6))
	c.await(func() string { return fmt.Sprintf("offsets at the end: %v", first.consumer.GetOffsetDiffMap()) },
		func() bool { return first.consumer.GetOffsetDiffMap()[topic] == 0 })
	first.close()
	c.send(p, message(topic, "later"))
	next := c.inbox(topic, inGroup(group))
	next.awaitOnly("later")
	c.fence("", next)
	c.that(len(next.ids()) == 1, "came %v", next.ids())
}

// A new group of a young topic begins at the first message, though it asks for the last: the broker says so, as long as
// that message is in its memory.
func consumeFromLast(c *check) {
	topic := c.newTopic(2)
	p := c.producer()
	for _, id := range ids(4) {
		c.send(p, message(topic, id))
	}
	in := c.inbox(topic, with(consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset)))
	c.fence("", in)
	c.sameIds(in.ids(), ids(4))
}

// Half an hour back, which is before the first.
func consumeFromTimestamp(c *check) {
	topic := c.newTopic(2)
	p := c.producer()
	for _, id := range ids(4) {
		c.send(p, message(topic, id))
	}
	in := c.inbox(topic, with(consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp)))
	c.fence("", in)
	c.sameIds(in.ids(), ids(4))
}

// A pull that is held is answered by the message it waits for.
func consumeLongPoll(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	worst := int64(0)
	for _, id := range ids(10) {
		before := nowMs()
		c.send(p, message(topic, id))
		worst = max(worst, in.awaitOnly(id).atMs-before)
	}
	c.measures["arrival_max_ms"] = float64(worst)
	c.that(worst < 1_000, "%d ms", worst)
}

func orderInQueues(c *check) {
	topic := c.newTopic(3)
	in := c.inbox(topic, with(consumer.WithConsumerOrder(true)))
	p := c.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	queues := c.queuesOf(topic)
	sent := map[int][]string{}
	for position, id := range ids(60) {
		m := message(topic, id)
		m.Queue = queues[position%3]
		c.send(p, m)
		sent[m.Queue.QueueId] = append(sent[m.Queue.QueueId], id)
	}
	in.awaitCount(60)
	c.fence("", in)
	came := map[int][]string{}
	for _, one := range in.came() {
		came[one.message.Queue.QueueId] = append(came[one.message.Queue.QueueId], idOf(one.message))
	}
	for queue, expected := range sent {
		c.that(slices.Equal(came[queue], expected), "queue %d: %v", queue, came[queue])
	}
}

// What an orderly consumer does not take comes again before all that is behind it.
func orderSuspended(c *check) {
	topic := c.newTopic(1)
	attempts := 0
	in := c.inbox(topic, with(consumer.WithConsumerOrder(true)),
		taking(func(_ context.Context, m *primitive.MessageExt) consumer.ConsumeResult {
			if idOf(m) == ids(3)[1] && attempts < 2 {
				attempts++
				return consumer.SuspendCurrentQueueAMoment
			}
			return consumer.ConsumeSuccess
		}))
	p := c.producer()
	for _, id := range ids(3) {
		c.send(p, message(topic, id))
	}
	in.awaitCount(5)
	all := ids(3)
	c.that(slices.Equal(in.ids(), []string{all[0], all[1], all[1], all[1], all[2]}), "came %v", in.ids())
}
