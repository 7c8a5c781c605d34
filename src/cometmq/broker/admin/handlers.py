"""The request handlers for operators: statistics, settings, topics, groups, promotion, resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.broker import BrokerAdmin
from cometmq.broker.admin.clients import ClientAdmin
from cometmq.broker.admin.groups import GroupAdmin
from cometmq.broker.admin.longanswers import LongAnswers
from cometmq.broker.admin.progress import ProgressAdmin
from cometmq.broker.admin.store import StoreAdmin
from cometmq.broker.admin.topics import TopicAdmin
from cometmq.broker.config import resolve
from cometmq.broker.consumers.consumerproxy import RelayHandler
from cometmq.broker.consumers.resetoffset import ResetHandler
from cometmq.broker.ports import join
from cometmq.broker.query import QueryHandler
from cometmq.broker.replication.addresstakeover import AddressAdmin
from cometmq.broker.replication.promotion import PromotionAdmin

if TYPE_CHECKING:
    from cometmq.broker.app import Broker
    from cometmq.net.router import HandlerPart


def admin_parts(broker: Broker) -> tuple[HandlerPart, ...]:
    """Return the handlers that serve operators and their tools."""
    answers = LongAnswers(broker.clock)
    return (
        QueryHandler(config=broker.config, store=broker.store),
        StoreAdmin(
            store=broker.store,
            offsets=broker.offsets,
            appender=broker.appender,
            clock=broker.clock,
        ),
        BrokerAdmin(
            config=broker.config,
            store=broker.store,
            topics=broker.topics,
            delivery=broker.delay,
            stats=broker.stats,
            clock=broker.clock,
            facts=lambda: {
                **broker.checkback.facts(),
                **broker.members.facts(),
                **broker.timers.facts(),
                **(broker.repeats.facts() if broker.repeats else {}),
                **broker.part.facts(),
                "otherMasters": ",".join(broker.rivals.found),
            },
        ),
        TopicAdmin(
            config=broker.config,
            store=broker.store,
            topics=broker.topics,
            offsets=broker.offsets,
            members=broker.members,
            stats=broker.stats,
            answers=answers,
            appender=broker.appender,
        ),
        GroupAdmin(
            groups=broker.groups,
            offsets=broker.offsets,
            delivery=broker.delay,
            stats=broker.stats,
            clock=broker.clock,
        ),
        PromotionAdmin(
            config=broker.config,
            part=lambda: broker.part,
            promote=lambda: broker.promote,
            remoting=broker.remoting,
            clock=broker.clock,
        ),
        AddressAdmin(
            broker.addresses,
            config=broker.config,
            files=broker.store.files,
            clock=broker.clock,
            serve=lambda listener: broker.server.serve(listener),
            moved=broker.moved,
        ),
        *_consumer_parts(broker, answers),
    )


def _consumer_parts(broker: Broker, answers: LongAnswers) -> tuple[HandlerPart, ...]:
    return (
        ProgressAdmin(
            config=broker.config,
            store=broker.store,
            topics=broker.topics,
            groups=broker.groups,
            offsets=broker.offsets,
            members=broker.members,
            stats=broker.stats,
            answers=answers,
            store_address=join(resolve(broker.config.broker_ip1), broker.port),
        ),
        ResetHandler(
            config=broker.config,
            store=broker.store,
            topics=broker.topics,
            offsets=broker.offsets,
            members=broker.members,
            answers=answers,
        ),
        RelayHandler(config=broker.config, store=broker.store, members=broker.members),
        ClientAdmin(members=broker.members, clock=broker.clock),
    )
