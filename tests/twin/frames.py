"""Frames of sends: builders of plain ones, and strategies for plain, unusual and damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from wheelmq.formats.wire import frame
from wheelmq.formats.wire.frame import Command

TOPICS = [
    "Alpha",
    "Beta",
    "A" * 127,
    "%RETRY%group",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "rmq_sys_wheelmq_block",
    "New",
    "bad/name",
    "",
]
NAMES = [
    "UNIQ_KEY", "TAGS", "KEYS", "WAIT", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
    "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "TIMER_DEL_UNIQKEY", "__WMQ_DUE", "__WMQ_ORIGIN", "TRAN_MSG",
    "INNER_NUM", "POP_CK", "MSG_REGION", "TRACE_ON", "CLUSTER", "colour", "c",
    "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DELAY_LEVEL", "UNIQ_KE", "TAGSS", "delayInSeconds",
]  # fmt: skip
VALUES = [
    "1", "0", "50", "1500", "-1", "+1", "007", "99999999999999999999", "999999999999999", "1000000000000000", "true",
    "false", "3000000000000001", "1700000005000", "1700000005001", "x" * 300, "a\x01b",
    "TagA", "\uff11", "é", "\U0001f600",
    "Alpha+0A", "%", "0", "259200", "259201", "3000000000000000", "v\\w", 'q"q', "1795231431000",
]  # fmt: skip


def escape(text: str, style: str) -> str:
    """Escape the text for the inside of a JSON string."""
    out = []
    for c in text:
        if c == '"' or c == "\\":
            out.append("\\" + c)
        elif c < " ":
            out.append(f"\\u{ord(c):04x}" if style != "raw" else c)
        elif c > "~" and style == "ascii":
            out.append(c.encode("utf-16-be").hex(" ", 2).replace(" ", "\\u").join(("\\u", "")))
        else:
            out.append(c)
    return "".join(out)


pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES))
usual = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": st.sampled_from(["TagA", "TagB", "é"]),
        "KEYS": st.sampled_from(["k1", "k1 k2", "  k1  k3 ", " "]),
        "WAIT": st.sampled_from(["true", "false"]),
        "TIMER_DELAY_MS": st.sampled_from(["1", "50", "1500", "25000", "0", "259200001"]),
        "TIMER_DELIVER_MS": st.sampled_from(["1700000005000", "1700000005001", "1700000000000", "1"]),
        "TIMER_DELAY_SEC": st.sampled_from(["1", "259200", "259201"]),
        "delayInSeconds": st.sampled_from(["1", "2", "0", "-1", "259201"]),
    },
)


@st.composite
def property_blocks(draw: st.DrawFn) -> str:
    """A property block, usually a regular one."""
    kind = draw(st.integers(0, 9))
    if kind < 6:
        found = [("UNIQ_KEY", draw(st.sampled_from(["0A" * 16, "1B" * 16, "k" * 200, "x"])))]
        found += list(draw(usual).items())
        found = draw(st.permutations(found))
        text = "".join(f"{name}\x01{value}\x02" for name, value in found)
        return text[:-1] if draw(st.integers(0, 4)) == 0 else text
    if kind < 9:
        text = "".join(f"{name}\x01{value}\x02" for name, value in draw(st.lists(pairs, max_size=6)))
        return "UNIQ_KEY\x010A\x02" + text if draw(st.booleans()) else text
    return draw(st.text(st.sampled_from('\x01\x02abTAGS=é\x00\n"\\'), max_size=30))


@st.composite
def send_fields(draw: st.DrawFn) -> dict[str, str]:
    """The fields of a send, by letter. Sometimes one or two are missing."""
    number = st.sampled_from(["0", "1", "3", "4", "7"])
    fields = {
        "a": draw(st.sampled_from(["group", "g", ""])),
        "b": draw(st.sampled_from(TOPICS[:2] * 4 + TOPICS)),
        "c": "TBW102",
        "d": draw(number),
        "e": draw(st.sampled_from(["0", "1", "3", "3", "2", "-1", "8", "00", "1.0", "x", "99999999999"])),
        "f": draw(st.sampled_from(["0", "0", "0", "1", "4", "8", "16", "768", "-1", "2147483648"])),
        "g": draw(st.sampled_from(["1700000000000", "0", "-5", "9223372036854775808"])),
        "h": draw(st.sampled_from(["0", "0", "7", "2147483647", "2147483648", "-3"])),
        "i": draw(property_blocks()),
        "j": draw(st.sampled_from(["0", "0", "2", "-1", ""])),
        "k": draw(st.sampled_from(["false", "false", "true", "False"])),
        "m": draw(st.sampled_from(["false", "false", "false", "true", ""])),
        "l": draw(st.sampled_from(["3", "0", "x"])),
        "n": "broker-a",
        "zz": "1",
    }
    for name in draw(st.sets(st.sampled_from(sorted(fields)), max_size=2)):
        if name not in "i" or draw(st.booleans()):
            fields.pop(name)
    return fields


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A JSON header of a send."""
    style = draw(st.sampled_from(["plain"] * 6 + ["raw", "ascii"]))
    fields = draw(send_fields())
    entries = [f'"{name}":"{escape(value, style)}"' for name, value in fields.items()]
    if draw(st.integers(0, 9)) == 0:
        entries.append(draw(st.sampled_from(['"e":3', '"m":false', '"e":"1"', '"b":"Beta"', '"x":null', '"x":[1]'])))
    if draw(st.integers(0, 4)) == 0:
        entries = draw(st.permutations(entries))
    space = draw(st.sampled_from([""] * 9 + [" "]))
    ext = "{" + f",{space}".join(entries) + "}"
    code = draw(st.sampled_from(["310"] * 9 + ["10", "320", "0310", "310.0", "35", "-1"]))
    top = [
        f'"code":{code}',
        f'"extFields":{space}{ext}',
        f'"flag":{draw(st.sampled_from(["0"] * 8 + ["2", "1", "3", "-1"]))}',
        '"language":"JAVA"',
        f'"opaque":{draw(st.integers(0, 2**31 - 1))}',
        '"serializeTypeCurrentRPC":"JSON"',
        '"version":479',
    ]
    for _ in range(draw(st.integers(0, 1))):
        top.pop(draw(st.sampled_from([2, 3, 5, 6] * 3 + [1])) % len(top))
    if draw(st.integers(0, 9)) == 0:
        top.append(
            draw(st.sampled_from(['"code":310', '"remark":null', '"remark":"r"', '"x":1', '"flag":0', '"opaque":7']))
        )
    if draw(st.integers(0, 4)) == 0:
        top = draw(st.permutations(top))
    return ("{" + ",".join(top) + "}").encode("utf-8", "surrogatepass")


def pair(name: bytes, value: bytes) -> bytes:
    """A field of a binary header."""
    return len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value


@st.composite
def binary_headers(draw: st.DrawFn) -> bytes:
    """A binary header of a send."""
    fields = list(draw(send_fields()).items())
    if draw(st.integers(0, 9)) == 0:
        odd = [("e", "3"), ("b", "Beta"), ("", ""), ("o", ""), ("A", "1"), ("é", "é"), ("x", "\x00"), ("i", 'q"q')]
        fields.append(draw(st.sampled_from(odd)))
    if draw(st.integers(0, 4)) == 0:
        fields = draw(st.permutations(fields))
    pairs = b"".join(pair(name.encode(), value.encode("utf-8", "surrogatepass")) for name, value in fields)
    code = draw(st.sampled_from([310] * 9 + [10, 320, 35, -1]))
    flag = draw(st.sampled_from([0] * 8 + [2, 1, 3, -1, -(1 << 31)]))
    opaque = draw(st.integers(-1, 2**31 - 1))
    remark = draw(st.sampled_from([b""] * 9 + [b"r"]))
    fixed = struct.pack(">hbhiii", code, draw(st.sampled_from([0, 9, -1])), 479, opaque, flag, len(remark))
    behind = draw(st.sampled_from([b""] * 19 + [b"\0"]))
    return fixed + remark + struct.pack(">i", len(pairs)) + pairs + behind


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One frame with correct lengths."""
    is_binary = draw(st.sampled_from([False, False, True]))
    header = draw(binary_headers() if is_binary else headers())
    serialize = int(is_binary) if draw(st.integers(0, 19)) else draw(st.sampled_from([0, 1, 2]))
    body = draw(st.binary(max_size=40)) + b"b" * draw(st.sampled_from([0, 0, 0, 300, 5000]))
    return struct.pack(">ii", 4 + len(header) + len(body), serialize << 24 | len(header)) + header + body


def batch_body(messages: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """The body of a batch: flag, body and properties of each message."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
        + body
        + struct.pack(">H", len(properties))
        + properties
        for flag, body, properties in messages
    )


def binary_header(fields: Mapping[str, str], *, code: int, flag: int, opaque: int) -> bytes:
    """A binary header as a Java client writes it."""
    pairs = b"".join(pair(name.encode(), value.encode("utf-8", "surrogatepass")) for name, value in fields.items())
    return struct.pack(">hbhiii", code, 0, 479, opaque, flag, 0) + struct.pack(">i", len(pairs)) + pairs


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """The frame of a batch, sometimes with a damaged body."""
    fields = draw(send_fields())
    key, wait, waits_not = "UNIQ_KEY\x01K\x01K\x02", "WAIT\x01true\x02", "WAIT\x01false\x02"
    shared = [key, key + wait, wait + key, wait, waits_not, "", "TAGS\x01a\x02", "DELAY\x010\x02"]
    fields["i"] = draw(st.sampled_from(shared) | property_blocks())
    fields["m"] = draw(st.sampled_from(["true"] * 9 + ["false"]))
    is_binary, flag = draw(st.booleans()), draw(st.sampled_from([0, 0, 0, 2]))
    if is_binary:
        header = binary_header(fields, code=320, flag=flag, opaque=9)
    else:
        ext = ",".join(f'"{name}":"{escape(value, "plain")}"' for name, value in fields.items())
        text = f'{{"code":320,"extFields":{{{ext}}},"flag":{flag},"language":"JAVA","opaque":9,"version":479}}'
        header = text.encode("utf-8", "surrogatepass")
    usual_block = usual.map(lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found.items()))
    blocks = st.one_of(usual_block, usual_block.map(lambda text: text[:-1]), property_blocks())
    messages = st.tuples(
        st.sampled_from([0, 7, -3]),
        st.binary(max_size=20) | st.just(b"b" * 3000),
        blocks.map(lambda text: text.encode("utf-8", "surrogatepass")),
    )
    body = bytearray(batch_body(draw(st.lists(messages, min_size=1, max_size=6))))
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return struct.pack(">ii", 4 + len(header) + len(body), int(is_binary) << 24 | len(header)) + header + body


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """The bytes that a connection may receive: consecutive frames, sometimes damaged, sometimes cut."""
    stream = b"".join(draw(st.lists(frames(), min_size=1, max_size=8)))
    if draw(st.integers(0, 3)) == 0:
        damaged = bytearray(stream)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(damaged) - 1))
            damaged[at] = draw(st.integers(0, 255))
        stream = bytes(damaged)
    if draw(st.integers(0, 5)) == 0:
        stream = stream[: draw(st.integers(0, len(stream)))]
    return stream


def send_frame(topic: str, properties: str, *, is_binary: bool = False) -> bytes:
    """Return a send of one message. The separators in `properties` are JSON escapes, also for a binary header."""
    if is_binary:
        text = f"UNIQ_KEY\x01{'0A' * 16}\x02{properties}"
        return binary_send_frame(topic, text.replace("\\u0001", "\x01").replace("\\u0002", "\x02"))
    header = (
        f'{{"code":310,"extFields":{{"a":"g","b":"{topic}","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000",'
        f'"h":"0","i":"UNIQ_KEY\\u0001{"0A" * 16}\\u0002{properties}","j":"0","k":"false","m":"false"}},"flag":0,'
        f'"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":479}}'
    ).encode()
    return (4 + len(header) + 3).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"abc"


def binary_send_frame(topic: str, properties: str) -> bytes:
    fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
    ext = fields | {"i": properties, "j": "0", "k": "false", "m": "false"}
    return frame.encode_binary(Command(code=310, opaque=5, ext=ext, body=b"abc", language="JAVA"))


def batch_frame(count: int, shared: str, last: bytes = b"", *, is_binary: bool = False) -> bytes:
    """Return a batch of `count` messages to queue 1 of Alpha. The last message also has the properties of `last`."""
    fields = {"a": "g", "b": "Alpha", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0"}
    own = b"WAIT\x01false\x02TAGS\x01TagA\x02UNIQ_KEY\x01%032X\x02"
    messages = [(i, b"body %d" % i, own % i + (last if i == count - 1 else b"")) for i in range(count)]
    command = Command(code=320, opaque=5, ext=fields | {"i": shared, "m": "true"}, body=batch_body(messages))
    return frame.encode_binary(command) if is_binary else frame.encode(command)
