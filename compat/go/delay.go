package main

import (
	"fmt"
	"math/rand"
	"slices"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var delayTests = []test{
	{name: "Delay.level1", body: func(c *check) { delayLevel(c, 1, 1_000) }},
	{name: "Delay.level2", body: func(c *check) { delayLevel(c, 2, 5_000) }},
	{name: "Delay.level3", body: func(c *check) { delayLevel(c, 3, 10_000) }, slow: true},
	{name: "Delay.kept", body: delayKept},
}

var timerTests = []test{
	{name: "Timer.delayMs", body: func(c *check) { timerDelay(c, "TIMER_DELAY_MS", 1_350, 1_350) }},
	{name: "Timer.delaySec", body: func(c *check) { timerDelay(c, "TIMER_DELAY_SEC", 2, 2_000) }},
	{name: "Timer.deliverMs", body: timerDeliver},
	{name: "Timer.past", body: timerPast},
	{name: "Timer.batch", body: timerInABatch},
	{name: "Timer.many", body: timerMany},
	{name: "Timer.cancelled", body: timerCancelled},
	{name: "Timer.startDeliverTime", body: timerStartDeliverTime},
}

// late fails when a message came early or too late, and keeps how late it was. A relative delay counts from the start
// of the send at the earliest and from its end at the latest.
func (c *check) late(came arrival, earliestMs, latestMs int64) {
	c.measures["lateness_ms"] = max(c.measures["lateness_ms"], float64(came.atMs-earliestMs))
	c.that(came.atMs >= earliestMs, "%d ms early", earliestMs-came.atMs)
	c.that(came.atMs-latestMs <= latenessMaxMs, "%d ms late", came.atMs-latestMs)
}

func delayLevel(c *check, level int, delayMs int64) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	before := nowMs()
	c.send(p, message(topic, "delayed").WithDelayTimeLevel(level))
	after := nowMs()
	came := in.awaitOnly("delayed")
	c.late(came, before+delayMs, after+delayMs)
	c.that(came.message.GetProperty("DELAY") == strconv.Itoa(level), "%v", came.message.GetProperties())
}

// A delayed message keeps its tags, so a filter finds it, and its queue.
func delayKept(c *check) {
	topic := c.newTopic(4)
	in, other := c.inbox(topic, tags("wanted")), c.inbox(topic, tags("unwanted"))
	p := c.producer()
	sent := c.send(p, message(topic, "delayed").WithTag("wanted").WithDelayTimeLevel(1))
	came := in.awaitOnly("delayed").message
	c.that(came.Queue.QueueId == sent.MessageQueue.QueueId, "queue %d, sent to %d", came.Queue.QueueId, sent.MessageQueue.QueueId)
	c.that(came.MsgId == sent.MsgID && came.Topic == topic, "%v", came)
	c.fence("unwanted", other)
	c.that(len(other.ids()) == 0, "came %v", other.ids())
}

func timerDelay(c *check, property string, value int, delayMs int64) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	m := message(topic, "timer")
	m.WithProperty(property, strconv.Itoa(value))
	before := nowMs()
	c.send(p, m)
	after := nowMs()
	came := in.awaitOnly("timer")
	c.late(came, before+delayMs, after+delayMs)
	c.that(came.message.GetProperty(property) == strconv.Itoa(value), "%v", came.message.GetProperties())
	c.that(came.message.GetProperty("TIMER_OUT_MS") != "", "%v", came.message.GetProperties())
}

func timerDeliver(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	due := nowMs() + 1_700
	m := message(topic, "timer").WithTag("tag").WithShardingKey("shard")
	m.WithProperty("TIMER_DELIVER_MS", fmt.Sprint(due))
	sent := c.send(p, m)
	came := in.awaitOnly("timer")
	c.late(came, due, due)
	found := came.message
	c.that(found.GetTags() == "tag" && found.GetShardingKey() == "shard", "%v", found.GetProperties())
	c.that(found.MsgId == sent.MsgID && string(found.Body) == "timer", "%v", found)
}

func timerPast(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	m := message(topic, "timer")
	m.WithProperty("TIMER_DELIVER_MS", fmt.Sprint(nowMs()-5_000))
	before := nowMs()
	c.send(p, m)
	c.late(in.awaitOnly("timer"), before, before)
}

// Timer properties of a batch's messages are not looked at: they come at once.
func timerInABatch(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	batch := []*primitive.Message{}
	for _, id := range ids(3) {
		m := message(topic, id)
		m.WithProperty("TIMER_DELAY_SEC", "3600")
		batch = append(batch, m)
	}
	c.send(p, batch...)
	in.awaitCount(3)
	c.that(slices.Equal(in.ids(), ids(3)), "came %v", in.ids())
}

func timerMany(c *check) {
	topic := c.newTopic(4)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	due := map[string]int64{}
	for _, id := range ids(100) {
		at := nowMs() + 1_500 + rand.Int63n(2_500)
		m := message(topic, id)
		m.WithProperty("TIMER_DELIVER_MS", fmt.Sprint(at))
		c.send(p, m)
		due[id] = at
	}
	for _, one := range in.awaitCount(100) {
		c.late(one, due[idOf(one.message)], due[idOf(one.message)])
	}
	c.fence("", in)
	c.sameIds(in.ids(), ids(100))
}

// A message with TIMER_DEL_UNIQKEY and the due time of another cancels that.
func timerCancelled(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	due := fmt.Sprint(nowMs() + 3_000)
	cancelled, kept := message(topic, "cancelled"), message(topic, "kept")
	cancelled.WithProperty("TIMER_DELIVER_MS", due)
	kept.WithProperty("TIMER_DELIVER_MS", due)
	sent := c.send(p, cancelled)
	c.send(p, kept)
	cancel := message(topic, "cancel")
	cancel.WithProperty("TIMER_DELIVER_MS", due)
	cancel.WithProperty("TIMER_DEL_UNIQKEY", topic+"+"+sent.MsgID)
	c.send(p, cancel)
	in.awaitOnly("kept")
	// What is due a second later lies behind all of that second.
	behind := message(topic, "behind")
	behind.WithProperty("TIMER_DELAY_MS", "1500")
	c.send(p, behind)
	in.awaitOnly("behind")
	c.sameIds(in.ids(), []string{"kept", "behind"})
}

// The property of the public clouds' clients is none of the broker's: the message comes at once.
func timerStartDeliverTime(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	c.fence("", in)
	m := message(topic, "at once")
	m.WithProperty("__STARTDELIVERTIME", fmt.Sprint(nowMs()+3_600_000))
	c.send(p, m)
	in.awaitOnly("at once")
}
