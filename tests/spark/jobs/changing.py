"""Change messages for tests, and what the tables should be after them."""

import json
import random
from dataclasses import dataclass, field

Row = dict[str, object]


@dataclass
class World:
    """Two tables that change at random; ``rows`` is how they are now."""

    seed: int = 1
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    at_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def change(self) -> tuple[str, bytes]:
        """Change a row: its key and the message body."""
        pick = self._random
        place = (pick.choice(["regions", "users"]), f"AD-{pick.randrange(40):02}")
        self.numbers[place] = number = self.numbers.get(place, 0) + 1
        self.at_ms += pick.randrange(120_000)
        op = "update" if place in self.rows else "insert"
        row: Row | None = None
        if op == "update" and pick.random() < 0.25:
            op = "delete"
            del self.rows[place]
        else:
            row = {"code": place[1], "country": pick.choice(["AD", "FR"]), "name": "Ünï\u2028 'x'"}
            row |= {"population": number * 10**9, "parent": None}
            self.rows[place] = row
        return place[1], body(*place, op, number, row, self.at_ms)


def body(table: str, key: str, op: str, change: int, row: Row | None, at_ms: int = 0) -> bytes:
    """A change message."""
    found = {"table": table, "op": op, "key": key, "change": change, "at_ms": at_ms, "row": row}
    return json.dumps(found).encode()
