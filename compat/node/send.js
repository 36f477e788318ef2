'use strict';

const assert = require('assert');
const crypto = require('crypto');
const { Message } = require('ali-ons');
const { fresh, ids, message } = require('./suite');

module.exports = {
  async 'Send.sync'(check) {
    const topic = await check.newTopic(2);
    const producer = await check.producer();
    const first = {};
    const next = {};
    for (const id of ids(8)) {
      const sent = await producer.send(message(topic, id));
      assert.strictEqual(sent.sendStatus, 'SEND_OK');
      assert.match(sent.msgId, /^[0-9A-F]{32}$/);
      const { queueId } = sent.messageQueue;
      assert.strictEqual(sent.queueOffset, queueId in next ? next[queueId] : sent.queueOffset);
      next[queueId] = sent.queueOffset + 1;
      first[queueId] = queueId in first ? first[queueId] : sent.queueOffset;
    }
    assert.deepStrictEqual(Object.keys(next).sort(), [ '0', '1' ]);
    assert.strictEqual(first[0] + first[1], 1); // behind the message that made the topic
    assert.strictEqual(next[0] + next[1], 9);
    const inbox = await check.inbox(topic);
    await inbox.awaitCount(8);
    assert.deepStrictEqual(inbox.ids.sort(), ids(8));
  },

  async 'Send.sideBySide'(check) {
    const topic = await check.newTopic(4);
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    const sent = await Promise.all(ids(50).map(id => producer.send(message(topic, id))));
    assert(sent.every(one => one.sendStatus === 'SEND_OK'));
    assert.strictEqual(new Set(sent.map(one => one.msgId)).size, 50);
    await inbox.awaitCount(50);
    assert.deepStrictEqual(inbox.ids.sort(), ids(50));
  },

  async 'Send.compressed'(check) {
    const topic = await check.newTopic();
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    const body = 'wheel '.repeat(50000);
    const sent = new Message(topic, 'tag', body);
    sent.keys = [ 'large' ];
    await producer.send(sent);
    const { message: found } = await inbox.awaitOnly('large');
    assert.strictEqual(found.body.toString(), body);
    assert(found.storeSize < body.length / 10, `stored in ${found.storeSize} bytes`);
  },

  async 'Send.properties'(check) {
    const topic = await check.newTopic();
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    const sent = new Message(topic, 'tag', 'körper');
    sent.keys = [ 'one', 'two' ];
    sent.properties.colour = 'größe';
    sent.flag = 7;
    const before = Date.now();
    const { msgId } = await producer.send(sent);
    const [{ message: found }] = await inbox.awaitCount(1);
    assert.strictEqual(found.properties.colour, 'größe');
    assert.strictEqual(found.tags, 'tag');
    assert.strictEqual(found.keys, 'one two');
    assert.strictEqual(found.body.toString(), 'körper');
    assert.strictEqual(found.flag, 7);
    assert.strictEqual(found.msgId, msgId);
    assert.strictEqual(found.topic, topic);
    assert(found.bornTimestamp >= before && found.storeTimestamp >= before);
    assert.strictEqual(found.properties.CLUSTER, 'DefaultCluster');
  },

  async 'Send.byShardingKey'(check) {
    const topic = await check.newTopic(4);
    const inbox = await check.inbox(topic);
    const producer = await check.producer();
    const queueOf = {};
    for (const [ position, id ] of ids(24).entries()) {
      const sent = message(topic, id);
      sent.shardingKey = `key-${position % 6}`;
      const { queueId } = (await producer.send(sent)).messageQueue;
      // The client takes queue 0 for none, and sends what belongs there anywhere.
      const queue = crypto.createHash('md5').update(sent.shardingKey).digest().readUInt32BE() % 4;
      assert(queue === 0 || queue === Number(queueId), `${sent.shardingKey} in queue ${queueId}`);
      queueOf[id] = Number(queueId);
    }
    for (const { message: found, id } of await inbox.awaitCount(24)) {
      assert.strictEqual(found.queueId, queueOf[id]);
    }
  },

  async 'Refusal.tooLarge'(check) {
    const topic = await check.newTopic();
    const producer = await check.producer({ retryTimesWhenSendFailed: 0 });
    await assert.rejects(producer.send(new Message(topic, 'tag', crypto.randomBytes(5 << 20))), error => error.code === 13);
  },

  async 'Refusal.tooFar'(check) {
    const topic = await check.newTopic();
    const producer = await check.producer({ retryTimesWhenSendFailed: 0 });
    const far = message(topic, 'far');
    far.properties.TIMER_DELAY_SEC = String(3 * 24 * 3600 + 3600);
    await assert.rejects(producer.send(far), error => error.code === 13);
  },

  /** The client does not send to a topic that has no route. */
  async 'Refusal.noTopic'(check) {
    await assert.rejects((await check.producer()).send(message(fresh('nowhere'), 'none')), /No topic route info/);
  },
};
