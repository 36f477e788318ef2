"""The conformance suite for the C++ client. `run.py` runs it, with its options in COMPAT_ variables."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import client as rocketmq
from rocketmq.exceptions import ProducerSendSyncFailed

from compat.cpp.clients import (
    NAMESRV,
    QUEUES,
    Arrival,
    Check,
    Inbox,
    arrival_of,
    fence,
    fresh,
    ids,
    message,
    new_producer,
    new_topic,
    now_ms,
    opened,
    until,
)

FAST = os.environ["COMPAT_FAST"] != ""
ONLY = re.compile(os.environ["COMPAT_ONLY"])
CASES_AT_ONCE = 6
"""The clients of a process share locks, and wait at most a second for them. After that they retry in 30 s."""


def send_sync(check: Check) -> None:
    topic = new_topic()
    producer = new_producer()
    sent = [producer.send_sync(message(topic, id)) for id in ids(8)]
    assert all(one.status == rocketmq.SendStatus.OK and one.msg_id for one in sent), sent
    assert len({one.msg_id for one in sent}) == 8, sent
    inbox = Inbox(topic).open()
    inbox.await_count(8)
    fence(inbox)
    assert sorted(inbox.ids) == ids(8), inbox.ids


def send_async(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    answers: list[object] = []
    for id in ids(20):
        producer.send_async(message(topic, id), answers.append, answers.append)
    until(lambda: f"20 answers: {answers}", lambda: len(answers) == 20)
    assert all(getattr(one, "status", None) == rocketmq.SendStatus.OK for one in answers), answers
    inbox.await_count(20)
    fence(inbox)
    assert sorted(inbox.ids) == ids(20), inbox.ids


def send_oneway(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    for id in ids(10):
        producer.send_oneway(message(topic, id))
    inbox.await_count(10)
    fence(inbox)
    assert sorted(inbox.ids) == ids(10), inbox.ids


def send_batch(check: Check) -> None:
    """Check a batch.

    The client sends `batch=1`, which Java reads as false, so the batch arrives as one message without key.
    """
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    batch = [message(topic, id, "t") for id in ids(16)]
    assert producer.send_batch(batch).status == rocketmq.SendStatus.OK
    inbox.await_only("")
    fence(inbox)
    assert inbox.ids == [""], inbox.ids


def send_to_queues(check: Check) -> None:
    topic = new_topic()
    producer = new_producer()
    for position, id in enumerate(ids(20)):
        producer.send_orderly(message(topic, id), position % QUEUES)
    inbox = Inbox(topic).open()
    inbox.await_count(20)
    for queue in range(QUEUES):
        came = [arrival.id for arrival in inbox.came if arrival.queue == queue]
        assert came == ids(20)[queue::QUEUES], (queue, came)


def send_compressed(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    sent = message(topic, "large")
    sent.set_body("wheel " * 20_000)
    producer.send_sync(sent)
    assert inbox.await_only("large").body == b"wheel " * 20_000


def send_properties(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    sent = message(topic, "one two", "größe", colour="grün")
    sent.set_body("körper")
    producer.send_sync(sent)
    found = inbox.await_count(1)[0]
    assert (found.id, found.tags, found.body.decode(), found.topic) == ("one two", "größe", "körper", topic), found
    assert (found.properties["colour"], found.properties["CLUSTER"]) == ("grün", "DefaultCluster"), found


def consume_tags(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic, expression="a || c").open(), new_producer()
    for position, id in enumerate(ids(12)):
        producer.send_sync(message(topic, id, "abc"[position % 3]))
    fence(inbox, tag="a")
    assert sorted(inbox.ids) == sorted(id for position, id in enumerate(ids(12)) if position % 3 != 1), inbox.ids


def consume_broadcast(check: Check) -> None:
    topic, group = new_topic(), fresh("group")
    one, other = (Inbox(topic, group=group, broadcast=True).open() for _ in range(2))
    producer = new_producer()

    def awake() -> bool:
        """Return whether both consumers have messages of each queue.

        A broadcasting consumer starts at the end of its queues.
        """
        for queue in range(QUEUES):
            producer.send_orderly(message(topic, "first", "first"), queue)
        return all(len({arrival.queue for arrival in inbox.arrivals}) == QUEUES for inbox in (one, other))

    until(lambda: "queues for both", awake)
    for id in ids(10):
        producer.send_sync(message(topic, id))
    fence(one, other)
    assert sorted(one.ids) == ids(10), one.ids
    assert sorted(other.ids) == ids(10), other.ids


def consume_shared(check: Check) -> None:
    topic, group = new_topic(), fresh("group")
    one, other = (Inbox(topic, group=group).open() for _ in range(2))
    producer = new_producer()
    for id in ids(40):
        producer.send_sync(message(topic, id))
    until(lambda: f"40, of which came {one.ids}, {other.ids}", lambda: {*one.ids, *other.ids} == set(ids(40)))


def order_in_queues(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic, orderly=True).open(), new_producer()
    for position, id in enumerate(ids(40)):
        producer.send_orderly(message(topic, id), position % QUEUES)
    inbox.await_count(40)
    for queue in range(QUEUES):
        came = [arrival.id for arrival in inbox.came if arrival.queue == queue]
        assert came == ids(40)[queue::QUEUES], (queue, came)


def retry_given_back(check: Check) -> None:
    """Check a retry. The client leaves the delay to the broker: ten seconds for the first attempt."""
    topic = new_topic()
    inbox, producer = Inbox(topic, takes=lambda arrival: arrival.reconsumed > 0).open(), new_producer()
    producer.send_sync(message(topic, "again"))
    first, second = inbox.await_count(2)
    assert (first.reconsumed, second.reconsumed, second.id) == (0, 1, "again"), inbox.came
    assert second.properties["RETRY_TOPIC"] == topic, second
    assert second.at_ms - first.at_ms >= 10_000, inbox.came


def comes_after(check: Check, delay_ms: int, prepare: Callable[[Any], object]) -> Arrival:
    """Send a message and check its arrival. A relative delay starts at the beginning of the send at the earliest."""
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    fence(inbox)
    sent = message(topic, "delayed")
    prepare(sent)
    before_ms = now_ms()
    producer.send_sync(sent)
    after_ms = now_ms()
    arrival = inbox.await_only("delayed")
    check.late(arrival, int(before_ms) + delay_ms, after_ms + delay_ms)
    return arrival


def delay_level(check: Check) -> None:
    arrival = comes_after(check, 1_000, lambda sent: sent.set_delay_time_level(1))
    assert arrival.properties["DELAY"] == "1", arrival


def timer_delay_ms(check: Check) -> None:
    arrival = comes_after(check, 1_350, lambda sent: sent.set_property("TIMER_DELAY_MS", "1350"))
    assert arrival.properties["TIMER_DELAY_MS"] == "1350" and arrival.properties["TIMER_OUT_MS"], arrival


def timer_delay_sec(check: Check) -> None:
    comes_after(check, 2_000, lambda sent: sent.set_property("TIMER_DELAY_SEC", "2"))


def timer_past(check: Check) -> None:
    comes_after(check, 0, lambda sent: sent.set_property("TIMER_DELIVER_MS", str(int(now_ms()) - 5_000)))


def timer_deliver_ms(check: Check) -> None:
    topic = new_topic()
    inbox, producer = Inbox(topic).open(), new_producer()
    fence(inbox)
    due_ms = {id: int(now_ms()) + 1_500 + 40 * position for position, id in enumerate(ids(50))}
    for id, at_ms in due_ms.items():
        producer.send_sync(message(topic, id, TIMER_DELIVER_MS=at_ms))
    for arrival in inbox.await_count(50):
        check.late(arrival, due_ms[arrival.id], due_ms[arrival.id])
    assert sorted(inbox.ids) == ids(50), inbox.ids


def pull_all(check: Check) -> None:
    topic = new_topic()
    producer = new_producer()
    for id in ids(40):
        producer.send_sync(message(topic, id))
    puller = rocketmq.PullConsumer(fresh("group"))
    puller.set_namesrv_addr(NAMESRV)
    puller.start()
    opened.append(puller)
    came = [arrival_of(found) for found in puller.pull(topic)]
    assert sorted(arrival.id for arrival in came) == ["first", *ids(40)], came


def refusal_too_far(check: Check) -> None:
    topic = new_topic()
    try:
        new_producer().send_sync(message(topic, "far", TIMER_DELAY_SEC=3 * 24 * 3600 + 3600))
    except ProducerSendSyncFailed:
        return
    raise AssertionError("not refused")


CASES: dict[str, Callable[[Check], None]] = {
    "Retry.givenBack": retry_given_back,
    "Send.sync": send_sync,
    "Send.async": send_async,
    "Send.oneway": send_oneway,
    "Send.batch": send_batch,
    "Send.toQueues": send_to_queues,
    "Send.compressed": send_compressed,
    "Send.properties": send_properties,
    "Consume.tags": consume_tags,
    "Consume.broadcast": consume_broadcast,
    "Consume.shared": consume_shared,
    "Order.inQueues": order_in_queues,
    "Delay.level1": delay_level,
    "Timer.delayMs": timer_delay_ms,
    "Timer.delaySec": timer_delay_sec,
    "Timer.past": timer_past,
    "Timer.many": timer_deliver_ms,
    "Pull.all": pull_all,
    "Refusal.tooFar": refusal_too_far,
}
SLOW = {"Retry.givenBack"}
printing = threading.Lock()


def run_case(name: str) -> bool:
    """Run a case and print its line. Returns whether it passed."""
    check = Check()
    started_s = time.monotonic()
    outcome, reason = "passed", ""
    try:
        CASES[name](check)
    except Exception as error:  # any exception is a failure of this case
        traceback.print_exc()
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - started_s
    line = {"case": name, "outcome": outcome, "seconds": took_s, "reason": reason, "measures": check.measures}
    with printing:
        print(json.dumps(line), flush=True)
    return outcome == "passed"


def main() -> int:
    asked = [name for name in CASES if ONLY.search(name) and not (FAST and name in SLOW)]
    with ThreadPoolExecutor(CASES_AT_ONCE) as threads:
        return 0 if all(list(threads.map(run_case, asked))) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the client's threads outlive its shutdown
