"""The lives of a broker process: it starts again in another role without a new process.

A master with a later master becomes its slave, and a slave may have to truncate its log first. Both need a store that
is closed and opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wheelmq.broker.app import BrokerApp


async def live(
    make_app: Callable[[], BrokerApp], stop: asyncio.Event, on_start: Callable[[BrokerApp], None]
) -> BaseException | None:
    """Run brokers one after another, until `stop` is set or one fails. Returns the failure, or None.

    `on_start` is called whenever one has started. Raises StoreLocked, OSError.
    """
    while True:
        app = make_app()
        await app.start()
        if app.next_life is None:
            on_start(app)
        stopping = asyncio.create_task(stop.wait())
        ending = asyncio.create_task(app.stopped.wait())
        await asyncio.wait((stopping, ending), return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, ending):
            task.cancel()
        failure = app.broker.parts.health.failure if app.broker is not None else None
        await app.stop()
        if failure is not None or stop.is_set() or app.next_life is None:
            return failure
        await asyncio.get_running_loop().run_in_executor(None, app.next_life)
