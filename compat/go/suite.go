package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	patience = 20 * time.Second
	poll     = 5 * time.Millisecond
	// Each case has a client of its own; more of them at once would measure this process and not the broker.
	casesAtOnce = 8
)

var (
	namesrv       = primitive.NamesrvAddr{os.Getenv("COMPAT_NAMESRV")}
	fast          = os.Getenv("COMPAT_FAST") != ""
	latenessMaxMs = number(os.Getenv("COMPAT_LATENESS_MAX_MS"))
	only          = regexp.MustCompile(os.Getenv("COMPAT_ONLY"))

	run   = strconv.FormatInt(time.Now().UnixMilli(), 36)
	names atomic.Int64
)

// A test is one expectation: its name, and what is to hold. What takes over 10 s is slow, and left out when fast.
type test struct {
	name string
	body func(*check)
	slow bool
}

// A check is a test under way. A failure leaves the test by panic, from the goroutine of the test alone.
type check struct {
	measures map[string]float64
	closers  []func()
}

type failure string

func (c *check) fail(format string, arguments ...any) {
	panic(failure(fmt.Sprintf(format, arguments...)))
}

func (c *check) that(holds bool, format string, arguments ...any) {
	if !holds {
		c.fail(format, arguments...)
	}
}

func (c *check) ok(err error, doing string) {
	if err != nil {
		c.fail("%s: %v", doing, err)
	}
}

func (c *check) atEnd(closer func()) {
	c.closers = append(c.closers, closer)
}

// await returns when the condition holds, and fails after the patience; what is asked for at the end, to tell how far
// things got.
func (c *check) await(what func() string, condition func() bool) {
	c.awaitFor(patience, what, condition)
}

func (c *check) awaitFor(longest time.Duration, what func() string, condition func() bool) {
	deadline := time.Now().Add(longest)
	for !condition() {
		if time.Now().After(deadline) {
			c.fail("not within %v: %s", longest, what())
		}
		time.Sleep(poll)
	}
}

type result struct {
	Case     string             `json:"case"`
	Outcome  string             `json:"outcome"`
	Seconds  float64            `json:"seconds"`
	Reason   string             `json:"reason"`
	Measures map[string]float64 `json:"measures"`
}

// runTests prints one line for each and tells whether all passed.
func runTests(tests []test) bool {
	var (
		running sync.WaitGroup
		printed sync.Mutex
		failed  atomic.Bool
		places  = make(chan struct{}, casesAtOnce)
		lines   = json.NewEncoder(os.Stdout)
	)
	for _, one := range tests {
		if !only.MatchString(one.name) || fast && one.slow {
			continue
		}
		running.Add(1)
		places <- struct{}{}
		go func() {
			defer running.Done()
			defer func() { <-places }()
			found := runTest(one)
			failed.CompareAndSwap(false, found.Outcome == "failed")
			printed.Lock()
			defer printed.Unlock()
			lines.Encode(found)
		}()
	}
	running.Wait()
	return !failed.Load()
}

func runTest(one test) (found result) {
	started := time.Now()
	c := &check{measures: map[string]float64{}}
	found = result{Case: one.name, Outcome: "passed", Measures: c.measures}
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case failure:
			found.Outcome, found.Reason = "failed", string(reason)
		default:
			panic(reason)
		}
		found.Seconds = time.Since(started).Seconds()
		for _, closer := range c.closers {
			closer()
		}
	}()
	one.body(c)
	return
}

// fresh gives a name that no earlier run has used.
func fresh(what string) string {
	return fmt.Sprintf("compat_go_%s_%s_%d", what, run, names.Add(1))
}

func (c *check) producer(options ...producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(namesrv),
		producer.WithGroupName(fresh("producer")),
		producer.WithInstanceName(fresh("instance")),
	}, options...)...)
	c.ok(err, "make a producer")
	c.ok(made.Start(), "start a producer")
	c.atEnd(func() { made.Shutdown() })
	return made
}

func (c *check) send(p rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	sent, err := p.SendSync(context.Background(), messages...)
	c.ok(err, "send")
	c.that(sent.Status == primitive.SendOK, "sent with status %d", sent.Status)
	return sent
}

// An administrator, and the broker's address as the ids it gives to messages tell it.
type administrator struct {
	admin.Admin
	broker string
}

var theAdministrator = sync.OnceValues(func() (administrator, error) {
	made, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver(namesrv)))
	if err != nil {
		return administrator{}, err
	}
	p, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName(fresh("producer")),
		producer.WithInstanceName(fresh("instance")))
	if err != nil {
		return administrator{}, err
	}
	defer p.Shutdown()
	if err := p.Start(); err != nil {
		return administrator{}, err
	}
	sent, err := p.SendSync(context.Background(), message(fresh("first"), "first"))
	if err != nil {
		return administrator{}, err
	}
	id, err := primitive.UnmarshalMsgID([]byte(sent.OffsetMsgID))
	if err != nil {
		return administrator{}, err
	}
	return administrator{made, fmt.Sprintf("%s:%d", id.Addr, id.Port)}, nil
})

func (c *check) administrator() administrator {
	found, err := theAdministrator()
	c.ok(err, "reach the broker")
	return found
}

// createTopic makes it and waits for its route: without one a consumer does not start.
func (c *check) createTopic(topic string, queues int) string {
	a := c.administrator()
	c.ok(a.CreateTopic(context.Background(),
		admin.WithTopicCreate(topic),
		admin.WithBrokerAddrCreate(a.broker),
		admin.WithReadQueueNums(queues),
		admin.WithWriteQueueNums(queues),
	), "create a topic")
	c.await(func() string { return "a route to " + topic }, func() bool { return len(c.queuesOf(topic)) == queues })
	return topic
}

func (c *check) newTopic(queues int) string {
	return c.createTopic(fresh("topic"), queues)
}

func (c *check) queuesOf(topic string) []*primitive.MessageQueue {
	queues, err := c.administrator().FetchPublishMessageQueues(context.Background(), topic)
	if err != nil {
		return nil
	}
	return queues
}

// message is one whose id, its key, is also its body.
func message(topic, id string) *primitive.Message {
	return primitive.NewMessage(topic, []byte(id)).WithKeys([]string{id})
}

// idOf gives what message was told; the client ends each key with a blank.
func idOf(m *primitive.MessageExt) string {
	return strings.TrimSpace(m.GetKeys())
}

// ids sort as they count.
func ids(count int) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = fmt.Sprintf("id-%04d", i)
	}
	return made
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return value
}

func nowMs() int64 {
	return time.Now().UnixMilli()
}
