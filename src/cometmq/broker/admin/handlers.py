"""The request handlers for operators: statistics, settings, topics, groups, progress, resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.broker import BrokerAdmin
from cometmq.broker.admin.clients import ClientAdmin
from cometmq.broker.admin.groups import GroupAdmin
from cometmq.broker.admin.longanswers import LongAnswers
from cometmq.broker.admin.progress import ProgressAdmin
from cometmq.broker.admin.store import StoreAdmin
from cometmq.broker.admin.topics import TopicAdmin
from cometmq.broker.consumers.consumerproxy import RelayHandler
from cometmq.broker.consumers.resetoffset import ResetHandler
from cometmq.broker.query import QueryHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.context import Context, Tables
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.broker.send.acknowledgement import Appender
    from cometmq.broker.stats import BrokerStats
    from cometmq.net.router import HandlerPart


def admin_parts(
    context: Context,
    tables: Tables,
    *,
    appender: Appender,
    delivery: DelayDelivery,
    stats: BrokerStats,
    facts: Callable[[], dict[str, str]],
    store_address: str,
) -> tuple[HandlerPart, ...]:
    """Return the handlers that serve operators and their tools.

    ``facts`` returns entries for the runtime information, ``store_address`` is "ip:port".
    """
    config, store, clock = context.config, context.store, context.clock
    answers = LongAnswers(clock)
    return (
        QueryHandler(config=config, store=store),
        StoreAdmin(store=store, offsets=tables.offsets, appender=appender, clock=clock),
        BrokerAdmin(
            config=config,
            store=store,
            topics=tables.topics,
            delivery=delivery,
            stats=stats,
            clock=clock,
            facts=facts,
        ),
        TopicAdmin(
            config=config,
            store=store,
            topics=tables.topics,
            offsets=tables.offsets,
            members=tables.members,
            stats=stats,
            answers=answers,
            appender=appender,
        ),
        GroupAdmin(
            groups=tables.groups,
            offsets=tables.offsets,
            delivery=delivery,
            stats=stats,
            clock=clock,
        ),
        ProgressAdmin(context, tables, stats=stats, answers=answers, store_address=store_address),
        ResetHandler(
            config=config,
            store=store,
            topics=tables.topics,
            offsets=tables.offsets,
            members=tables.members,
            answers=answers,
        ),
        RelayHandler(config=config, store=store, members=tables.members),
        ClientAdmin(members=tables.members, clock=clock),
    )
