"""The lives of a broker process: it starts again in another role without a new process.

A master with a later master becomes its slave, and a slave may have to truncate its log first. Both need a store that
is closed and opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from wheelmq.broker.app import BrokerApp


async def live(
    make_app: Callable[[], BrokerApp], stop: asyncio.Event, on_start: Callable[[BrokerApp], None]
) -> BaseException | None:
    """Run brokers one after another, until `stop` is set or one fails. Returns the failure, or None.

    `on_start` is called whenever one has started. Raises StoreLocked, OSError.
    """
    while True:
        app = make_app()
        if await _until_stop(app.start(), stop):
            if app.next_life is None:
                on_start(app)
            await _until_stop(app.stopped.wait(), stop)
        failure = app.broker.parts.health.failure if app.broker is not None else None
        await app.stop()
        if failure is not None or stop.is_set() or app.next_life is None:
            return failure
        await asyncio.get_running_loop().run_in_executor(None, app.next_life)


async def _until_stop(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> bool:
    """Run `work`, and cancel it once `stop` is set. Returns whether it ended by itself."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        working.result()
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False
