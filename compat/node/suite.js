'use strict';

const assert = require('assert');
const { Consumer, Message, Producer } = require('ali-ons');

const NAMESRV = process.env.COMPAT_NAMESRV;
const FAST = process.env.COMPAT_FAST !== '';
const LATENESS_MAX_MS = Number(process.env.COMPAT_LATENESS_MAX_MS);
const ONLY = new RegExp(process.env.COMPAT_ONLY);
const PATIENCE_MS = 20000;
const POLL_MS = 5;
const CASES_AT_ONCE = 8;

const RUN = Date.now().toString(36);
let names = 0;

/** A name that no earlier run has used. */
function fresh(what) {
  return `compat_node_${what}_${RUN}_${++names}`;
}

/** Ids that sort as they count. */
function ids(count) {
  return Array.from({ length: count }, (_, number) => `id-${String(number).padStart(4, '0')}`);
}

/** What every client is told. It looks each second for routes and queues: left alone, retry topics are found within 40 s. */
function options(more) {
  return {
    nameSrv: NAMESRV,
    httpclient: {}, // asked for, and not used where the name server is named
    instanceName: fresh('instance'),
    clientIP: '127.0.0.1',
    pollNameServerInteval: 1000,
    rebalanceInterval: 1000,
    sendMsgTimeout: 15000,
    logger: { info() {}, debug() {}, warn: console.error, error: console.error },
    ...more,
  };
}

/** Returns when the condition holds, and fails after the patience; `what` is asked at the end. */
async function until(what, condition, patienceMs = PATIENCE_MS) {
  const deadline = Date.now() + patienceMs;
  while (!await condition()) {
    assert(Date.now() < deadline, `not within ${patienceMs} ms: ${typeof what === 'function' ? what() : what}`);
    await new Promise(resolve => setTimeout(resolve, POLL_MS));
  }
}

/** A case under way: what it opens is closed when it ends. */
class Check {
  constructor() {
    this.measures = {};
    this.closers = [];
    this.errors = [];
  }

  async producer(more) {
    const made = new Producer(options({ producerGroup: fresh('producer'), ...more }));
    made.on('error', error => this.errors.push(error));
    await made.ready();
    this.closers.push(() => made.close());
    return made;
  }

  /** A topic with as many queues, made by its first message, which nobody waits for. */
  async newTopic(queues = 1) {
    return await this.createTopic(fresh('topic'), queues);
  }

  /** The client sends to a topic with a route alone, so it is given that of the topic from which new ones are made. */
  async createTopic(topic, queues) {
    const producer = await this.producer({ defaultTopicQueueNums: queues });
    await producer._mqClient.updateTopicRouteInfoFromNameServer(topic, true, producer);
    await producer.send(new Message(topic, 'first', 'first'));
    await this.awaitRoute(topic);
    return topic;
  }

  /** A consumer that starts before its topic has a route does not find one later. */
  async awaitRoute(topic) {
    const { _mqClient: client } = await this.producer();
    await until(`a route to ${topic}`, () => client.getTopicRouteInfoFromNameServer(topic).then(() => true, () => false));
  }

  async inbox(topic, more) {
    const made = new Inbox(this, topic, more || {});
    await made.open();
    return made;
  }

  /** Fails when a message came early or too late, and keeps how late it was. */
  late(arrival, earliestMs, latestMs = earliestMs) {
    const lateness = arrival.atMs - earliestMs;
    this.measures.lateness_ms = Math.max(this.measures.lateness_ms || 0, lateness);
    assert(lateness >= 0, `${-lateness} ms early`);
    assert(arrival.atMs - latestMs <= LATENESS_MAX_MS, `${arrival.atMs - latestMs} ms late`);
  }
}

/**
 * A push consumer that keeps what it was given, with the time. It takes one message after another, so that all that
 * stands in a queue before a fence has been seen when the fence has.
 */
class Inbox {
  /** `takes` tells whether a message is to be taken, or given back. */
  constructor(check, topic, { group = fresh('group'), expression = '*', takes = () => true, ...more }) {
    this.topic = topic;
    this.group = group;
    this.arrivals = [];
    this.takes = takes;
    this.expression = expression;
    this.consumer = new Consumer(options({
      consumerGroup: group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      ...more,
    }));
    this.consumer.on('error', error => check.errors.push(error));
    check.closers.push(() => this.close());
  }

  async open() {
    await this.consumer.ready();
    this.consumer.subscribe(this.topic, this.expression, async message => {
      this.arrivals.push({ message, id: message.keys, atMs: Date.now() });
      return this.takes(message) ? undefined : Consumer.ACTION_RETRY;
    });
  }

  async close() {
    if (!this.closed) {
      this.closed = true;
      await this.consumer.close();
    }
  }

  /** What came so far, in order, without fences and without the message that made the topic. */
  get came() {
    return this.arrivals.filter(arrival => arrival.message.properties.fence === undefined && arrival.message.tags !== 'first');
  }

  get ids() {
    return this.came.map(arrival => arrival.id);
  }

  async awaitCount(count) {
    await until(() => `${count} messages, of which came ${this.ids}`, () => this.came.length >= count);
    return this.came;
  }

  /** The arrival with this id, which must be its only one so far. */
  async awaitOnly(id) {
    await until(() => `${id} among ${this.ids}`, () => this.ids.includes(id));
    const found = this.came.filter(arrival => arrival.id === id);
    assert.strictEqual(found.length, 1, `${id} came ${found.length} times`);
    return found[0];
  }

  has(fence) {
    return this.arrivals.some(arrival => arrival.message.properties.fence === fence);
  }
}

/** Sends a last message to the topic's only queue and waits until the inboxes have seen it. */
async function fence(check, tag, ...inboxes) {
  const mark = fresh('fence');
  const last = new Message(inboxes[0].topic, tag, 'fence');
  last.properties.fence = mark;
  const producer = await check.producer();
  await producer.send(last);
  await until(`the fence of ${inboxes[0].topic}`, () => inboxes.every(inbox => inbox.has(mark)));
}

/** A message whose id, its key, is also its body. */
function message(topic, id, tag = 'tag') {
  const made = new Message(topic, tag, id);
  made.keys = [ id ];
  return made;
}

async function runTest({ name, body }) {
  const check = new Check();
  const started = Date.now();
  const result = { case: name, outcome: 'passed', seconds: 0, reason: '', measures: check.measures };
  try {
    await body(check);
  } catch (error) {
    console.error(name, error, check.errors);
    result.outcome = 'failed';
    result.reason = [ error, ...check.errors ].map(one => one.message).join('; ').slice(0, 1000);
  }
  result.seconds = (Date.now() - started) / 1000;
  console.log(JSON.stringify(result));
  for (const close of check.closers) {
    await close().catch(error => console.error(name, 'closing:', error));
  }
  return result.outcome === 'passed';
}

/** Runs those that are asked for, some side by side, and tells whether all passed. */
async function runTests(tests) {
  const asked = tests.filter(({ name, slow }) => ONLY.test(name) && !(slow && FAST));
  await Producer.getDefaultProducer(options());
  let passed = true;
  const work = async () => {
    for (let next = asked.shift(); next; next = asked.shift()) {
      passed = await runTest(next) && passed;
    }
  };
  await Promise.all(Array.from({ length: CASES_AT_ONCE }, work));
  return passed;
}

module.exports = { Check, fence, fresh, ids, message, runTests, until };
