package main

import (
	"context"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var transactionTests = []test{
	{name: "Transaction.asked", body: transactionAsked, slow: true},
	{name: "Transaction.committed", body: transactionCommitted},
	{name: "Transaction.rolledBack", body: transactionRolledBack},
}

// A ledger decides by the body what becomes of a transaction, and keeps what it was asked for.
type ledger struct {
	states map[string]primitive.LocalTransactionState
	lock   sync.Mutex
	asked  []string
}

func (l *ledger) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return l.states[string(m.Body)]
}

func (l *ledger) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.asked = append(l.asked, string(m.Body))
	return primitive.CommitMessageState
}

func (c *check) transactions(states map[string]primitive.LocalTransactionState) (rocketmq.TransactionProducer, *ledger) {
	l := &ledger{states: states}
	made, err := rocketmq.NewTransactionProducer(l,
		producer.WithNameServer(namesrv),
		producer.WithGroupName(fresh("producer")),
		producer.WithInstanceName(fresh("instance")))
	c.ok(err, "make a producer")
	c.ok(made.Start(), "start a producer")
	c.atEnd(func() { made.Shutdown() })
	return made, l
}

func (c *check) transact(p rocketmq.TransactionProducer, m *primitive.Message) {
	sent, err := p.SendMessageInTransaction(context.Background(), m)
	c.ok(err, "send")
	c.that(sent.Status == primitive.SendOK, "sent with status %d", sent.Status)
}

func transactionCommitted(c *check) {
	topic := c.newTopic(1)
	in := c.inbox(topic)
	p, _ := c.transactions(map[string]primitive.LocalTransactionState{"yes": primitive.CommitMessageState})
	c.transact(p, message(topic, "yes").WithTag("tag"))
	came := in.awaitOnly("yes").message
	c.that(came.GetTags() == "tag" && came.Topic == topic, "%v", came)
	c.fence("", in)
	c.that(len(in.ids()) == 1, "came %v", in.ids())
}

// The fence is sent after the end of the transaction, on another connection: a commit behind it tells that both were
// looked at.
func transactionRolledBack(c *check) {
	topic := c.newTopic(1)
	in := c.inbox(topic)
	p, _ := c.transactions(map[string]primitive.LocalTransactionState{
		"no": primitive.RollbackMessageState, "yes": primitive.CommitMessageState,
	})
	c.transact(p, message(topic, "no"))
	c.transact(p, message(topic, "yes"))
	in.awaitOnly("yes")
	c.fence("", in)
	c.sameIds(in.ids(), []string{"yes"})
}

// What is left open is asked for; the broker looks every 30 s, for what is older than 6 s.
func transactionAsked(c *check) {
	topic := c.newTopic(1)
	in := c.inbox(topic)
	p, l := c.transactions(map[string]primitive.LocalTransactionState{"open": primitive.UnknowState})
	c.transact(p, message(topic, "open"))
	c.awaitFor(90*time.Second, func() string { return "a commit when asked" }, func() bool { return len(in.came()) > 0 })
	in.awaitOnly("open")
	l.lock.Lock()
	defer l.lock.Unlock()
	c.that(len(l.asked) == 1 && l.asked[0] == "open", "asked for %v", l.asked)
}
