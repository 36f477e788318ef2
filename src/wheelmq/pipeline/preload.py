"""Import and compile the code of a Spark worker before the first worker is forked."""

from __future__ import annotations

import sys

from wheelmq.formats.kernels.warm import warm
from wheelmq.spark import source, upload

warm(lambda text: print(text, file=sys.stderr))

__all__ = ["source", "upload"]
