"""The values that the parts of the send kernel pass to each other, by place in arrays of 64-bit integers."""

from __future__ import annotations

from typing import Final

# Parameters of a call.
NOW_MS: Final = 0
STORE_MS: Final = 1
PEER_IP: Final = 2
PEER_PORT: Final = 3
STORE_IP: Final = 4
STORE_PORT: Final = 5
BODY_MAX: Final = 6
PRECISION_MS: Final = 7
DELAY_MS_MAX: Final = 8
TIMER_ON: Final = 9
SYNC: Final = 10
LOG_BASE: Final = 11
"""Log position of the file's first byte."""
TIMER_ROW: Final = 12
SLOT_LIMIT: Final = 13
"""Number of messages in a slot above which the plain code decides about the next one; -1 for no limit."""
SERVED_MAX: Final = 14
"""Number of sends since the start at which the plain code answers the next one."""
PARAMETERS: Final = 15

# Fields of one send: first those from its frame, then those from `place`.
TOPIC: Final = 0
TOPIC_END: Final = 1
QUEUE: Final = 2
SYS_FLAG: Final = 3
BORN_MS: Final = 4
USER_FLAG: Final = 5
RECONSUME: Final = 6
PROPERTIES: Final = 7
PROPERTIES_END: Final = 8
BODY: Final = 9
STOP: Final = 10
ONEWAY: Final = 11
OPAQUE: Final = 12
QUEUE_ROW: Final = 13
BLOCK: Final = 14
"""First byte of the stored properties in the log file."""
BLOCK_END: Final = 15
DUE_MS: Final = 16
OUT_MS: Final = 17
TAG: Final = 18
RAW: Final = 19
"""1 if the header is binary. It has no escapes."""
BATCH: Final = 20
"""1 if the body holds messages with properties of their own."""
FIELDS: Final = 21

# Results of a call.
DONE: Final = 0
"""Every complete frame is served."""
NOT_MINE: Final = 1
"""The frame at AT is for the plain code."""
OUT_FULL: Final = 2
"""The answers must be taken out before the frame at AT can be served."""

# State, read and written.
AT: Final = 0
"""First byte of the buffer that is not served."""
LOG_AT: Final = 1
"""Byte of the next record in its file."""
ROWS: Final = 2
"""Number of filled rows of the journal."""
OUT: Final = 3
"""Number of filled bytes of the answers."""
SERVED: Final = 4
"""Number of frames served since the start."""
STATE: Final = 5
