'use strict';

const assert = require('assert');
const { fence, ids, message } = require('./suite');

/** Sends one and sees when it comes: a relative delay counts from the start of the send at the earliest. */
async function comesAfter(check, delayMs, prepare) {
  const topic = await check.newTopic();
  const inbox = await check.inbox(topic);
  const producer = await check.producer();
  await fence(check, 'tag', inbox);
  const sent = message(topic, 'delayed');
  prepare(sent);
  const before = Date.now();
  await producer.send(sent);
  const after = Date.now();
  const arrival = await inbox.awaitOnly('delayed');
  check.late(arrival, before + delayMs, after + delayMs);
  assert.strictEqual(arrival.message.topic, topic);
  assert.strictEqual(arrival.message.tags, 'tag');
  return arrival.message;
}

module.exports = {
  async 'Delay.level1'(check) {
    const found = await comesAfter(check, 1000, sent => { sent.delayTimeLevel = 1; });
    assert.strictEqual(found.delayTimeLevel, 1);
  },

  async 'Delay.level2'(check) {
    await comesAfter(check, 5000, sent => { sent.delayTimeLevel = 2; });
  },

  async 'Timer.delayMs'(check) {
    const found = await comesAfter(check, 1350, sent => { sent.properties.TIMER_DELAY_MS = '1350'; });
    assert.strictEqual(found.properties.TIMER_DELAY_MS, '1350');
    assert(found.properties.TIMER_OUT_MS);
  },

  async 'Timer.delaySec'(check) {
    await comesAfter(check, 2000, sent => { sent.properties.TIMER_DELAY_SEC = '2'; });
  },

  async 'Timer.past'(check) {
    await comesAfter(check, 0, sent => { sent.properties.TIMER_DELIVER_MS = String(Date.now() - 5000); });
  },

  /** The client's own way to name a time is none of the broker's: the message comes at once. */
  async 'Timer.startDeliverTime'(check) {
    const found = await comesAfter(check, 0, sent => sent.setStartDeliverTime(Date.now() + 3600000));
    assert(Number(found.getStartDeliverTime()) > Date.now());
  },

  async 'Timer.many'(check) {
    const topic = await check.newTopic(4);
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    const due = {};
    for (const id of ids(100)) {
      due[id] = Date.now() + 2500 + Math.floor(Math.random() * 2500);
      const sent = message(topic, id);
      sent.properties.TIMER_DELIVER_MS = String(due[id]);
      await producer.send(sent);
    }
    for (const arrival of await inbox.awaitCount(100)) {
      check.late(arrival, due[arrival.id]);
    }
    assert.deepStrictEqual(inbox.ids.sort(), ids(100));
  },
};
