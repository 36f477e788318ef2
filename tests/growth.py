"""How the time of a function grows with its input."""

import gc
import time
from collections.abc import Callable

ROUNDS = 5


def growth(function: Callable[[], object], eight_times: Callable[[], object]) -> float:
    """Compare the processor time of a function for an input, and for one that is eight times as long.

    Returns the ratio of the least times of five rounds: about 8 if the time is linear, about 64 if it is quadratic.
    The garbage collector pauses meanwhile, because a full collection in a test process takes half a second.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        rounds = [(_spent_s(function), _spent_s(eight_times)) for _ in range(ROUNDS)]
    finally:
        if enabled:
            gc.enable()
    return min(long_s for _, long_s in rounds) / min(short_s for short_s, _ in rounds)


def _spent_s(function: Callable[[], object]) -> float:
    began_s = time.process_time()
    function()
    return time.process_time() - began_s
