"""Settings of the HTTP port for monitoring systems (upstream: BrokerConfig.java of 5.x)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cometmq.core.settings import setting


class MetricsExporterType(Enum):
    """Exporters of metrics: none, or an HTTP port for Prometheus."""

    DISABLE = "DISABLE"
    PROM = "PROM"


@dataclass(kw_only=True)
class MonitoringFields:
    """Fields of a server's configuration that say whether and where it serves HTTP."""

    __slots__ = ()  # so that a configuration may have further bases

    metrics_exporter_type: MetricsExporterType = setting(
        MetricsExporterType.DISABLE,
        "`PROM` serves `/metrics`, `/healthz` and `/readyz` over HTTP, also while the store "
        "recovers",
        rocketmq="a setting of RocketMQ 5, whose port has only metrics",
        see="monitoring.md",
    )
    metrics_prom_exporter_port: int = setting(
        5557,
        "port for that; 0 picks a free one",
        least=0,
        most=65535,
        rocketmq="a setting of RocketMQ 5",
    )
    metrics_prom_exporter_host: str = setting(
        "",
        "address for that; defaults to `bindAddress`. There are neither accounts nor TLS",
        rocketmq="a setting of RocketMQ 5, the advertised address by default",
    )
    metrics_prom_exporter_names: str = setting(
        "",
        "names with a dot, separated by commas, by which the port is asked, besides the name of "
        "the machine; addresses and names without a dot need none",
        see="monitoring.md#names",
    )
    metrics_otel_cardinality_limit: int = setting(
        10_000,
        "most series of one metric; those beyond it are left out and counted",
        least=1,
        rocketmq="a setting of RocketMQ 5, 50000 by default",
    )

    @property
    def metrics_names(self) -> list[str]:
        """Host names, besides the machine's, that requests to the port may contain."""
        words = self.metrics_prom_exporter_names.split(",")
        return [word.strip() for word in words if word.strip()]

    @property
    def serves_metrics(self) -> bool:
        """True if the server has an HTTP port."""
        return self.metrics_exporter_type is MetricsExporterType.PROM
