"""A name server's machine."""

from tests.simulation.cluster.test_machines import World


def test_a_broker_registers_with_the_name_server() -> None:
    world = World()
    world.namesrv.start()
    world.broker.start()
    assert world.wait(serving=True)
    broker = world.broker.broker
    assert broker is not None
    assert broker.topics.registration.registered_with == [world.namesrv.address]
    world.namesrv.clock.jump_wall(9_000_000)
    world.namesrv.kill()
    assert not world.namesrv.is_up
    world.loop.dispose()
