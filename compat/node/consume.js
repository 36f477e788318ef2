'use strict';

const assert = require('assert');
const { fence, fresh, ids, message, until } = require('./suite');

/** Sends ids in turn with each of the tags, and a number as a property. */
async function sendTagged(check, topic, count, ...tags) {
  const producer = await check.producer();
  for (const [ position, id ] of ids(count).entries()) {
    const sent = message(topic, id, tags[position % tags.length]);
    sent.properties.number = String(position);
    await producer.send(sent);
  }
}

module.exports = {
  async 'Consume.tags'(check) {
    const topic = await check.newTopic();
    const inbox = await check.inbox(topic, { expression: 'a || c' });
    await sendTagged(check, topic, 12, 'a', 'b', 'c');
    await fence(check, 'a', inbox);
    assert.deepStrictEqual(inbox.ids, ids(12).filter((_, position) => position % 3 !== 1));
  },

  async 'Consume.sql'(check) {
    const topic = await check.newTopic();
    const subString = '(number BETWEEN 2 AND 5 OR TAGS = \'b\' AND number > 8) OR fence IS NOT NULL';
    const inbox = await check.inbox(topic, { expression: { expressionType: 'SQL92', subString } });
    await sendTagged(check, topic, 12, 'a', 'b');
    await fence(check, 'tag', inbox);
    assert.deepStrictEqual(inbox.ids, [ 2, 3, 4, 5, 9, 11 ].map(position => ids(12)[position]));
  },

  /** Two of a group share the queues, and together see each message once. */
  async 'Consume.shared'(check) {
    const topic = await check.newTopic(4);
    const group = fresh('group');
    const one = await check.inbox(topic, { group });
    const other = await check.inbox(topic, { group });
    const queuesOf = inbox => Array.from(inbox.consumer.processQueueTable.keys()).filter(key => key.includes(topic)).length;
    await until(() => `two queues each: ${queuesOf(one)}, ${queuesOf(other)}`, () => queuesOf(one) === 2 && queuesOf(other) === 2);
    const producer = await check.producer();
    for (const id of ids(40)) {
      await producer.send(message(topic, id));
    }
    await until(() => `40, of which came ${one.ids}, ${other.ids}`, () => one.came.length + other.came.length >= 40);
    assert.deepStrictEqual([ ...one.ids, ...other.ids ].sort(), ids(40));
    assert.strictEqual(one.ids.length, 20);
  },

  async 'Consume.broadcast'(check) {
    const topic = await check.newTopic();
    const group = fresh('group');
    const one = await check.inbox(topic, { group, isBroadcast: true });
    const other = await check.inbox(topic, { group, isBroadcast: true });
    const producer = await check.producer();
    for (const id of ids(10)) {
      await producer.send(message(topic, id));
    }
    await fence(check, 'tag', one, other);
    assert.deepStrictEqual(one.ids, ids(10));
    assert.deepStrictEqual(other.ids, ids(10));
  },

  /** A consumer leaves its offsets at the broker, and the next one of its group goes on there. */
  async 'Consume.resumes'(check) {
    const topic = await check.newTopic();
    const group = fresh('group');
    const producer = await check.producer();
    for (const id of ids(6)) {
      await producer.send(message(topic, id));
    }
    const first = await check.inbox(topic, { group });
    await fence(check, 'tag', first);
    assert.deepStrictEqual(first.ids, ids(6));
    const [{ messageQueue, processQueue }] = Array.from(first.consumer.processQueueTable.values())
      .filter(({ messageQueue }) => messageQueue.topic === topic);
    await until('all to be taken', () => processQueue.msgCount === 0);
    assert.strictEqual(await first.consumer._offsetStore.readOffset(messageQueue, 'READ_FROM_MEMORY'), 8);
    await first.close();
    await producer.send(message(topic, 'later'));
    const next = await check.inbox(topic, { group });
    await fence(check, 'tag', next);
    assert.deepStrictEqual(next.ids, [ 'later' ]);
  },

  /** A new group of a young topic begins at the first message: the broker says so, as long as it is in its memory. */
  async 'Consume.fromLast'(check) {
    const topic = await check.newTopic();
    const producer = await check.producer();
    for (const id of ids(4)) {
      await producer.send(message(topic, id));
    }
    const inbox = await check.inbox(topic, { consumeFromWhere: 'CONSUME_FROM_LAST_OFFSET' });
    await fence(check, 'tag', inbox);
    assert.deepStrictEqual(inbox.ids, ids(4));
  },

  /** Half an hour back, which is before the first. */
  async 'Consume.fromTimestamp'(check) {
    const topic = await check.newTopic();
    const producer = await check.producer();
    for (const id of ids(4)) {
      await producer.send(message(topic, id));
    }
    const inbox = await check.inbox(topic, { consumeFromWhere: 'CONSUME_FROM_TIMESTAMP' });
    await fence(check, 'tag', inbox);
    assert.deepStrictEqual(inbox.ids, ids(4));
  },

  /** A pull that is held is answered by the message it waits for. */
  async 'Consume.longPoll'(check) {
    const topic = await check.newTopic();
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    await fence(check, 'tag', inbox);
    let worst = 0;
    for (const id of ids(10)) {
      const before = Date.now();
      await producer.send(message(topic, id));
      worst = Math.max(worst, (await inbox.awaitOnly(id)).atMs - before);
    }
    check.measures.arrival_max_ms = worst;
    assert(worst < 1000, `${worst} ms`);
  },

  /** What goes to one queue by its sharding key comes in the order it was sent in. */
  async 'Order.inAQueue'(check) {
    const topic = await check.newTopic(4);
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    for (const id of ids(30)) {
      const sent = message(topic, id);
      sent.shardingKey = 'key-1'; // of queue 3: for queue 0 the client picks any
      await producer.send(sent);
    }
    await inbox.awaitCount(30);
    assert.deepStrictEqual(inbox.ids, ids(30));
  },
};
