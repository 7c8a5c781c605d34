"""Every fault happens and is repaired."""

from collections import Counter

from tests.simulation.cluster.run import Run

#: One of them has two slaves.
SEEDS = (0, 5)


def test_every_fault_happens_and_is_repaired() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        run = Run(seed)
        cluster = run.cluster
        run.loop.run_until_complete(cluster.start())
        run.adversary.start_producer()
        for group in run.groups:
            cluster.add_member(group)
        for fault in (run.adversary.strike, *run.adversary._faults, run.adversary._jump_clock):
            fault()
            run.loop.run_until_complete(cluster.clock.sleep_ms(6_000))
        run.loop.run_until_complete(run.operator.heal())
        assert all(machine.is_serving for machine in cluster.brokers)
        assert all(machine.is_up for machine in cluster.namesrvs)
        run.adversary.rest()
        for line in run.trace.lines:
            found[" ".join(line.split()[1:3])] += 1
        run.close()
    expected = {
        "kill broker", "broker ends", "stop broker", "start broker", "kill namesrv",
        "start namesrv", "reset connections", "join network",
    }  # fmt: skip
    assert expected <= set(found)
    assert any(line.startswith("cut ") for line in found)
    assert any(line.startswith("clock of") for line in found)
    assert any(line.startswith("weather ") for line in found)
    assert any(line.endswith(" leaves") for line in found)


def test_one_that_rests_repairs_nothing() -> None:
    run = Run(1)
    run.loop.run_until_complete(run.cluster.start())
    run.adversary.brokers.kill()
    run.adversary.rest()
    run.loop.run_until_complete(run.cluster.clock.sleep_ms(10_000))
    assert not run.cluster.broker.is_up
    run.close()
