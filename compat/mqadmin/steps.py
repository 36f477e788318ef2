"""The commands in order, and the compared part of their output.

A command may contain names in braces: {broker} and {namesrv} are addresses, {home} is a folder for its files, others
are values that an earlier step kept. Commands that begin with @ belong to the runner (compat/apache,
AdminCommands.java).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wheelmq.formats.wire.codes import RequestCode as Code

CLUSTER = "DefaultCluster"
BROKER = "broker-a"
CONFIG = {"brokerName": BROKER, "traceTopicEnable": "true"}
"""The settings of a broker, by Apache's names."""
RATE = r"\d+\.\d+"


@dataclass(frozen=True)
class Step:
    """One command. Each line of its output counts, in order unless `is_set`; or the file `file`, as JSON."""

    name: str
    command: str
    """Words separated by blanks."""
    is_set: bool = False
    """Whether the lines may have any order, as from a hash table."""
    is_json: bool = False
    """Whether the output is JSON that is compared field by field."""
    file: str = ""
    """The file in the folder {home} that the command writes. It is compared, as JSON."""
    without: tuple[str, ...] = ()
    """Ignored fields of JSON."""
    masks: tuple[tuple[str, str], ...] = ()
    """Patterns of text that varies between runs, and its replacement."""
    keeps: dict[str, str] = field(default_factory=dict)
    """Patterns with one group, by name. The group's text is a value for later commands."""
    until: str = ""
    """The command is repeated until this pattern is found, because figures are sampled every 10 s."""
    codes: tuple[Code, ...] = ()
    """Requests that the step needs."""
    why: str = ""
    """The reason why WheelMQ's output differs: a finding. `ours` is a pattern of that output."""
    ours: str = ""


def refused(name: str, command: str, why: str) -> Step:
    """Return a step for a command of a feature that WheelMQ does not have."""
    return Step(name, command, why=why, ours=r"CODE: 3 +DESC: +request type \d+ not supported: belongs to ")


POP = "POP is not served"
NO_TIERS, NO_REPLICAS = "there is no tiered storage", "each broker stands alone"
NO_USERS = "users and lists are served without authentication too, to this machine: there are none"
OWN_NAMES = rf"{CLUSTER}_REPLY_TOPIC|rmq_sys_REVIVE_LOG_.*|rmq_sys_SYNC_BROKER_MEMBER_.*|rmq_sys_wheelmq_.*"
OWN_TOPICS = ((rf"^({CLUSTER} )?({OWN_NAMES})$", ""),)
"""Apache's topics for POP, for replicas and for answers to requests; WheelMQ's topic for dead letters."""
COUNT = ((r", \d+$", ", <number>"),)
TPS = ((RATE, "<rate>"), (r"^(\S+) \1 .*", ""))
"""Apache counts a topic with a subscriber among its groups, by the topic's name."""
RT = ((r"rt=\d+ms", "rt=<ms>"), (r"(true|false) +\d+$", r"\1 <ms>"), (r"Avg RT: .*", "Avg RT: <ms>"))
NO_RETRIES = ((r"^%RETRY%\S+ .*", ""),)
"""Offsets in retry topics are committed after a poll was held for its 15 s. A run may end before or after that."""
PROGRESS = ((r"(Consume TPS:) .*", r"\1 <rate>"), (r"<time>|N/A", "<time>"), *NO_RETRIES)

TOPICS = (
    Step("topic in a cluster", f"updateTopic -c {CLUSTER} -t Orders -r 4 -w 4"),
    Step("topic on a broker", "updateTopic -b {broker} -t Bare -r 2 -w 3 -p 6 -a +message.type=NORMAL"),
    Step("topic in order", f"updateTopic -c {CLUSTER} -t Ordered -r 2 -w 2 -o true"),
    Step("topic of a reserved name", "updateTopic -b {broker} -t TBW102"),
    Step(
        "topic with an attribute that is none",
        "updateTopic -b {broker} -t Wrong -a +colour=red",
        masks=((r"(unsupported key: colour).*", r"\1"),),
    ),
    Step("topics from a file", "updateTopicList -b {broker} -f {topics}"),
    Step("permission of a topic", "updateTopicPerm -b {broker} -t Bare -p 4"),
    Step("topics", "topicList", is_set=True, masks=OWN_TOPICS),
    Step("topics with groups", "topicList -c", is_set=True, masks=OWN_TOPICS),
    Step("route", "topicRoute -t Orders", is_json=True),
    Step("route as a list", "topicRoute -t Orders -l"),
    Step("route of no topic", "topicRoute -t Nowhere"),
    Step("clusters of a topic", "topicClusterList -t Orders"),
    Step("status of an empty topic", "topicStatus -t Orders"),
    Step("allocation", "allocateMQ -t Orders -i 10.0.0.1,10.0.0.2", is_json=True),
)
RETRIES = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":60000,"multiplier":3}}'
GROUPS = (
    Step("group in a cluster", f"updateSubGroup -c {CLUSTER} -g G_plain"),
    Step(
        "group on a broker",
        "updateSubGroup -b {broker} -g G_chosen -s true -m true -d true -q 2 -r 3 -i 0 -w 1 -a false",
    ),
    Step(
        "group with a retry policy",
        "updateSubGroup -b {broker} -g G_retry -p " + RETRIES.replace("{", "{{").replace("}", "}}"),
    ),
    Step("config of a group with a retry policy", "getConsumerConfig -g G_retry", is_set=True),
    Step("groups from a file", "updateSubGroupList -b {broker} -f {groups}"),
    Step("config of a group", "getConsumerConfig -g G_chosen", is_set=True),
    Step("config of a group from a file", "getConsumerConfig -g G_file", is_set=True),
)
MESSAGES = (
    Step("message 0", "@send Orders 0 TagA k0 body0", keeps={"unique": r"SEND_OK (\w+)", "id": r"SEND_OK \w+ (\w+)"}),
    Step("message 1", "@send Orders 1 TagA k1 body1"),
    Step("message 2", "@send Orders 1 TagB k2 body2"),
    Step("message 3", "@send Orders 2 TagB k3 body3"),
    Step("message by mqadmin", f"sendMessage -t Orders -p body4 -k k4 -c TagC -b {BROKER} -i 3"),
    Step("status of a topic", "topicStatus -t Orders"),
    Step("by id", "queryMsgById -t Orders -i {id}"),
    Step("by an id that is none", "queryMsgById -t Orders -i 7F000001000029CC0000000000FFFFFF"),
    Step("by key", "queryMsgByKey -t Orders -k k2"),
    Step("by a key that is none", "queryMsgByKey -t Orders -k nothing"),
    Step("by unique key", "queryMsgByUniqueKey -t Orders -i {unique}"),
    Step("by unique key, all", "queryMsgByUniqueKey -t Orders -i {unique} -a"),
    Step("by offset", f"queryMsgByOffset -t Orders -b {BROKER} -i 1 -o 1"),
    Step("by an offset that is none", f"queryMsgByOffset -t Orders -b {BROKER} -i 1 -o 77"),
    Step("trace", "queryMsgTraceById -i {unique}"),
    Step("messages printed", "printMsg -t Orders -d true", is_set=True),
    Step("messages with a tag printed", "printMsg -t Orders -s TagB -d true", is_set=True),
    Step("messages of a queue printed", f"printMsgByQueue -t Orders -a {BROKER} -i 1 -p true -d true -f true"),
    Step("messages consumed", f"consumeMessage -t Orders -b {BROKER} -i 1 -o 0 -c 2"),
    Step("queue", "queryCq -t Orders -q 1 -i 0 -c 5 -b {broker}"),
    Step("queue that is none", "queryCq -t Orders -q 9 -i 0 -c 5 -b {broker}"),
)
CLIENTS = (
    Step("consumer", "@consume G_online Orders 5"),
    Step("progress of a group", "consumerProgress -g G_online", masks=PROGRESS, until=r"(?s) 3 +1 +1 .*Diff Total: 0"),
    Step(
        "progress of a group by client",
        "consumerProgress -g G_online -s true",
        masks=PROGRESS,
        codes=(Code.GET_CONSUMER_RUNNING_INFO,),
    ),
    Step("progress of a group in a topic", "consumerProgress -g G_online -t Orders", masks=PROGRESS),
    Step("progress of all groups", "consumerProgress", is_set=True, masks=((rf" {RATE}| \d+ +(\d+)$", r" \1"),)),
    Step("progress of no group", "consumerProgress -g Nobody", masks=PROGRESS),
    Step("connections of a group", "consumerConnection -g G_online", keeps={"client": r"(\S+@G_online)"}),
    Step("connections of no group", "consumerConnection -g Nobody"),
    Step("queue with a filter", "queryCq -t Orders -q 1 -i 0 -c 5 -b {broker} -g G_online"),
    Step("status of a group", "consumerStatus -g G_online", codes=(Code.GET_CONSUMER_RUNNING_INFO,)),
    Step(
        "consumed directly",
        "queryMsgById -t Orders -i {id} -g G_online -d {client}",
        masks=((r"spentTimeMills=\d+", "spentTimeMills=<ms>"),),
        codes=(Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY),
    ),
    Step("connections of a producer", "producerConnection -g P_TOOL -t Orders"),
    Step("connections of no producer", "producerConnection -g Nobody -t Orders"),
    Step("producers", "producer -b {broker}", is_set=True),
    Step("backlog of a broker", "brokerConsumeStats -b {broker}", is_set=True, masks=NO_RETRIES),
    Step("topic and group with figures", "statsAll -t Orders", until=r"G_online +0 .* 5 +5\s", masks=TPS),
    Step("all active topics with figures", "statsAll -a", is_set=True, masks=TPS),
)
RESET = (Code.INVOKE_BROKER_TO_RESET_OFFSET,)
OFFSETS = (
    Step("consumer stops", "@stop G_online"),
    Step(
        "offsets cloned to no group",
        "cloneGroupOffset -s G_online -d Nobody -t Orders",
        codes=RESET,
    ),
    Step("group that was made is deleted", "deleteSubGroup -b {broker} -g Nobody -r true"),
    Step("another consumer", "@consume G_clone Orders 5"),
    Step("another consumer stops", "@stop G_clone"),
    Step("offsets by time", "resetOffsetByTime -g G_clone -t Orders -s 0", is_set=True, codes=RESET),
    Step("progress after the reset", "consumerProgress -g G_clone", masks=PROGRESS, codes=RESET),
    Step("offset of a queue", "resetOffsetByTime -g G_clone -t Orders -s 0 -b {broker} -q 1 -o 1", codes=RESET),
    Step("backlog skipped", "skipAccumulatedMessage -g G_clone -t Orders", is_set=True, codes=RESET),
    Step("progress after the skip", "consumerProgress -g G_clone", masks=PROGRESS, codes=RESET),
    Step("message to come", "@send Orders 2 TagA k5 body5"),
    Step("progress behind", "consumerProgress -g G_clone", masks=PROGRESS, codes=RESET),
    Step("backlog from 1 on", "brokerConsumeStats -b {broker} -l 1", is_set=True, codes=RESET),
    Step("offsets cloned", "cloneGroupOffset -s G_online -d G_clone -t Orders"),
    Step("progress of the clone", "consumerProgress -g G_clone", masks=PROGRESS),
)
NO_VALUES = ((r"=.*", ""),)
STATUS = (
    (r"^(ackThreadPoolQueueCapacity)\s*:.*", r"\1"),
    (r"^(commitLogDiskRatio_).*", r"\1"),
    (r"^(\w+(?:Tps|Time|Max|Latency\d+|Time[sS]tamp|Ratio|DirCapacity|Total|Flush|Offset|Size))\s*:.*", r"\1"),
    (r"^(runtime|putMessageDistributeTime|timerReadBehind|timerOffsetBehind)\s*:.*", r"\1"),
)
BROKERS = (
    Step("clusters", "clusterList", masks=((r"(V5_3_3) .*", r"\1"),)),
    Step("clusters with more", "clusterList -m", masks=((r"( +\d+){4}$", ""),)),
    Step("status of a broker", "brokerStatus -b {broker}", masks=STATUS),
    Step(
        "config of a broker",
        "getBrokerConfig -b {broker}",
        is_set=True,
        masks=NO_VALUES,
        why="the keys that are honoured or refused are told, and no others",
        ours=r"(?m)^brokerName$",
    ),
    Step("setting changed", "updateBrokerConfig -b {broker} -k longPollingEnable -v true"),
    Step(
        "setting that does not change",
        "updateBrokerConfig -b {broker} -k storePathRootDir -v /elsewhere",
        why="refused, as all that needs a start; Apache answers success",
        ours=r"CODE: 16 DESC: storePathRootDir does not change at run time",
    ),
    Step(
        "config of a name server",
        "getNamesrvConfig -n {namesrv}",
        is_set=True,
        masks=NO_VALUES,
        why="the keys that are honoured or refused are told, and no others",
        ours=r"(?m)^listenPort$",
    ),
    Step("setting of a name server", "updateNamesrvConfig -k orderMessageEnable -v true -n {namesrv}"),
    Step("replication", "haStatus -b {broker}", masks=((r"\d{2,}", "<number>"),)),
    Step("queues cleaned", "cleanExpiredCQ -b {broker}"),
    Step("queues cleaned in a cluster", f"cleanExpiredCQ -c {CLUSTER}"),
    Step("topics cleaned", "cleanUnusedTopic -b {broker}"),
    Step("log cleaned", "deleteExpiredCommitLog -b {broker}"),
    Step(
        "send times of a broker", f"sendMsgStatus -b {BROKER} -c 2 -s 16", masks=(*RT, (r"(queue\w+)=\d+", r"\1=<n>"))
    ),
    Step("send times of a topic", "checkMsgSendRT -t Ordered -a 4 -s 16", masks=RT),
)
NAME_SERVERS = (
    Step("writing wiped", f"wipeWritePerm -b {BROKER}", masks=COUNT),
    Step("route without writing", "topicRoute -t Orders", is_json=True),
    Step("writing added", f"addWritePerm -b {BROKER}", masks=COUNT),
    Step("route with writing", "topicRoute -t Orders", is_json=True),
    Step("order of a topic that has one", "updateOrderConf -t Ordered -m get"),
    Step("order of a topic put", f"updateOrderConf -t Orders -m put -v {BROKER}:4"),
    Step("order of a topic", "updateOrderConf -t Orders -m get"),
    Step("route of a topic in order", "topicRoute -t Orders", is_json=True),
    Step("order of a topic deleted", "updateOrderConf -t Orders -m delete"),
    Step("order of a topic without", "updateOrderConf -t Orders -m get"),
    Step("pair put", "updateKvConfig -s space -k key -v value"),
    Step("pair deleted", "deleteKvConfig -s space -k key"),
)
RATIOS = ("cpuNum", "commitLogDiskRatio", "consumeQueueDiskRatio")
EXPORTS = (
    Step("metadata exported", f"exportMetadata -c {CLUSTER} -f {{home}}", file="metadata.json"),
    Step("topics exported", "exportMetadata -b {broker} -t -f {home}", file="topic.json"),
    Step("groups exported", "exportMetadata -b {broker} -g -f {home}", file="subscriptionGroup.json"),
    Step("configs exported", f"exportConfigs -c {CLUSTER} -f {{home}}", file="configs.json"),
    Step("metrics exported", f"exportMetrics -c {CLUSTER} -f {{home}}", file="metrics.json", without=RATIOS),
)
TRACES = (
    Step(
        "message with a trace",
        f"sendMessage -t Listed -p traced -k t -c TagT -b {BROKER} -i 0 -m true",
        keeps={"traced": r"SEND_OK +(\w+)"},
    ),
    Step(
        "trace of a message",
        "queryMsgTraceById -i {traced}",
        masks=((r"\d+ms", "<ms>"),),
        until=r"Pub",
    ),
)
REFUSED = (
    refused("consume mode", f"setConsumeMode -c {CLUSTER} -t Orders -g G_plain -m POP -q 2", POP),
    refused("cold data", "getColdDataFlowCtrInfo -b {broker}", NO_TIERS),
    refused("cold data limited", "updateColdDataFlowCtrGroupConfig -b {broker} -g G_plain -v 1", NO_TIERS),
    refused("cold data not limited", "removeColdDataFlowCtrGroupConfig -b {broker} -g G_plain", NO_TIERS),
    refused("read ahead", "setCommitLogReadAheadMode -b {broker} -m 0", NO_TIERS),
    Step("users", "listUser -b {broker}", why=NO_USERS, ours=r"\A\s*\Z"),
    Step("access lists", "listAcl -b {broker}", why=NO_USERS, ours=r"\A\s*\Z"),
    refused("flush offset of the master", "resetMasterFlushOffset -b {broker} -o 0", NO_REPLICAS),
    refused("records of POP", "exportPopRecord -b {broker}", POP),
)
REMOVAL = (
    Step("group deleted", "deleteSubGroup -b {broker} -g G_plain -r true"),
    Step("group deleted in a cluster", f"deleteSubGroup -c {CLUSTER} -g G_chosen"),
    Step("group that is gone", "getConsumerConfig -g G_plain", is_set=True),
    Step("topic deleted", f"deleteTopic -c {CLUSTER} -t Bare"),
    Step("topic that is gone", "topicRoute -t Bare"),
    Step("topics in the end", "topicList", is_set=True, masks=OWN_TOPICS),
)

STEPS = TOPICS + GROUPS + MESSAGES + CLIENTS + OFFSETS + BROKERS + NAME_SERVERS + EXPORTS + TRACES + REFUSED + REMOVAL
