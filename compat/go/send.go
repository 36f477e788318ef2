package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var sendTests = []test{
	{name: "Send.sync", body: sendSync},
	{name: "Send.async", body: sendAsync},
	{name: "Send.oneway", body: sendOneway},
	{name: "Send.batch", body: sendBatch},
	{name: "Send.compressed", body: sendCompressed},
	{name: "Send.empty", body: sendEmpty},
	{name: "Send.toAQueue", body: sendToAQueue},
	{name: "Send.byShardingKey", body: sendByShardingKey},
	{name: "Send.properties", body: sendProperties},
}

// The first send makes the topic, with four queues: the client asks for as many, whatever it is told.
func sendSync(c *check) {
	topic := fresh("topic")
	p := c.producer()
	next := map[int]int64{}
	for _, id := range ids(8) {
		sent := c.send(p, message(topic, id))
		queue := sent.MessageQueue.QueueId
		c.that(len(sent.MsgID) == 32, "message id %q", sent.MsgID)
		c.that(sent.QueueOffset == next[queue], "queue offset %d, expected %d", sent.QueueOffset, next[queue])
		next[queue]++
		stored, err := primitive.UnmarshalMsgID([]byte(sent.OffsetMsgID))
		c.ok(err, "read the offset id")
		c.that(fmt.Sprintf("%s:%d", stored.Addr, stored.Port) == c.administrator().broker, "stored at %v", stored)
	}
	c.await(func() string { return "the route of " + topic }, func() bool { return len(c.queuesOf(topic)) == 4 })
	in := c.inbox(topic)
	in.awaitCount(8)
	c.fence("", in)
	c.sameIds(in.ids(), ids(8))
}

func sendAsync(c *check) {
	topic := c.newTopic(4)
	in, p := c.inbox(topic), c.producer()
	var lock sync.Mutex
	sent, wrong := 0, []string{}
	for _, id := range ids(50) {
		c.ok(p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			lock.Lock()
			defer lock.Unlock()
			sent++
			if err != nil || result.Status != primitive.SendOK {
				wrong = append(wrong, fmt.Sprint(result, err))
			}
		}, message(topic, id)), "send")
	}
	c.await(func() string { return "50 answers" }, func() bool {
		lock.Lock()
		defer lock.Unlock()
		return sent == 50
	})
	c.that(len(wrong) == 0, "answered %v", wrong)
	in.awaitCount(50)
	c.fence("", in)
	c.sameIds(in.ids(), ids(50))
}

func sendOneway(c *check) {
	topic := c.newTopic(4)
	in, p := c.inbox(topic), c.producer()
	for _, id := range ids(10) {
		c.ok(p.SendOneWay(context.Background(), message(topic, id)), "send")
	}
	in.awaitCount(10)
	c.fence("", in)
	c.sameIds(in.ids(), ids(10))
}

// A batch stands in one queue, one after another.
func sendBatch(c *check) {
	topic := c.newTopic(4)
	in, p := c.inbox(topic), c.producer()
	batch := []*primitive.Message{}
	for _, id := range ids(32) {
		batch = append(batch, message(topic, id).WithTag("t"))
	}
	sent := c.send(p, batch...)
	came := in.awaitCount(32)
	c.fence("", in)
	c.that(slices.Equal(in.ids(), ids(32)), "came %v", in.ids())
	for position, one := range came {
		c.that(one.message.Queue.QueueId == sent.MessageQueue.QueueId, "in queue %d", one.message.Queue.QueueId)
		c.that(one.message.QueueOffset == sent.QueueOffset+int64(position), "at %d", one.message.QueueOffset)
		c.that(one.message.GetTags() == "t" && string(one.message.Body) == idOf(one.message), "%v", one.message)
	}
}

func sendCompressed(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	body := []byte(strings.Repeat("wheel ", 50_000))
	c.send(p, primitive.NewMessage(topic, body).WithKeys([]string{"large"}))
	found := in.awaitOnly("large").message
	c.that(bytes.Equal(found.Body, body), "%d bytes came", len(found.Body))
	c.that(int(found.StoreSize) < len(body)/10, "stored in %d bytes", found.StoreSize)
}

// A body of no bytes is a system error to Apache.
func sendEmpty(c *check) {
	p := c.producer()
	_, err := p.SendSync(context.Background(), primitive.NewMessage(c.newTopic(1), []byte{}))
	c.refused(err, 1)
}

func sendToAQueue(c *check) {
	topic := c.newTopic(4)
	in, p := c.inbox(topic), c.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	queue := c.queuesOf(topic)[2]
	for _, id := range ids(5) {
		m := message(topic, id)
		m.Queue = queue
		sent := c.send(p, m)
		c.that(sent.MessageQueue.QueueId == queue.QueueId, "sent to queue %d", sent.MessageQueue.QueueId)
	}
	for _, one := range in.awaitCount(5) {
		c.that(one.message.Queue.QueueId == queue.QueueId, "came from queue %d", one.message.Queue.QueueId)
	}
}

func sendByShardingKey(c *check) {
	topic := c.newTopic(4)
	p := c.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	queueOf := map[string]int{}
	for position, id := range ids(24) {
		key := fmt.Sprint("key-", position%6)
		queue := c.send(p, message(topic, id).WithShardingKey(key)).MessageQueue.QueueId
		first, known := queueOf[key]
		c.that(!known || first == queue, "%s in queues %d and %d", key, first, queue)
		queueOf[key] = queue
	}
	in := c.inbox(topic)
	for _, one := range in.awaitCount(24) {
		c.that(queueOf[one.message.GetShardingKey()] == one.message.Queue.QueueId, "%v", one.message)
	}
}

func sendProperties(c *check) {
	topic := c.newTopic(1)
	in, p := c.inbox(topic), c.producer()
	m := primitive.NewMessage(topic, []byte("körper")).WithKeys([]string{"one", "two"}).WithTag("tag")
	m.WithProperty("colour", "größe")
	m.WithProperty("empty_not", " ")
	m.Flag = 7
	before := nowMs()
	sent := c.send(p, m)
	found := in.awaitCount(1)[0].message
	c.that(found.GetProperty("colour") == "größe" && found.GetProperty("empty_not") == " ", "%v", found.GetProperties())
	c.that(found.GetTags() == "tag" && found.GetKeys() == m.GetKeys(), "tags %q, keys %q", found.GetTags(), found.GetKeys())
	c.that(string(found.Body) == "körper" && found.Flag == 7, "body %q, flag %d", found.Body, found.Flag)
	c.that(found.OffsetMsgId == sent.OffsetMsgID, "offset id %s, sent %s", found.OffsetMsgId, sent.OffsetMsgID)
	c.that(found.MsgId == sent.MsgID, "id %s, sent %s", found.MsgId, sent.MsgID)
	c.that(found.BornTimestamp >= before && found.StoreTimestamp >= before, "%d, %d", found.BornTimestamp, found.StoreTimestamp)
	c.that(found.GetProperty("MIN_OFFSET") == "0" && found.GetProperty("MAX_OFFSET") != "", "%v", found.GetProperties())
	c.that(found.GetProperty("CLUSTER") == "DefaultCluster", "%v", found.GetProperties())
}
