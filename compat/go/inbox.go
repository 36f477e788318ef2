package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const fenceProperty = "fence"

type arrival struct {
	message *primitive.MessageExt
	atMs    int64
}

// An inbox is a push consumer that keeps what it was given, with the time.
//
// It consumes in one goroutine: what stands earlier in a queue is also seen earlier, which fence relies on.
type inbox struct {
	*check
	topic    string
	group    string
	consumer rocketmq.PushConsumer
	// takes tells whether a message is to be taken, or given back.
	takes func(context.Context, *primitive.MessageExt) consumer.ConsumeResult

	lock     sync.Mutex
	arrivals []arrival
}

type choice func(*choices)

type choices struct {
	group    string
	selector consumer.MessageSelector
	takes    func(context.Context, *primitive.MessageExt) consumer.ConsumeResult
	options  []consumer.Option
}

func inGroup(group string) choice {
	return func(c *choices) { c.group = group }
}

func tags(expression string) choice {
	return func(c *choices) { c.selector = consumer.MessageSelector{Type: consumer.TAG, Expression: expression} }
}

// sql subscribes to what the expression matches, and to fences.
func sql(expression string) choice {
	whole := fmt.Sprintf("(%s) OR %s IS NOT NULL", expression, fenceProperty)
	return func(c *choices) { c.selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: whole} }
}

func taking(takes func(context.Context, *primitive.MessageExt) consumer.ConsumeResult) choice {
	return func(c *choices) { c.takes = takes }
}

func with(options ...consumer.Option) choice {
	return func(c *choices) { c.options = append(c.options, options...) }
}

func (c *check) inbox(topic string, chosen ...choice) *inbox {
	made := choices{
		group: fresh("group"),
		takes: func(context.Context, *primitive.MessageExt) consumer.ConsumeResult { return consumer.ConsumeSuccess },
	}
	for _, one := range chosen {
		one(&made)
	}
	in := &inbox{check: c, topic: topic, group: made.group, takes: made.takes}
	c.start(in, made)
	return in
}

func (c *check) start(in *inbox, made choices) {
	var err error
	in.consumer, err = rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(made.group),
		consumer.WithInstance(fresh("instance")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(1),
	}, made.options...)...)
	c.ok(err, "make a consumer")
	c.ok(in.consumer.Subscribe(in.topic, made.selector, in.note), "subscribe")
	c.ok(in.consumer.Start(), "start a consumer")
	c.atEnd(in.close)
}

func (in *inbox) close() {
	in.consumer.Shutdown()
}

func (in *inbox) note(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	now := nowMs()
	in.lock.Lock()
	for _, one := range messages {
		in.arrivals = append(in.arrivals, arrival{one, now})
	}
	in.lock.Unlock()
	for _, one := range messages {
		if one.GetProperty(fenceProperty) != "" {
			continue
		}
		if taken := in.takes(ctx, one); taken != consumer.ConsumeSuccess {
			return taken, nil
		}
	}
	return consumer.ConsumeSuccess, nil
}

// came tells what came so far, in order, without fences.
func (in *inbox) came() []arrival {
	in.lock.Lock()
	defer in.lock.Unlock()
	return slices.DeleteFunc(slices.Clone(in.arrivals), func(one arrival) bool {
		return one.message.GetProperty(fenceProperty) != ""
	})
}

func (in *inbox) ids() []string {
	found := []string{}
	for _, one := range in.came() {
		found = append(found, idOf(one.message))
	}
	return found
}

func (in *inbox) awaitCount(count int) []arrival {
	in.await(func() string { return fmt.Sprintf("%d messages, of which came %v", count, in.ids()) },
		func() bool { return len(in.came()) >= count })
	return in.came()
}

// awaitOnly gives the arrival with this id, which must be its only one so far.
func (in *inbox) awaitOnly(id string) arrival {
	in.await(func() string { return fmt.Sprintf("%s among %v", id, in.ids()) },
		func() bool { return slices.Contains(in.ids(), id) })
	found := slices.DeleteFunc(in.came(), func(one arrival) bool { return idOf(one.message) != id })
	in.that(len(found) == 1, "%s came %d times", id, len(found))
	return found[0]
}

// fence waits until all that is in the topic now has been seen: it sends a last message to each queue and waits for
// those. This is how a case shows that something does not come, or not twice, without waiting for nothing. It returns
// the mark of its messages.
func (c *check) fence(tag string, inboxes ...*inbox) (mark string) {
	topic := inboxes[0].topic
	mark = fresh(fenceProperty)
	p := c.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	queues := c.queuesOf(topic)
	for _, queue := range queues {
		last := primitive.NewMessage(topic, []byte(fenceProperty))
		last.WithProperty(fenceProperty, mark)
		last.WithTag(tag)
		last.Queue = queue
		c.send(p, last)
	}
	seen := func() (count int) {
		for _, in := range inboxes {
			in.lock.Lock()
			for _, one := range in.arrivals {
				if one.message.GetProperty(fenceProperty) == mark {
					count++
				}
			}
			in.lock.Unlock()
		}
		return
	}
	c.await(func() string { return fmt.Sprintf("the fence of %s: %d of %d", topic, seen(), len(queues)) },
		func() bool { return seen() >= len(queues) })
	return mark
}

// sameIds fails unless these are those, in any order.
func (c *check) sameIds(found, expected []string) {
	found, expected = slices.Clone(found), slices.Clone(expected)
	slices.Sort(found)
	slices.Sort(expected)
	c.that(slices.Equal(found, expected), "came %v, expected %v", found, expected)
}
