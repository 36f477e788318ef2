"""Take the pictures of the dashboard for the documentation: python -m tests.browser.pictures docs/images.

They need Chromium. Look at each picture before you commit it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.browser.chromium import VARIABLE, Chromium, find_chromium

PICTURES: Final = (
    ("dashboard-light", 1180, 700, "light", False),
    ("dashboard-dark", 1180, 750, "dark", False),
    ("dashboard-phone", 390, 844, "light", True),
)
"""Name, width, height, mode, and whether it is a phone. The picture in dark mode shows a problem."""


def take(folder: Path) -> None:
    """Write the pictures: light, dark with a problem, and a phone."""
    # the broker of the pictures must not compile kernels first
    os.environ.setdefault("WHEELMQ_KERNELS", "plain")
    from tests.browser.served import ServedBroker

    program = find_chromium()
    if program is None:
        sys.exit(f"there is no Chromium on the PATH: install one, or name it in {VARIABLE}")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        ServedBroker(Path(scratch) / "store") as served,
        Chromium(program, Path(scratch) / "profile") as chromium,
    ):
        for name, width, height, mode, is_phone in PICTURES:
            served.is_rejecting = mode == "dark"
            chromium.resize(width, height, is_phone=is_phone)
            chromium.prefer(mode)
            chromium.open(served.url)
            (folder / f"{name}.png").write_bytes(chromium.picture())
            if "--whole" in sys.argv:
                (folder / f"{name}-whole.png").write_bytes(chromium.picture(whole=True))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
