package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var pullTests = []test{
	{name: "Pull.from", body: pullFrom},
	{name: "Pull.noNew", body: pullNoNew, slow: true},
	{name: "Pull.polled", body: pullPolled},
}

var replyTests = []test{
	{name: "Reply.answered", body: replyAnswered},
}

func (c *check) puller(topic string, options ...consumer.Option) rocketmq.PullConsumer {
	made, err := rocketmq.NewPullConsumer(append([]consumer.Option{
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(fresh("group")),
		consumer.WithInstance(fresh("instance")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithPullBatchSize(32),
	}, options...)...)
	c.ok(err, "make a pull consumer")
	c.ok(made.Subscribe(topic, consumer.MessageSelector{}), "subscribe")
	c.ok(made.Start(), "start a pull consumer")
	c.atEnd(func() { made.Shutdown() })
	return made
}

// pullAll pulls the topic's only queue from its begin until it has as many.
func (c *check) pullAll(topic string, count int) []*primitive.MessageExt {
	puller, queue := c.puller(topic), c.queuesOf(topic)[0]
	found, next := []*primitive.MessageExt{}, int64(0)
	for len(found) < count {
		pulled, err := puller.PullFrom(context.Background(), queue, next, 32)
		c.ok(err, "pull")
		found = append(found, pulled.GetMessageExts()...)
		next = pulled.NextBeginOffset
	}
	return found
}

func pullFrom(c *check) {
	topic := c.newTopic(1)
	p := c.producer()
	for _, id := range ids(10) {
		c.send(p, message(topic, id))
	}
	puller, queue := c.puller(topic), c.queuesOf(topic)[0]
	pulled, err := puller.PullFrom(context.Background(), queue, 4, 3)
	c.ok(err, "pull")
	c.that(pulled.Status == primitive.PullFound, "status %d", pulled.Status)
	c.that(pulled.NextBeginOffset == 7 && pulled.MinOffset == 0 && pulled.MaxOffset == 10, "%+v", pulled)
	for position, one := range pulled.GetMessageExts() {
		c.that(idOf(one) == ids(10)[4+position] && one.QueueOffset == int64(4+position), "%v", one)
	}
	beyond, err := puller.PullFrom(context.Background(), queue, 20, 3)
	c.ok(err, "pull beyond the end")
	c.that(beyond.Status == primitive.PullOffsetIllegal && beyond.NextBeginOffset == 10, "%+v", beyond)
}

// A pull at the end is held until its deadline, which the client sets to 20 s, and answered with nothing new.
func pullNoNew(c *check) {
	topic := c.newTopic(1)
	puller, queue := c.puller(topic), c.queuesOf(topic)[0]
	started := time.Now()
	pulled, err := puller.PullFrom(context.Background(), queue, 0, 1)
	c.ok(err, "pull")
	c.measures["held_ms"] = float64(time.Since(started).Milliseconds())
	c.that(pulled.Status == primitive.PullNoNewMsg && pulled.NextBeginOffset == 0, "%+v", pulled)
	c.that(time.Since(started) > 10*time.Second, "after %v", time.Since(started))
}

func pullPolled(c *check) {
	topic := c.newTopic(2)
	puller := c.puller(topic)
	p := c.producer()
	for _, id := range ids(20) {
		c.send(p, message(topic, id))
	}
	found := []string{}
	c.await(func() string { return fmt.Sprintf("20 messages, of which came %v", found) }, func() bool {
		polled, err := puller.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			return false
		}
		c.ok(err, "poll")
		for _, one := range polled.GetMsgList() {
			found = append(found, idOf(one))
		}
		puller.ACK(context.Background(), polled, consumer.ConsumeSuccess)
		return len(found) >= 20
	})
	c.sameIds(found, ids(20))
}

// A request waits for what a consumer answers, and the broker hands the reply to the client that asked, once it knows
// that by its heartbeat: the client's first goes out a second after its start.
func replyAnswered(c *check) {
	topic := c.newTopic(1)
	answering := c.producer()
	in := c.inbox(topic, taking(func(ctx context.Context, m *primitive.MessageExt) consumer.ConsumeResult {
		if reply, err := consumer.CreateReplyMessage(m, nil); err == nil {
			reply.Body = []byte("answer to " + string(m.Body))
			answering.SendSync(ctx, reply)
		}
		return consumer.ConsumeSuccess
	}))
	c.fence("", in)
	asking := c.producer()
	var answer *primitive.Message
	var refused error
	c.await(func() string { return fmt.Sprint("an answer: ", refused) }, func() bool {
		answer, refused = asking.Request(context.Background(), 2*time.Second, primitive.NewMessage(topic, []byte("question")))
		return refused == nil
	})
	c.that(string(answer.Body) == "answer to question", "answered %q", answer.Body)
}
