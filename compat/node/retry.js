'use strict';

const assert = require('assert');
const { message } = require('./suite');

module.exports = {
  /** The client leaves the delay to the broker: ten seconds for the first attempt. */
  'Retry.givenBack': {
    slow: true,
    async body(check) {
      const topic = await check.newTopic();
      const inbox = await check.inbox(topic, { takes: found => found.reconsumeTimes > 0 || found.tags === 'first' });
      const producer = await check.producer();
      const { msgId } = await producer.send(message(topic, 'again'));
      const [ first, second ] = await inbox.awaitCount(2);
      check.late(second, first.atMs + 10000);
      assert.strictEqual(second.id, 'again');
      assert.strictEqual(second.message.reconsumeTimes, 1);
      assert.strictEqual(second.message.retryTopic, topic);
      assert.strictEqual(second.message.originMessageId, msgId);
      assert.strictEqual(second.message.body.toString(), 'again');
    },
  },
};
