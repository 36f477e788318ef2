package main

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var topicTests = []test{
	{name: "Topic.created", body: topicCreated},
	{name: "Topic.listed", body: topicListed},
	{name: "Topic.deleted", body: topicDeleted},
	{name: "Topic.groups", body: topicGroups},
}

var refusalTests = []test{
	{name: "Refusal.tooLarge", body: refusalTooLarge},
	{name: "Refusal.tooFar", body: refusalTooFar},
	{name: "Refusal.badName", body: refusalBadName},
	{name: "Refusal.noTopic", body: refusalNoTopic},
}

// refused fails unless the answer has this code; the client tells it in its text alone.
func (c *check) refused(err error, code int) {
	c.that(err != nil, "not refused")
	c.that(strings.Contains(err.Error(), fmt.Sprintf("CODE: %d,", code)), "refused otherwise: %v", err)
}

func topicCreated(c *check) {
	topic := c.newTopic(3)
	for number, queue := range c.queuesOf(topic) {
		c.that(queue.QueueId == number && queue.Topic == topic && queue.BrokerName != "", "queue %v", queue)
	}
}

func topicListed(c *check) {
	topic := c.newTopic(1)
	list, err := c.administrator().FetchAllTopicList(context.Background())
	c.ok(err, "list topics")
	c.that(slices.Contains(list.TopicList, topic), "not among %d topics", len(list.TopicList))
	c.that(slices.Contains(list.TopicList, "TBW102"), "no TBW102 among %d topics", len(list.TopicList))
}

func topicDeleted(c *check) {
	topic := c.newTopic(1)
	a := c.administrator()
	c.ok(a.DeleteTopic(context.Background(),
		admin.WithTopicDelete(topic),
		admin.WithBrokerAddrDelete(a.broker),
		admin.WithNameSrvAddr(namesrv),
	), "delete a topic")
	list, err := a.FetchAllTopicList(context.Background())
	c.ok(err, "list topics")
	c.that(!slices.Contains(list.TopicList, topic), "still there")
}

func topicGroups(c *check) {
	in := c.inbox(c.newTopic(1))
	c.fence("", in)
	a := c.administrator()
	groups, err := a.GetAllSubscriptionGroup(context.Background(), a.broker, patience)
	c.ok(err, "list groups")
	found, known := groups.SubscriptionGroupTable[in.group]
	c.that(known, "no %s among %d groups", in.group, len(groups.SubscriptionGroupTable))
	c.that(found.ConsumeEnable && found.RetryQueueNums == 1 && found.RetryMaxTimes == 16, "%+v", found)
}

func refusalTooLarge(c *check) {
	body := make([]byte, 5<<20)
	rand.Read(body) // so that compression does not save it
	_, err := c.producer().SendSync(context.Background(), primitive.NewMessage(c.newTopic(1), body))
	c.refused(err, 13)
}

// Apache's longest delay is three days.
func refusalTooFar(c *check) {
	m := message(c.newTopic(1), "far")
	m.WithProperty("TIMER_DELAY_SEC", fmt.Sprint(3*24*3600+3600))
	_, err := c.producer().SendSync(context.Background(), m)
	c.refused(err, 13)
}

func refusalBadName(c *check) {
	_, err := c.producer().SendSync(context.Background(), message("a/b "+fresh("topic"), "bad"))
	c.refused(err, 29)
}

// A consumer does not start without a route to its topic.
func refusalNoTopic(c *check) {
	nowhere, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(fresh("group")),
		consumer.WithInstance(fresh("instance")))
	c.ok(err, "make a consumer")
	topic := fresh("nowhere")
	c.ok(nowhere.Subscribe(topic, consumer.MessageSelector{}, func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		return consumer.ConsumeSuccess, nil
	}), "subscribe")
	err = nowhere.Start()
	c.that(err != nil && strings.Contains(err.Error(), "route info not found"), "started: %v", err)
}
