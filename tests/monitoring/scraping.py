"""Scrapes of an HTTP port, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer: status and text."""

    status: int
    text: str
    content_type: str = ""


def fetch(address: str, path: str, method: str = "GET", timeout_s: float = 10) -> Fetched:
    """Ask an HTTP port once."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Fetched(answer.status, text, answer.headers.get("Content-Type", ""))
    finally:
        connection.close()


async def fetched(address: str, path: str, method: str = "GET") -> Fetched:
    """Ask an HTTP port whose servers may be in this loop."""
    return await asyncio.to_thread(fetch, address, path, method)


class Scrape:
    """Parsed metrics: values by name and labels, types by name."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            self.samples += [(each.name, each.labels, each.value) for each in family.samples]

    def find(self, name: str, /, **labels: str) -> Iterator[float]:
        """Return the values of the series that have these labels."""
        for found, has, value in self.samples:
            if found == name and labels.items() <= has.items():
                yield value

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sum of these series. Raise LookupError if there are none."""
        values = [*self.find(name, **labels)]
        if not values:
            raise LookupError(f"no {name} {labels}")
        return sum(values)

    def labels_of(self, name: str) -> set[str]:
        """Return the names of all labels of a metric."""
        return {label for found, has, _ in self.samples if found == name for label in has}


async def scrape(address: str) -> Scrape:
    """Return the metrics of a port whose servers may be in this loop."""
    answer = await fetched(address, "/metrics")
    assert answer.status == 200, answer
    return Scrape(answer.text)


def shown(labels: Mapping[str, str]) -> str:
    """Return labels as Prometheus writes them."""
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
