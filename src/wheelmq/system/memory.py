"""The machine's memory."""

from __future__ import annotations

import os
from typing import Final

PHYSICAL_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
