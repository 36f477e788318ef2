"""The program that compiles the kernels for a running broker: `python -m wheelmq.broker.kernel_compiler`.

The files of the cache are complete at each moment. So the process may end at any time, and the next one continues.
"""

from __future__ import annotations

from typing import Final

from wheelmq.system.child_process import end_with_parent, give_way

NICENESS: Final = 10
"""The broker's loop gets a processor first. The pipeline has the same priority."""


def main() -> None:
    give_way(NICENESS)
    end_with_parent()
    from wheelmq.broker.fast import warm as of_broker  # imports Numba
    from wheelmq.formats.kernels import warm as of_tasks

    of_tasks.warm(print)  # tasks of the pipeline may wait for these
    of_broker.warm(print)


if __name__ == "__main__":
    main()
