"""Who keeps a connection when more come than a master takes."""

from dataclasses import dataclass

from cometmq.replication.admission import SlaveAdmission


@dataclass(eq=False)
class Connection:
    host: str
    has_copied: bool = False


def places() -> SlaveAdmission[Connection]:
    return SlaveAdmission(silent_max=3, slaves_max=3)


def hosts(connections: dict[Connection, None]) -> list[str]:
    return [connection.host for connection in connections]


def slave_of(made: SlaveAdmission[Connection], host: str, *, copied: bool = False) -> Connection:
    """A connection that has reported an offset, and perhaps more."""
    connection = Connection(host)
    made.connected(connection)
    made.reported(connection)
    if copied:
        connection.has_copied = True
        made.copied(connection)
    return connection


def test_a_newcomer_takes_the_place_of_the_machine_that_has_most() -> None:
    made = places()
    for host in ("slave", "stranger", "stranger"):
        assert made.connected(Connection(host)) is None
    gone = made.connected(Connection("other"))
    assert gone is not None
    assert gone.host == "stranger"
    assert hosts(made.silent) == ["slave", "stranger", "other"]


def test_the_oldest_silent_one_goes_for_a_newcomer_of_its_machine() -> None:
    made, all_ = places(), [Connection("a") for _ in range(5)]
    assert [made.connected(one) for one in all_] == [None, None, None, all_[0], all_[1]]


def test_silent_ones_take_no_place_of_a_slave() -> None:
    made = places()
    slave = slave_of(made, "slave")
    for number in range(10):
        made.connected(Connection(f"stranger-{number}"))
    assert hosts(made.slaves) == ["slave"]
    assert len(made.silent) == 3
    made.left(slave)
    assert not made.slaves


def test_who_copies_stays_when_others_only_report() -> None:
    made = places()
    slave = slave_of(made, "a", copied=True)
    for _ in range(10):
        slave_of(made, "a")
    assert slave in made.slaves
    assert len(made.slaves) == 3


def test_a_machine_that_had_a_slave_comes_before_others() -> None:
    made = places()
    made.left(slave_of(made, "slave", copied=True))
    back = slave_of(made, "slave")
    for number in range(10):
        slave_of(made, f"stranger-{number}", copied=number > 7)
    assert back in made.slaves


def test_a_slave_comes_in_whoever_is_there() -> None:
    made = places()
    for _ in range(3):
        slave_of(made, "a", copied=True)
    slave = slave_of(made, "a")
    assert slave in made.slaves
    assert len(made.slaves) == 3


def test_machines_are_remembered_within_a_bound() -> None:
    made = places()
    for number in range(1_000):
        slave_of(made, f"h{number}", copied=True)
    assert len(made._hosts) == 64
