"""When source and sink repeat a request."""

from __future__ import annotations

from typing import Final

from wheelmq.formats.wire.codes import ResponseCode

RETRY_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before a request is repeated. A broker that restarts answers again within seconds."""
BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL)
"""Answers of a broker that can accept the request later."""
