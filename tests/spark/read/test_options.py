"""Options: each is read once, and a bad one is named."""

import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.read.options import Caps, for_stream, parse
from cometmq.spark.read.topics import Topics

BASE = {"nameservers": "127.0.0.1:9876", "topic": "T"}


def test_two_options_are_enough() -> None:
    options = parse(BASE)
    assert options.access.nameservers == ("127.0.0.1:9876",)
    assert options.topics == Topics(("T",))
    assert options.starting is None
    assert options.ending is None
    assert options.caps == Caps()
    assert options.consumer_group is None
    assert options.fail_on_data_loss
    assert options.row_filter.matches_all


def test_names_are_known_in_any_case_and_by_their_alias() -> None:
    options = parse(
        {"namesrv": "a:1;b:2", "TOPIC": "x, y,x", "maxoffsetspertrigger": "5", "filter": "a || b"}
    )
    assert options.access.nameservers == ("a:1", "b:2")
    assert options.topics == Topics(("x", "y"))
    assert options.caps.rows_max == 5
    assert options.row_filter.tags.tags == {"a", "b"}


@pytest.mark.parametrize(
    ("extra", "option"),
    [
        ({"nameservers": "127.0.0.1"}, "nameservers"),
        ({"nameservers": ";"}, "nameservers"),
        ({"nameservers": "h:0"}, "nameservers"),
        ({"topic": " , "}, "topic"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"T": {"b": {"x": 1}}}'}, "startingOffsets"),
        ({"endingOffsets": '{"T": {"b": {"0": -3}}}'}, "endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "startingTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"minPartitions": "many"}, "minPartitions"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"filter": "||"}, "filter"),
        ({"racks": '["broker-a"]'}, "racks"),
        ({"racks": '{"x": ["broker-a"], "y": ["broker-a"]}'}, "racks"),
    ],
)
def test_a_bad_value_names_its_option(extra: dict[str, str], option: str) -> None:
    with pytest.raises(BadOption, match=f"option '{option}'") as caught:
        parse({**BASE, **extra})
    assert caught.value.option == option


def test_a_group_is_told_unless_it_is_not_to_be() -> None:
    assert parse({**BASE, "consumerGroup": "g"}).reports_lag
    assert not parse({**BASE, "consumerGroup": "g", "reportLag": "false"}).reports_lag
    with pytest.raises(BadOption, match="'reportLag': needs consumerGroup"):
        parse({**BASE, "reportLag": "true"})


@pytest.mark.parametrize("missing", ["nameservers", "topic"])
def test_a_missing_option_is_named(missing: str) -> None:
    with pytest.raises(BadOption, match=f"'{missing}': is required"):
        parse({key: value for key, value in BASE.items() if key != missing})


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(BadOption, match="did you mean 'startingOffsets'"):
        parse({**BASE, "startingOffset": "latest"})
    with pytest.raises(BadOption, match="known are nameservers"):
        parse({**BASE, "xyz": "1"})


@pytest.mark.parametrize("ending", [{"endingOffsets": "latest"}, {"endingTimestamp": "5"}])
def test_a_stream_has_no_end(ending: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=next(iter(ending))):
        for_stream(parse({**BASE, **ending}))
    assert for_stream(parse(BASE)) == parse(BASE)
