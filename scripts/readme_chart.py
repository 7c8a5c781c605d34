"""Writes docs/images/beside-java.svg, the chart in the README, from benchmarks/recorded.json.

Run `python -m scripts.readme_chart` after `make bench BENCH=--record`; a test fails if it is old.
"""

import json
import os.path
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks" / "recorded.json"
CHART = ROOT / "docs" / "images" / "beside-java.svg"

#: The cases that are drawn: the name in the record, what the bar says.
CASES = {
    "start to first acknowledgement": "start until the first stored message",
    "idle RssAnon": "memory, idle",
    "processor time a single send": "processor time of a send",
    "transactions, 8 x 64": "transactions a second",
    "single 128 B, 8 x 64": "sends of 128 B a second",
    "SYNC_FLUSH, 128 B, 8 x 64": "sends a second, each synced to the device",
    "batch 64 x 128 B, 8 x 4": "messages a second, in batches of 64",
    "pull 32, tail, 8 consumers": "messages a second that 8 consumers pull",
    "single 1 KiB, 1 x 1, p50": "latency of one send, median",
    "single 1 KiB, 1 x 1, p99": "latency of one send, 99 %",
}
_STYLE = (
    "<style>svg{background:#fff}text{font:13px sans-serif;fill:#222}.t{font-size:15px;"
    "font-weight:bold}.m{fill:#666;font-size:11px}rect{fill:#1f77b4}line{stroke:#e07b00;"
    "stroke-width:2}@media(prefers-color-scheme:dark){svg{background:#161a1d}"
    "text{fill:#e6e6e6}.m{fill:#a0a0a0}rect{fill:#4a9fd8}}</style>"
)
_LABEL, _UNIT, _STEP, _TOP = 310, 24, 24, 62


def times_better(record: dict[str, dict[str, str | float]], case: str) -> float:
    """Return how many times as good as Java's broker a case is."""
    ratio = float(record[case]["ratio"])
    return ratio if record[case]["better"] == "more" else 1 / ratio


def chart(record: dict[str, dict[str, str | float]]) -> str:
    """Return the chart: one bar a case, as many units long as it is times better."""
    title = "CometMQ beside Apache RocketMQ 4.9.7: times as good"
    values = {text: times_better(record, case) for case, text in CASES.items()}
    width, height = _LABEL + int(_UNIT * max(values.values())) + 60, _TOP + _STEP * len(CASES) + 24
    days = sorted({str(record[case]["at"]).partition(" ")[0] for case in CASES})
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        _STYLE,
        f'<text x="12" y="24" class="t">{title}</text>',
        f'<text x="{_LABEL + _UNIT}" y="46" class="m" text-anchor="middle">Java = 1</text>',
    ]
    for row, (text, value) in enumerate(values.items()):
        top = _TOP + row * _STEP
        pieces += [
            f'<text x="{_LABEL - 10}" y="{top + 11}" text-anchor="end">{escape(text)}</text>',
            f'<rect x="{_LABEL}" y="{top}" width="{_UNIT * value:.0f}" height="14"/>',
            f'<text x="{_LABEL + _UNIT * value + 8:.0f}" y="{top + 11}">{value:.1f}</text>',
        ]
    bottom = _TOP + _STEP * len(CASES)
    x = _LABEL + _UNIT
    pieces += [
        f'<line x1="{x}" y1="50" x2="{x}" y2="{bottom - 8}"/>',
        f'<text x="12" y="{bottom + 12}" class="m">benchmarks/recorded.json, '
        f"{' and '.join(days)}, one machine of 2 cores, medians of 7 rounds</text>",
        "</svg>\n",
    ]
    return "\n".join(pieces)


if __name__ == "__main__":
    CHART.write_text(chart(json.loads(RECORDED.read_text(encoding="utf-8"))), encoding="utf-8")
    print(os.path.relpath(CHART))
