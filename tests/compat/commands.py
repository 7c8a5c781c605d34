"""Every command of `mqadmin help` of RocketMQ 4.9.7 and 5.5.0: how it is run against our broker and
against Java's 4.9.7, and how what it prints compares.

docs/mqadmin.md is written from this table (scripts/mqadmin_page.py). Words in braces are filled in
by the test: {ns} and {b} are the addresses of name server and broker, {home} a folder of the
cluster; {topic} has two queues with a message each, {online} and {offline} are groups that consumed
them, {id} and {offset_id} are the ids of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

V4: Final = "4.9.7"
V5: Final = "5.5.0"
BOTH: Final = (V4, V5)


class Verdict(Enum):
    """How what a command does with our broker compares with Java's 4.9.7."""

    SAME = "same"
    BETTER = "better"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a command. `theirs` and `ours` are patterns that the outputs match where they
    are not the same. With `numbers` they are the same but for their numbers, and always but for
    what `mask` matches; with `ends` false the command runs for ever and is interrupted after
    `limit_ms`."""

    arguments: str
    theirs: str = ""
    ours: str = ""
    numbers: bool = False
    mask: str = ""
    ends: bool = True
    limit_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `runs_of_5` are those of 5.5.0 where its words are others."""

    name: str
    verdict: Verdict
    how: str
    runs: tuple[Run, ...]
    versions: tuple[str, ...]
    runs_of_5: tuple[Run, ...] | None = None

    def runs_in(self, version: str) -> tuple[Run, ...]:
        """The calls with mqadmin of a version."""
        return self.runs_of_5 if version == V5 and self.runs_of_5 is not None else self.runs


def _runs(calls: tuple[Run | str, ...]) -> tuple[Run, ...]:
    return tuple(call if isinstance(call, Run) else Run(call) for call in calls)


def same(
    name: str,
    *calls: Run | str,
    how: str = "",
    versions: tuple[str, ...] = BOTH,
    of_5: tuple[Run | str, ...] | None = None,
) -> Command:
    """A command that prints the same."""
    of_5_runs = None if of_5 is None else _runs(of_5)
    return Command(name, Verdict.SAME, how, _runs(calls), versions, of_5_runs)


def better(
    name: str,
    how: str,
    *calls: Run | str,
    versions: tuple[str, ...] = BOTH,
    of_5: tuple[Run | str, ...] | None = None,
) -> Command:
    """A command that does more, or fails where Java's broker pretends success."""
    of_5_runs = None if of_5 is None else _runs(of_5)
    return Command(name, Verdict.BETTER, how, _runs(calls), versions, of_5_runs)


def only_5(name: str, *calls: Run | str, how: str = "of RocketMQ 5: both answer 3") -> Command:
    """A command for servers of RocketMQ 5, which a 4.9 broker does not know."""
    return Command(name, Verdict.NOT_APPLICABLE, how, _runs(calls), (V5,))


_B: Final = "-n {ns} -b {b}"
_C: Final = "-n {ns} -c DefaultCluster"
_CONTROLLER: Final = "for RocketMQ 5's controller: both answer 3"
_ACL2: Final = "RocketMQ 5's accounts (ACL 2.0): both answer 3; 4.9 has updateAclConfig"
_ROCKSDB: Final = "for stores in RocksDB, which only RocketMQ 5 has"
_LITE: Final = "lite topics of RocketMQ 5.5: both answer 3"
#: 5.5.0 asks for the topic's configuration (351) before it says what consumed a message.
_TRACK: Final = "trackType=(CONSUMED|UNKNOWN)"
_ASKS_351: Final = (
    "5.5.0 asks for the topic's configuration first (351): Java's 4.9 broker does not know that "
    "request and the command fails, CometMQ answers"
)
_NO_TOPIC: Final = "-n {ns} -t no-such-topic"

#: In the order of `mqadmin help`.
COMMANDS: Final = (
    same(
        "updateTopic",
        f"{_C} -t {{topic}}-new -r 2 -w 3",
        f"{_B} -t {{topic}}-ordered -r 2 -w 2 -o true",
        f"{_B} -t TBW102",
        f"{_B} -t 'no good'",
    ),
    only_5("updateTopicList", f"{_B} -f {{home}}/topics.json"),
    same("deleteTopic", f"{_C} -t {{topic}}-new", f"{_C} -t no-such-topic"),
    same(
        "updateSubGroup",
        f"{_C} -g {{topic}}-group",
        f"{_B} -g {{topic}}-group -s false -q 3 -r 5",
    ),
    only_5("updateSubGroupList", f"{_B} -f {{home}}/groups.json"),
    only_5("setConsumeMode", f"{_B} -t {{topic}} -g {{offline}} -m PULL"),
    same("deleteSubGroup", f"{_B} -g {{topic}}-group -r true", f"{_B} -g no-such-group"),
    better(
        "updateBrokerConfig",
        "a key that does not exist, or a value that is none, is refused; Java answers success and "
        "changes nothing",
        f"{_B} -k maxMessageSize -v 4194300",
        f"{_C} -k maxMessageSize -v 4194304",
        Run(f"{_B} -k no.such.key -v 1", theirs="success", ours="CODE: 1"),
        Run(f"{_B} -k maxMessageSize -v many", theirs="success", ours="CODE: 1"),
    ),
    same(
        "updateTopicPerm",
        f"{_B} -t {{topic}}-ordered -p 4",
        f"{_C} -t {{topic}}-ordered -p 6",
        f"{_C} -t no-such-topic -p 6",
    ),
    same("topicRoute", "-n {ns} -t {topic}", "-n {ns} -t {topic} -l", _NO_TOPIC),
    better(
        "topicStatus",
        _ASKS_351,
        "-n {ns} -t {topic}",
        _NO_TOPIC,
        of_5=(Run("-n {ns} -t {topic}", theirs="CODE: 3", ours=r"broker-a +1 +0 +1"), _NO_TOPIC),
    ),
    same("topicClusterList", "-n {ns} -t {topic}", _NO_TOPIC),
    only_5("addBroker", "-c {b} -b /no-such-file", how="for RocketMQ 5's container: both answer 3"),
    only_5(
        "removeBroker",
        "-c {b} -b DefaultCluster:broker-a:1",
        how="for RocketMQ 5's container: both answer 3",
    ),
    only_5("resetMasterFlushOffset", f"{_B} -o 0"),
    same(
        "brokerStatus",
        Run(_B, theirs=r"(?s)bootTimestamp.*putTps", ours=r"(?s)bootTimestamp.*putTps"),
        Run(_C, theirs=r"(?s)bootTimestamp.*putTps", ours=r"(?s)bootTimestamp.*putTps"),
        how="all of Java's keys, and some more",
    ),
    same(
        "queryMsgById",
        "-n {ns} -i {offset_id}",
        "-n {ns} -i {host_id}00000000000FFFFF",
        of_5=(
            Run("-n {ns} -t {topic} -i {offset_id}", mask=_TRACK),
            Run("-n {ns} -t {topic} -i {id}", mask=_TRACK),
        ),
    ),
    same("queryMsgByKey", "-n {ns} -t {topic} -k key-1", "-n {ns} -t {topic} -k no-such-key"),
    same(
        "queryMsgByUniqueKey",
        "-n {ns} -t {topic} -i {id}",
        "-n {ns} -t {topic} -i {id} -a",
        of_5=(Run("-n {ns} -t {topic} -i {id}", mask=_TRACK),),
    ),
    same(
        "queryMsgByOffset",
        "-n {ns} -t {topic} -b broker-a -i 0 -o 0",
        "-n {ns} -t {topic} -b broker-a -i 0 -o 1",
        of_5=(Run("-n {ns} -t {topic} -b broker-a -i 0 -o 0", mask=_TRACK),),
    ),
    same("queryMsgTraceById", "-n {ns} -i {id}"),
    same("printMsg", "-n {ns} -t {topic} -d true", "-n {ns} -t {topic} -s red"),
    same("printMsgByQueue", "-n {ns} -t {topic} -a broker-a -i 0 -p true -d true -f true"),
    same("sendMsgStatus", Run("-n {ns} -b broker-a -c 2", numbers=True)),
    same("brokerConsumeStats", _B, f"{_B} -o true"),
    same("producerConnection", "-n {ns} -g java-producers -t {topic}", "-n {ns} -g no -t {topic}"),
    same("consumerConnection", "-n {ns} -g {online}", "-n {ns} -g {offline}", "-n {ns} -g no"),
    better(
        "consumerProgress",
        _ASKS_351,
        Run("-n {ns} -g {offline}", numbers=True),
        Run("-n {ns} -g {online} -s true", numbers=True),
        "-n {ns} -g no",
        Run("-n {ns}", numbers=True),
        of_5=(
            Run("-n {ns} -g {offline}", theirs="CODE: 3", ours="Diff Total: 0"),
            "-n {ns} -g no",
        ),
    ),
    same(
        "consumerStatus",
        Run("-n {ns} -g {online}", numbers=True),
        "-n {ns} -g {offline}",
        "-n {ns} -g no",
    ),
    better(
        "cloneGroupOffset",
        _ASKS_351,
        "-n {ns} -s {offline} -d {topic}-clone -t {topic}",
        "-n {ns} -s no -d {topic}-clone -t {topic}",
        of_5=(Run("-n {ns} -s {offline} -d {topic}-clone -t {topic}", "CODE: 3", "success"),),
    ),
    same("producer", _B),
    same("clusterList", Run("-n {ns}", numbers=True), Run("-n {ns} -m", numbers=True)),
    same("topicList", "-n {ns}", "-n {ns} -c", of_5=("-n {ns}",)),
    same("updateKvConfig", "-n {ns} -s names -k key -v value"),
    same("deleteKvConfig", "-n {ns} -s names -k key", "-n {ns} -s names -k no-such-key"),
    same("wipeWritePerm", Run("-n {ns} -b broker-a", numbers=True), "-n {ns} -b no-such-broker"),
    same("addWritePerm", Run("-n {ns} -b broker-a", numbers=True), "-n {ns} -b no-such-broker"),
    better(
        "resetOffsetByTime",
        "a group that has no offset in some queue is reset there too; Java refuses it as one that "
        "does not exist. With 5.5.0, `-s now` leaves no message to consume; Java leaves the last",
        "-n {ns} -g {offline} -t {topic} -s now",
        "-n {ns} -g {online} -t {topic} -s 0",
        Run("-n {ns} -g {fresh} -t {topic}-ordered -s now", "CODE: 1", r"broker-a +1"),
        "-n {ns} -g {offline} -t no-such-topic -s now",
        of_5=(
            Run("-n {ns} -g {offline} -t {topic} -s now", "broker-a +0 +1 +1 +0", "a +0 +1 +1 +1"),
            Run("-n {ns} -g {fresh} -t {topic}-ordered -s now", "CODE: 1", r"broker-a +1"),
        ),
    ),
    better(
        "skipAccumulatedMessage",
        "as resetOffsetByTime",
        "-n {ns} -g {online} -t {topic}",
        Run("-n {ns} -g {untouched} -t {topic}-ordered", "CODE: 1", r"broker-a +1"),
    ),
    same(
        "updateOrderConf",
        "-n {ns} -t {topic} -m put -v broker-a:2",
        "-n {ns} -t {topic} -m get",
        "-n {ns} -t {topic} -m delete",
        "-n {ns} -t {topic} -m get",
    ),
    same("cleanExpiredCQ", _B, _C),
    same("deleteExpiredCommitLog", _B, _C),
    same(
        "cleanUnusedTopic",
        _B,
        _C,
        how="the groups' offsets in a removed topic go too, so a new topic of that name starts "
        "empty for all",
    ),
    same(
        "startMonitoring",
        Run("-n {ns}", limit_ms=1_000),
        how="it starts and prints nothing; the topic that it reads, `OFFSET_MOVED_EVENT`, stays "
        "empty, as CometMQ stores no such events",
        of_5=(),
    ),
    same(
        "statsAll",
        Run("-n {ns} -t {topic}", numbers=True),
        of_5=(Run("-n {ns} -t BenchmarkTest", numbers=True),),
    ),
    same("allocateMQ", "-n {ns} -t {topic} -i 10.0.0.1,10.0.0.2"),
    same("checkMsgSendRT", Run("-n {ns} -t {topic} -a 2 -s 10", numbers=True)),
    same(
        "clusterRT",
        Run("-n {ns} -a 1 -s 10 -i 30", numbers=True, ends=False, limit_ms=2_000),
    ),
    same(
        "getNamesrvConfig",
        Run(
            "-n {ns}",
            theirs="(?s)kvConfigPath.*listenPort.*rocketmqHome",
            ours="(?s)kvConfigPath.*listenPort.*rocketmqHome",
        ),
        how="the settings that CometMQ has, its own among them; none of Java's threads and buffers",
    ),
    better(
        "updateNamesrvConfig",
        "a key that does not exist is refused; Java answers success and changes nothing",
        "-n {ns} -k orderMessageEnable -v true",
        "-n {ns} -k orderMessageEnable -v false",
        "-n {ns} -k kvConfigPath -v /elsewhere",
        Run("-n {ns} -k no.such.key -v 1", theirs="success", ours="CODE: 1"),
    ),
    same(
        "getBrokerConfig",
        Run(_B, theirs="(?s)brokerName.*brokerRole", ours="(?s)brokerName.*brokerRole"),
        Run(_C, theirs="(?s)brokerName.*brokerRole", ours="(?s)brokerName.*brokerRole"),
        how="the settings that CometMQ has, its own among them; none of Java's threads and buffers",
    ),
    same("getConsumerConfig", "-n {ns} -g {offline}", "-n {ns} -g no"),
    better(
        "queryCq",
        "an index that the queue does not have gives the queue's bounds; Java's answer is a "
        "NullPointerException",
        f"{_B} -t {{topic}} -q 0 -i 0",
        f"{_B} -t {{topic}} -q 0 -i 0 -c 1 -g {{online}}",
        f"{_B} -t {{topic}} -q 0 -i 0 -g {{offline}}",
        f"{_B} -t {{topic}} -q 7 -i 0",
        Run(f"{_B} -t {{topic}} -q 0 -i 99", theirs="NullPointer", ours="max: "),
    ),
    same("sendMessage", "-n {ns} -t {topic} -p more -b broker-a -i 1"),
    same(
        "consumeMessage",
        "-n {ns} -t {topic} -b broker-a -i 0 -o 0 -c 1",
        "-n {ns} -t {topic} -b broker-a -i 0 -c 2",
    ),
    same(
        "updateAclConfig",
        f"{_B} -a account -s secret-of-it -i SUB -t topic=PUB",
        f"{_C} -a account -s short",
        versions=(V4,),
    ),
    same("deleteAclConfig", f"{_B} -a account", f"{_B} -a no-such-account", versions=(V4,)),
    same("clusterAclConfigVersion", _B, _C, versions=(V4,)),
    same("updateGlobalWhiteAddr", f"{_B} -g 127.0.0.1,10.0.0.*", versions=(V4,)),
    better(
        "getAclConfig",
        "secrets are shown as stars",
        Run(_B, theirs="secret-of-admin", ours=r"secretKey +: \*{6}\n"),
        Run(_C, theirs="secret-of-admin", ours=r"secretKey +: \*{6}\n"),
        versions=(V4,),
    ),
    only_5("updateStaticTopic", Run(f"{_C} -t {{topic}}-static -qn 2", "CODE: 3", "CODE: 3")),
    only_5("remappingStaticTopic", Run(f"{_C} -t {{topic}}-static", "CODE: 3", "RuntimeException")),
    same(
        "exportMetadata",
        f"{_C} -f {{home}}/metadata",
        f"{_B} -t -f {{home}}/topics",
        f"{_B} -g -f {{home}}/groups",
    ),
    same("exportConfigs", f"{_C} -f {{home}}/configs"),
    same("exportMetrics", f"{_C} -f {{home}}/metrics"),
    only_5("exportMetadataInRocksDB", how=_ROCKSDB),
    only_5("exportPopRecord", _B),
    only_5("haStatus", _B),
    only_5("getSyncStateSet", "-a {b} -b broker-a", how=_CONTROLLER),
    only_5("getBrokerEpoch", "-n {ns} -b broker-a"),
    only_5("getControllerMetaData", "-a {b}", how=_CONTROLLER),
    only_5("getControllerConfig", "-a {b}", how=_CONTROLLER),
    only_5("updateControllerConfig", "-a {b} -k key -v value", how=_CONTROLLER),
    only_5("electMaster", "-a {b} -b 0 -bn broker-a -c DefaultCluster", how=_CONTROLLER),
    only_5("cleanBrokerMetadata", "-a {b} -bn broker-a -c DefaultCluster", how=_CONTROLLER),
    only_5("dumpCompactionLog", how="reads a file of RocketMQ 5, and asks no server"),
    only_5("getColdDataFlowCtrInfo", _B),
    only_5("updateColdDataFlowCtrGroupConfig", f"{_B} -g group -v 1"),
    only_5("removeColdDataFlowCtrGroupConfig", f"{_B} -g group"),
    only_5("setCommitLogReadAheadMode", f"{_B} -m 0"),
    only_5("createUser", f"{_B} -u user -p password", how=_ACL2),
    only_5("updateUser", f"{_B} -u user -p password", how=_ACL2),
    only_5("deleteUser", f"{_B} -u user", how=_ACL2),
    only_5("getUser", f"{_B} -u user", how=_ACL2),
    only_5("listUser", _B, how=_ACL2),
    only_5("copyUser", "-n {ns} -f {b} -t {b} -u user", how=_ACL2),
    only_5("createAcl", f"{_B} -s User:u -r Topic:t -a Pub -d Allow", how=_ACL2),
    only_5("updateAcl", f"{_B} -s User:u -r Topic:t -a Pub -d Allow", how=_ACL2),
    only_5("deleteAcl", f"{_B} -s User:u", how=_ACL2),
    only_5("getAcl", f"{_B} -s User:u", how=_ACL2),
    only_5("listAcl", _B, how=_ACL2),
    only_5("copyAcl", "-n {ns} -f {b} -t {b} -s User:u", how=_ACL2),
    only_5("rocksDBConfigToJson", _C, how=_ROCKSDB),
    only_5("checkRocksdbCqWriteProgress", _C, how=_ROCKSDB),
    only_5("switchTimerEngine", f"{_B} -e F"),
    only_5("getBrokerLiteInfo", _B, how=_LITE),
    only_5("getParentTopicInfo", "-n {ns} -p {topic}", how=_LITE),
    only_5("getLiteTopicInfo", "-n {ns} -p {topic} -l lite", how=_LITE),
    only_5("getLiteClientInfo", "-n {ns} -p {topic} -g group -c client", how=_LITE),
    only_5("getLiteGroupInfo", "-n {ns} -p {topic} -g group", how=_LITE),
    only_5("triggerLiteDispatch", "-n {ns} -p {topic} -g group", how=_LITE),
)
