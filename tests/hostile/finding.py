"""What the fuzzer finds."""


class Finding(Exception):
    """Something wrong. `kind` is the same for all of the same kind."""

    def __init__(self, kind: str, more: str = "") -> None:
        self.kind = kind
        super().__init__(f"{kind}: {more}" if more else kind)
