"""The options of source and sink. Spark passes them as texts, with names in lower case.

`batch_options`, `stream_options` and `sink_options` check all options before any contact with a server. They raise
OptionError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from pyspark_rocketmq.errors import OptionError
from pyspark_rocketmq.offsets import EARLIEST, LATEST, Queue, parse_offsets
from pyspark_rocketmq.times import Moment, duration_ms, parse_moment
from wheelmq.formats import names
from wheelmq.formats.disk.batch import CHUNK_BYTES_MAX, JOB_CHARS_MAX
from wheelmq.formats.wire.bodies import Subscription
from wheelmq.formats.wire.signature import AccessKey
from wheelmq.system.tls_client import TlsOptions

T = TypeVar("T")
D = TypeVar("D")

CONNECTION: Final = (
    "namesrvAddr", "timeoutMs", "accessKey", "secretKey", "securityToken", "tls", "tlsCaFile", "tlsVerify",
    "tlsServerName", "tlsCertificateFile", "tlsKeyFile", "tlsKeyPasswordFile",
)  # fmt: skip
SOURCE: Final = (
    *CONNECTION, "topic", "topics", "topicsPattern", "tags", "sql", "group", "startingOffsets", "startingTimestamp",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "storePath",
)  # fmt: skip
BATCH: Final = (*SOURCE, "endingOffsets", "endingTimestamp")
STREAM: Final = (
    *SOURCE, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "commitGroupOffsets",
)  # fmt: skip
SINK: Final = (
    *CONNECTION,
    "topic",
    "producerGroup",
    "jobId",
    "maxBodyBytes",
    "pastDeliverTime",
    "guarantee",
    "createTopic",
)
ALL: Final = tuple(dict.fromkeys((*BATCH, *STREAM, *SINK)))

SPARKS: Final = frozenset(("checkpointlocation", "queryname"))
"""Options of Spark itself, which it also passes to a sink."""

DEFAULT_GROUP: Final = "PYSPARK_ROCKETMQ"
"""The group of all pulls, which has no consumers."""
BODY_BYTES_MAX: Final = 4 << 20
TRIGGER_DELAY_MAX_MS: Final = 15 * 60_000

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
UPLOADED_BODY_BYTES_MAX: Final = CHUNK_BYTES_MAX - (64 << 10)
"""The largest body in an upload, beside its properties."""

Place = int | dict[Queue, int] | str
"""A start or an end: EARLIEST or LATEST, offsets by queue, or GROUP."""
GROUP: Final = "group"


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the connector reaches name servers and brokers."""

    namesrv: tuple[str, ...]
    timeout_s: float = 5.0
    access_key: AccessKey | None = None
    tls: TlsOptions | None = None
    """None for plain connections."""


class ChosenTopics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of a source: names, or a pattern that matches whole names."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter that brokers apply: tags, or an SQL92 expression over properties."""

    tags: str = "*"
    sql: str | None = None

    def subscription(self, topic: str) -> Subscription:
        if self.sql is None:
            return Subscription.of_tags(topic, self.tags)
        return Subscription(topic=topic, sub_string=self.sql, expression_type="SQL92")

    @property
    def is_open(self) -> bool:
        """Whether every message matches."""
        return self.sql is None and self.tags in ("", "*")


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a micro-batch of a stream. None is no limit."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_max_ms: int = TRIGGER_DELAY_MAX_MS
    """The longest wait for `offsets_min`."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    topics: ChosenTopics
    filter: Filter
    group: str
    start: Place
    start_time: Moment | None = None
    """The time of startingTimestamp, which goes before `start`."""
    end: Place = LATEST
    end_time: Moment | None = None
    partitions_min: int | None = None
    partition_rows_max: int | None = None
    fails_on_loss: bool = True
    limits: BatchLimits = BatchLimits()
    commits: bool = False
    store_path: str | None = None
    """The folder of the stores on the machines of the brokers. `{broker}` is the name of a broker."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    connection: ConnectionOptions
    topic: str | None
    """The topic of rows without a topic of their own."""
    producer_group: str = DEFAULT_GROUP
    job_id: str | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    delivers_past: bool = False
    """Whether rows with a past due time are delivered at once. Otherwise they are errors."""
    creates_topic: bool = True
    """Whether the first row creates its topic. Otherwise a topic that does not exist is an error."""
    is_exactly_once: bool = False
    """Whether rows become visible by a commit, each once. Only brokers of WheelMQ have this."""


class _OptionReader:
    """The options of one use, by their names in lower case."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], use: str) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        by_lower = {name.lower(): name for name in known}
        others = {name.lower(): name for name in ALL}
        for name in self._values:
            if name in by_lower or name in SPARKS:
                continue
            if name in others:
                raise OptionError(f"option {others[name]} has no use for {use}: remove it")
            near = difflib.get_close_matches(name, by_lower, 1)
            hint = f"did you mean {by_lower[near[0]]}?" if near else f"the options are {', '.join(by_lower.values())}"
            if name == "path":
                hint = "name the topic with option topic, not with a path"
            raise OptionError(f"unknown option {name}: {hint}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"option {name} is empty: give a value, or leave the option out")
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"{name} is {value!r}: write true or false")
        return value.lower() == "true"

    def count(self, name: str, default: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not value.isdecimal() or int(value) < 1:
            raise OptionError(f"{name} is {value!r}: write a whole number of at least 1")
        return int(value)

    def at_most_one(self, *names: str) -> str | None:
        """Return the one of these options that is given. Raises OptionError for two of them."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise OptionError(f"options {' and '.join(given)} exclude each other: give only one of them")
        return given[0] if given else None


def batch_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a batch read."""
    read = _OptionReader(options, BATCH, "a batch read (it is one for a stream or a sink)")
    found = _source(read, EARLIEST)
    read.at_most_one("endingOffsets", "endingTimestamp")
    end = _place(read, "endingOffsets", LATEST, ("latest", "group"))
    end_time = _given(read, "endingTimestamp", parse_moment, None)
    return msgspec.structs.replace(found, end=end, end_time=end_time)


def stream_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a stream."""
    read = _OptionReader(options, STREAM, "a stream (it is one for a batch read or a sink)")
    found = _source(read, LATEST)
    limits = BatchLimits(
        offsets_max=read.count("maxOffsetsPerTrigger"),
        bytes_max=read.count("maxBytesPerTrigger"),
        offsets_min=read.count("minOffsetsPerTrigger"),
        delay_max_ms=_given(read, "maxTriggerDelay", duration_ms, TRIGGER_DELAY_MAX_MS),
    )
    if limits.offsets_min is None and read.text("maxTriggerDelay") is not None:
        raise OptionError("maxTriggerDelay has an effect only with minOffsetsPerTrigger: give both, or neither")
    if limits.offsets_max is not None and (limits.offsets_min or 0) > limits.offsets_max:
        raise OptionError(
            f"minOffsetsPerTrigger is {limits.offsets_min}, more than maxOffsetsPerTrigger, {limits.offsets_max}: "
            "lower the one or raise the other"
        )
    commits = read.flag("commitGroupOffsets", False)
    if commits and read.text("group") is None:
        raise OptionError("commitGroupOffsets needs the group whose offsets it commits: give option group")
    return msgspec.structs.replace(found, limits=limits, commits=commits)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink."""
    read = _OptionReader(options, SINK, "a sink (it is one for a source)")
    topic = read.text("topic")
    if topic is not None:
        check_name("topic", names.topic_problem(topic), topic)
    group = read.text("producerGroup") or DEFAULT_GROUP
    check_name("producerGroup", names.group_problem(group), group)
    past = read.text("pastDeliverTime") or "fail"
    if past not in ("fail", "deliver"):
        raise OptionError(f"pastDeliverTime is {past!r}: write fail, or deliver to send such rows at once")
    found = SinkOptions(
        connection=_connection(read),
        topic=topic,
        producer_group=group,
        job_id=read.text("jobId"),
        body_bytes_max=read.count("maxBodyBytes", BODY_BYTES_MAX) or BODY_BYTES_MAX,
        delivers_past=past == "deliver",
        creates_topic=read.flag("createTopic", True),
        is_exactly_once=_is_exactly_once(read),
    )
    if found.is_exactly_once:
        if read.flag("createTopic", False):
            raise OptionError(
                "createTopic is true, and guarantee is exactly-once: create the topic, and remove option createTopic"
            )
        if found.body_bytes_max > UPLOADED_BODY_BYTES_MAX:
            raise OptionError(
                f"maxBodyBytes is {found.body_bytes_max}, and guarantee is exactly-once: lower it to at most "
                f"{UPLOADED_BODY_BYTES_MAX}, the largest body of an upload"
            )
        if found.job_id is not None and len(found.job_id) > JOB_CHARS_MAX:
            raise OptionError(f"jobId has {len(found.job_id)} characters: shorten it to at most {JOB_CHARS_MAX}")
    return found


def _is_exactly_once(read: _OptionReader) -> bool:
    guarantee = read.text("guarantee") or AT_LEAST_ONCE
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise OptionError(f"guarantee is {guarantee!r}: write {AT_LEAST_ONCE} or {EXACTLY_ONCE}")
    return guarantee == EXACTLY_ONCE


def check_name(option: str, problem: str | None, value: str) -> None:
    """Raise OptionError with the rule that a topic or a group breaks."""
    if problem is not None:
        raise OptionError(f"{option} is {value!r}: {problem}")


def _source(read: _OptionReader, default_start: int) -> SourceOptions:
    read.at_most_one("startingOffsets", "startingTimestamp")
    group = read.text("group") or DEFAULT_GROUP
    check_name("group", names.group_problem(group), group)
    start = _place(read, "startingOffsets", default_start, ("earliest", "latest", "group"))
    if GROUP in (start, read.text("endingOffsets")) and read.text("group") is None:
        raise OptionError("startingOffsets or endingOffsets is group: name the group with option group")
    return SourceOptions(
        connection=_connection(read),
        topics=_topics(read),
        filter=_filter(read),
        group=group,
        start=start,
        start_time=_given(read, "startingTimestamp", parse_moment, None),
        partitions_min=read.count("minPartitions"),
        partition_rows_max=read.count("maxRecordsPerPartition"),
        fails_on_loss=read.flag("failOnDataLoss", True),
        store_path=_store_path(read),
    )


def _connection(read: _OptionReader) -> ConnectionOptions:
    servers = read.text("namesrvAddr")
    if servers is None:
        raise OptionError("option namesrvAddr is missing: give the name servers, as in 10.0.0.1:9876;10.0.0.2:9876")
    addresses = tuple(part for part in re.split(r"[;,\s]+", servers) if part)
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise OptionError(f"namesrvAddr has {address!r}: write HOST:PORT, as in 127.0.0.1:9876")
    return ConnectionOptions(
        namesrv=addresses,
        timeout_s=(read.count("timeoutMs") or 5000) / 1000,
        access_key=_access_key(read),
        tls=_tls(read),
    )


def _store_path(read: _OptionReader) -> str | None:
    found = read.text("storePath")
    if found is None:
        return None
    if not found.startswith("/"):
        raise OptionError(f"storePath is {found!r}: write an absolute path, because each task has another folder")
    if read.text("sql") is not None:
        raise OptionError("storePath has no use with sql, because only the broker evaluates it: leave one of them out")
    return found


def _access_key(read: _OptionReader) -> AccessKey | None:
    name, secret, token = read.text("accessKey"), read.text("secretKey"), read.text("securityToken")
    if name is not None and secret is not None:
        return AccessKey(name, secret, token)
    if name is None and secret is None and token is None:
        return None
    missing = "accessKey" if name is None else "secretKey"
    raise OptionError(f"option {missing} is missing: accessKey and secretKey sign requests only together")


def _tls(read: _OptionReader) -> TlsOptions | None:
    fields = {
        "ca_file": "tlsCaFile",
        "verify": "tlsVerify",
        "server_name": "tlsServerName",
        "certificate_file": "tlsCertificateFile",
        "key_file": "tlsKeyFile",
        "key_password_file": "tlsKeyPasswordFile",
    }
    given = {field: value for field, name in fields.items() if (value := read.text(name)) is not None}
    if not read.flag("tls", bool(given)):
        if given:
            raise OptionError(f"tls is false, and {fields[next(iter(given))]} is given: remove one of both")
        return None
    try:
        return TlsOptions(**given)  # type: ignore[arg-type]
    except ValueError as error:
        raise OptionError(f"the options tls* are wrong: {error}") from None


def _topics(read: _OptionReader) -> ChosenTopics:
    chosen = read.at_most_one("topic", "topics", "topicsPattern")
    if chosen is None:
        raise OptionError("no topic is given: give option topic, topics (with commas between them) or topicsPattern")
    text = read.text(chosen) or ""
    if chosen == "topicsPattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"topicsPattern is {text!r}, which is no regular expression: {error}") from None
        return ChosenTopics(pattern=text)
    found = [text] if chosen == "topic" else [part.strip() for part in text.split(",")]
    for topic in found:
        check_name(chosen, names.topic_problem(topic), topic)
    return ChosenTopics(names=tuple(sorted(set(found))))


def _filter(read: _OptionReader) -> Filter:
    read.at_most_one("tags", "sql")
    found = Filter(tags=read.text("tags") or "*", sql=read.text("sql"))
    try:
        found.subscription("T")
    except ValueError as error:
        raise OptionError(f"tags is {found.tags!r}: {error}") from None
    return found


def _place(read: _OptionReader, option: str, default: int, words: tuple[str, ...]) -> Place:
    text = read.text(option)
    if text is None:
        return default
    word = text.lower()
    if word in words:
        return GROUP if word == GROUP else EARLIEST if word == "earliest" else LATEST
    if not text.startswith("{"):
        raise OptionError(f"{option} is {text!r}: write {', '.join(words)}, or offsets in JSON")
    return parse_offsets(option, text)


def _given(read: _OptionReader, option: str, parse: Callable[[str, str], T], default: D) -> T | D:
    value = read.text(option)
    return default if value is None else parse(option, value)
