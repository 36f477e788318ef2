"""The client for code without an event loop: scripts, threads of a web server, tasks of other frameworks.

Each class runs the async class of the same name on an event loop in a thread of its own, heartbeats included. A method
blocks until the async method is done. Any thread may call. Callbacks are plain functions.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from wheelmq.client.admin import Admin
from wheelmq.client.consumer_settings import ConsumerSettings, PullSettings
from wheelmq.client.ending import block_until_end
from wheelmq.client.producer import Producer, ProducerSettings
from wheelmq.client.pull_consumer import PullConsumer
from wheelmq.client.push_consumer import PushConsumer
from wheelmq.client.transactions import Check, TransactionProducer
from wheelmq.formats.wire.bodies import QueueName
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.clock import Clock
from wheelmq.system.tls_client import Tls

if TYPE_CHECKING:
    from typing_extensions import Self

NOT_STARTED: Final = "the client is not started"
OWN_THREAD: Final = "the client's own thread cannot wait for the client"

P = ParamSpec("P")
R = TypeVar("R")


class _Client(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


C = TypeVar("C", bound=_Client, covariant=True)
S = TypeVar("S", bound=Producer, covariant=True)
D = TypeVar("D", bound=_Client)


class Loop:
    """An event loop in its own thread, from `start` to `stop`. Submitted work is completed or cancelled."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = 0
        self._changing = threading.Lock()
        """Held while the loop starts or stops, so that no work is submitted then."""

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if it runs already."""
        with self._changing:
            if self._loop is not None:
                raise RuntimeError("the client is already started")
            self._loop = asyncio.new_event_loop()
            self._process_id = os.getpid()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="wheelmq-client", daemon=True)
            self._thread.start()

    def submit(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run `work` on the loop. Raises RuntimeError if the loop does not run, or in the loop's own thread."""
        with self._changing:
            problem = self._problem()
            if self._loop is None or problem is not None:
                work.close()
                raise RuntimeError(f"{problem or NOT_STARTED}: use it between start and stop, or in `with`")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def check_thread(self) -> None:
        """Raise RuntimeError in the loop's own thread, which would wait for itself."""
        if self._thread is not None and threading.current_thread() is self._thread:
            raise RuntimeError(f"{OWN_THREAD}: use the async client there, or a plain function")

    def stop(self) -> None:
        """Stop the loop and wait for its end. Pending work is cancelled."""
        with self._changing:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None and self._process_id == os.getpid():
            if thread.is_alive():
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
            loop.close()

    def _problem(self) -> str | None:
        if self._thread is None:
            return NOT_STARTED
        if self._process_id != os.getpid():
            return f"the client was started in process {self._process_id}, and a fork does not copy its thread"
        if threading.current_thread() is self._thread:
            return OWN_THREAD
        return None if self._thread.is_alive() else "the client's thread has ended"

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())


class Blocking(Generic[C]):
    def __init__(self, client: C) -> None:
        self._client = client
        self._loop = Loop()
        self._ending = threading.Lock()

    def start(self) -> None:
        """Start the loop and the async client. Raises the errors of its `start`."""
        self._loop.start()
        try:
            self._loop.submit(self._client.start()).result()
        except BaseException:
            self._loop.stop()
            raise

    def stop(self) -> None:
        """Stop the async client and the loop. Does nothing for a client that is not started or already stopped."""
        self._end(None, None, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(kind, error, trace)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop once; a second caller waits for the first. Raises RuntimeError in the loop's own thread."""
        self._loop.check_thread()
        with self._ending:
            if not self._loop.is_running:
                return
            try:
                self._loop.submit(self._client.__aexit__(kind, error, trace)).result()
            finally:
                self._loop.stop()


def waits(method: Callable[Concatenate[D, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking[D], P], R]:
    """Return a method that blocks until the async `method` is done."""

    @functools.wraps(method)
    def call(self: Blocking[D], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.submit(method(self._client, *args, **kwargs)).result()

    return call


def begins(
    method: Callable[Concatenate[D, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking[D], P], Future[R]]:
    """Return a method that starts the async `method` and returns a Future of its result."""

    @functools.wraps(method)
    def call(self: Blocking[D], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._loop.submit(method(self._client, *args, **kwargs))

    return call


def at_once(method: Callable[Concatenate[D, P], R]) -> Callable[Concatenate[Blocking[D], P], R]:
    """Return a method that runs the plain `method` on the loop, or without a loop in the caller's thread."""

    @functools.wraps(method)
    def call(self: Blocking[D], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run() -> R:
            return method(self._client, *args, **kwargs)

        if not self._loop.is_running:
            return method(self._client, *args, **kwargs)
        return self._loop.submit(run()).result()

    return call


class _Sending(Blocking[S]):
    send = waits(Producer.send)
    send_async = begins(Producer.send)
    send_oneway = waits(Producer.send_oneway)
    send_batch = waits(Producer.send_batch)
    queues = waits(Producer.queues)
    cancel = waits(Producer.cancel)
    recall = waits(Producer.recall)
    request = waits(Producer.request)
    reply = waits(Producer.reply)


class SyncProducer(_Sending[Producer]):
    """Producer for code without a loop:
    `with SyncProducer("127.0.0.1:9876") as producer: producer.send("T", b"...")`"""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        settings: ProducerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(Producer(namesrv, settings, tls=tls, clock=clock))


class SyncTransactionProducer(_Sending[TransactionProducer]):
    """TransactionProducer for code without a loop."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(TransactionProducer(namesrv, check, settings, tls=tls, clock=clock))

    send_in_transaction = waits(TransactionProducer.send_in_transaction)


class SyncPushConsumer(Blocking[PushConsumer]):
    """PushConsumer for code without a loop. It consumes in its own threads between `start` and `stop`."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        settings: ConsumerSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(PushConsumer(namesrv, group, settings, tls=tls, clock=clock))

    subscribe = at_once(PushConsumer.subscribe)
    end = at_once(PushConsumer.end)

    @property
    def queues(self) -> list[QueueName]:
        return self._client.queues

    def run_forever(self) -> None:
        """Consume until SIGTERM or Ctrl-C, then stop as `stop` does. Starts the consumer if needed.

        Call it in the main thread, which gets the signals. Raises the same as `start`.
        """
        if not self._loop.is_running:
            self.start()
        try:
            block_until_end()
        finally:
            self.stop()


class SyncPullConsumer(Blocking[PullConsumer]):
    """PullConsumer for code without a loop."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        settings: PullSettings | None = None,
        *,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(PullConsumer(namesrv, group, settings, tls=tls, clock=clock))

    subscribe = at_once(PullConsumer.subscribe)
    unsubscribe = at_once(PullConsumer.unsubscribe)
    assign = at_once(PullConsumer.assign)
    queues_of = waits(PullConsumer.queues_of)
    poll = waits(PullConsumer.poll)
    commit = waits(PullConsumer.commit)
    seek = waits(PullConsumer.seek)
    seek_to_begin = waits(PullConsumer.seek_to_begin)
    seek_to_end = waits(PullConsumer.seek_to_end)
    offset_at = waits(PullConsumer.offset_at)
    committed = waits(PullConsumer.committed)
    position = at_once(PullConsumer.position)
    pause = at_once(PullConsumer.pause)
    resume = at_once(PullConsumer.resume)

    @property
    def queues(self) -> list[QueueName]:
        return self._client.queues


class SyncAdmin(Blocking[Admin]):
    """Admin for code without a loop."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        timeout_ms: int = 5000,
        access_key: AccessKey | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(Admin(namesrv, timeout_ms=timeout_ms, access_key=access_key, tls=tls, clock=clock))

    brokers = waits(Admin.brokers)
    clusters = waits(Admin.clusters)
    cluster_info = waits(Admin.cluster_info)
    runtime_info = waits(Admin.runtime_info)
    broker_config = waits(Admin.broker_config)
    update_broker_config = waits(Admin.update_broker_config)
    set_writable = waits(Admin.set_writable)
    topics = waits(Admin.topics)
    topic_configs = waits(Admin.topic_configs)
    system_topics = waits(Admin.system_topics)
    create_topic = waits(Admin.create_topic)
    delete_topic = waits(Admin.delete_topic)
    route = waits(Admin.route)
    topic_stats = waits(Admin.topic_stats)
    spans = waits(Admin.spans)
    offset_at = waits(Admin.offset_at)
    group_configs = waits(Admin.group_configs)
    create_group = waits(Admin.create_group)
    delete_group = waits(Admin.delete_group)
    consumer_progress = waits(Admin.consumer_progress)
    consumers = waits(Admin.consumers)
    running_info = waits(Admin.running_info)
    consume_directly = waits(Admin.consume_directly)
    reset_offsets = waits(Admin.reset_offsets)
    find = waits(Admin.find)
    find_unique = waits(Admin.find_unique)
    view = waits(Admin.view)
    timers = waits(Admin.timers)
    count_timers = waits(Admin.count_timers)
    find_timers = waits(Admin.find_timers)
    timer_body = waits(Admin.timer_body)
