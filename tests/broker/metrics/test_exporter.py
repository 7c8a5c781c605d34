"""Dashboards and alerts for rocketmq-exporter find what they ask for."""

from __future__ import annotations

import shutil
from pathlib import Path

from cometmq.broker.metrics import catalog
from cometmq.cli.node import node_config, running_node
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.monitoring.series import Kind, KnownFrom
from cometmq.testing.cluster import SMALL_FILES
from tests.architecture.rules import ROOT
from tests.monitoring.scraping import scrape

SETTINGS = {**SMALL_FILES, "metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
#: All metrics of rocketmq-exporter by their labels (upstream: RMQMetricsCollector.java at e1ab2dd5,
#: June 2025), without "rocketmq_".
EXPORTER = {
    "cluster brokerIP broker": "broker_tps broker_qps broker_commitlog_diff",
    "cluster broker topic": """
        producer_tps producer_message_size producer_offset topic_retry_offset""",
    "cluster broker group": "producer_count topic_dlq_offset",
    "cluster broker topic group": """
        consumer_tps consumer_message_size consumer_offset send_back_nums
        group_get_latency_by_storetime group_consume_tps group_consume_total_offset""",
    "group topic countOfOnlineConsumers msgModel": "group_diff group_retrydiff group_dlqdiff",
    "caddr localaddr group": "group_count",
    "clientAddr clientId group topic": """
        client_consume_fail_msg_count client_consume_fail_msg_tps client_consume_ok_msg_tps
        client_consume_rt client_consumer_pull_rt client_consumer_pull_tps""",
    "cluster brokerIP brokerHost des boottime broker_version": """
        brokeruntime_msg_put_total_today_now brokeruntime_msg_puttotal_todaymorning
        brokeruntime_msg_puttotal_yesterdaymorning brokeruntime_msg_gettotal_today_now
        brokeruntime_msg_gettotal_todaymorning brokeruntime_msg_gettotal_yesterdaymorning
        brokeruntime_dispatch_behind_bytes brokeruntime_dispatch_maxbuffer
        brokeruntime_put_message_size_total brokeruntime_put_message_average_size
        brokeruntime_putmessage_times_total brokeruntime_putmessage_entire_time_max
        brokeruntime_getmessage_entire_time_max brokeruntime_put_latency_99
        brokeruntime_put_latency_999 brokeruntime_earliest_message_timestamp
        brokeruntime_start_accept_sendrequest_time brokeruntime_pagecache_lock_time_mills
        brokeruntime_commitlog_disk_ratio brokeruntime_consumequeue_disk_ratio
        brokeruntime_commitlog_maxoffset brokeruntime_commitlog_minoffset
        brokeruntime_commitlogdir_capacity_total brokeruntime_commitlogdir_capacity_free
        brokeruntime_remain_howmanydata_toflush brokeruntime_remain_transientstore_buffer_numbs
        brokeruntime_put_tps10 brokeruntime_put_tps60 brokeruntime_put_tps600
        brokeruntime_getfound_tps10 brokeruntime_getfound_tps60 brokeruntime_getfound_tps600
        brokeruntime_getmiss_tps10 brokeruntime_getmiss_tps60 brokeruntime_getmiss_tps600
        brokeruntime_gettotal_tps10 brokeruntime_gettotal_tps60 brokeruntime_gettotal_tps600
        brokeruntime_gettransfered_tps10 brokeruntime_gettransfered_tps60
        brokeruntime_gettransfered_tps600 brokeruntime_send_threadpool_queue_size
        brokeruntime_send_threadpoolqueue_capacity
        brokeruntime_send_threadpoolqueue_headwait_timemills
        brokeruntime_pull_threadpoolqueue_size brokeruntime_pull_threadpoolqueue_capacity
        brokeruntime_pull_threadpoolqueue_headwait_timemills
        brokeruntime_query_threadpoolqueue_size brokeruntime_query_threadpool_queue_capacity
        brokeruntime_query_threadpoolqueue_headwait_timemills
        brokeruntime_pmdt_0ms brokeruntime_pmdt_0to10ms brokeruntime_pmdt_10to50ms
        brokeruntime_pmdt_50to100ms brokeruntime_pmdt_100to200ms brokeruntime_pmdt_200to500ms
        brokeruntime_pmdt_500to1s brokeruntime_pmdt_1to2s brokeruntime_pmdt_2to3s
        brokeruntime_pmdt_3to4s brokeruntime_pmdt_4to5s brokeruntime_pmdt_5to10s
        brokeruntime_pmdt_10stomore""",
}
LABELS = {
    f"rocketmq_{name}": tuple(labels.split())
    for labels, names in EXPORTER.items()
    for name in names.split()
}
#: docs/monitoring.md says why.
MISSING = {
    "rocketmq_group_count",
    "rocketmq_group_consume_tps",
    "rocketmq_group_consume_total_offset",
    "rocketmq_client_consume_fail_msg_count",
    "rocketmq_client_consume_fail_msg_tps",
    "rocketmq_client_consume_ok_msg_tps",
    "rocketmq_client_consume_rt",
    "rocketmq_client_consumer_pull_rt",
    "rocketmq_client_consumer_pull_tps",
}


def test_names_types_and_labels_are_those_of_the_exporter() -> None:
    ours = {each.name: each for each in catalog.METRICS if each.known_from is KnownFrom.EXPORTER}
    assert ours.keys() == LABELS.keys() - MISSING
    for name, metric in ours.items():
        assert (metric.kind, metric.labels) == (Kind.GAUGE, LABELS[name]), name


def test_the_page_names_what_is_missing() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    section = page.partition("## In place of rocketmq-exporter")[2].partition("\n## ")[0]
    assert {name for name in LABELS if f"`{name}`" in section} >= MISSING
    assert f"{len(LABELS) - len(MISSING)} of its {len(LABELS)} metrics" in section


async def test_metrics_of_the_state_have_its_numbers(tmp_path: Path) -> None:
    config = node_config(tmp_path, SETTINGS)
    async with running_node(config, SystemClock()) as node, Client(node.namesrv) as client:
        await client.send("orders", b"x")
        found = await scrape(node.monitoring)
    shown = {name: kind for name, kind in found.kinds.items() if name.startswith("rocketmq_broke")}
    for name in LABELS:
        if name.startswith("rocketmq_brokeruntime_"):
            assert shown[name] == "gauge", name
            assert found.labels_of(name) == set(LABELS[name]), name
    start = "rocketmq_brokeruntime_"
    total = found.value(f"{start}commitlogdir_capacity_total")
    assert total == shutil.disk_usage(tmp_path).total
    assert 0 < found.value(f"{start}commitlogdir_capacity_free") < total
    assert found.value(f"{start}remain_howmanydata_toflush") < 1 << 20
    assert found.value(f"{start}remain_transientstore_buffer_numbs") == (1 << 31) - 1
    assert found.value(f"{start}send_threadpoolqueue_capacity") == 10_000
    assert found.value(f"{start}pull_threadpoolqueue_headwait_timemills") == 0
    counts = [found.value(name) for name in LABELS if "_pmdt_" in name]
    assert (len(counts), sum(counts[3:])) == (13, 0), "no put took 50 ms"
