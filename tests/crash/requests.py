"""Requests and waits of several runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from wheelmq.formats.wire import headers
from wheelmq.formats.wire.codes import RequestCode
from wheelmq.formats.wire.frame import Command
from wheelmq.formats.wire.headers import PULL_SUBSCRIPTION

ANSWER_S: Final = 30.0
PULLED_MAX: Final = 32


async def until(condition: Callable[[], bool], deadline_s: float, look_s: float) -> bool:
    """Wait until `condition`, which is checked every `look_s` seconds. Returns False at the deadline."""
    stop = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > stop:
            return False
        await asyncio.sleep(look_s)
    return True


def pull_command(group: str, topic: str, queue: int, queue_offset: int) -> Command:
    """Return a pull of at most PULLED_MAX messages that the broker answers at once."""
    ext = headers.texts(
        consumerGroup=group,
        topic=topic,
        queueId=queue,
        queueOffset=queue_offset,
        maxMsgNums=PULLED_MAX,
        sysFlag=PULL_SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
    )
    return Command(code=RequestCode.PULL_MESSAGE, ext=ext)
