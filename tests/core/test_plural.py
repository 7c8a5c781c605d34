"""Numbers with their nouns."""

from cometmq.core.plural import plural


def test_a_number_has_its_noun_in_the_singular_or_the_plural() -> None:
    assert plural(0, "log file") == "0 log files"
    assert plural(1, "log file") == "1 log file"
    assert plural(2_500, "log file") == "2,500 log files"
    assert plural(1, "index entry", "index entries") == "1 index entry"
    assert plural(2, "key was", "keys were") == "2 keys were"
