"""The request handlers for operators: statistics, settings, topics, groups, resets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.acl import AclAdmin
from cometmq.broker.admin.broker import BrokerAdmin, StoreAdmin
from cometmq.broker.admin.groups import ClientAdmin, GroupAdmin
from cometmq.broker.admin.longanswers import LongAnswers
from cometmq.broker.admin.offsets import ProgressAdmin, ResetHandler
from cometmq.broker.admin.topics import TopicAdmin
from cometmq.broker.consumers.consumerproxy import RelayHandler
from cometmq.broker.lookup import QueryHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.acl.control import AccessControl
    from cometmq.broker.context import BrokerContext
    from cometmq.broker.scheduled.delaylevels import DelayDelivery
    from cometmq.net.router import HandlerPart


def admin_parts(
    context: BrokerContext,
    *,
    delivery: DelayDelivery,
    facts: Callable[[], dict[str, str]],
    access: AccessControl | None,
    store_address: str,
) -> tuple[HandlerPart, ...]:
    """Return the handlers that serve operators and their tools.

    ``facts`` returns further entries for the runtime information; ``access`` is None without
    access control; ``store_address`` is the
    broker's "ip:port" in answers.
    """
    config, clock, store, stats = context.config, context.clock, context.store, context.stats
    topics, offsets, members = context.tables.topics, context.tables.offsets, context.tables.members
    answers = LongAnswers(clock)
    return (
        QueryHandler(config=config, store=store),
        StoreAdmin(store=store, offsets=offsets, appender=context.appender, clock=clock),
        BrokerAdmin(
            config=config,
            store=store,
            topics=topics,
            delivery=delivery,
            stats=stats,
            clock=clock,
            facts=facts,
        ),
        TopicAdmin(
            config=config,
            store=store,
            topics=topics,
            offsets=offsets,
            members=members,
            stats=stats,
            answers=answers,
            appender=context.appender,
        ),
        GroupAdmin(
            groups=context.tables.groups,
            offsets=offsets,
            delivery=delivery,
            stats=stats,
            clock=clock,
        ),
        ProgressAdmin(context, answers=answers, store_address=store_address),
        ResetHandler(
            config=config,
            store=store,
            topics=topics,
            offsets=offsets,
            members=members,
            answers=answers,
        ),
        AclAdmin(config, access, store_address),
        RelayHandler(config=config, store=store, members=members),
        ClientAdmin(members=members, clock=clock),
    )
