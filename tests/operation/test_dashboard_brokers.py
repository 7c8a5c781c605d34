"""The page of a cluster in which one broker is silent."""

import signal
from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from tests.dashboard.page import running_page
from tests.operation.test_start import running, start_words


async def test_a_silent_broker_hides_nothing_of_the_others(tmp_path: Path) -> None:
    own = {"brokerName": "broker-b", "storePathRootDir": str(tmp_path / "b"), "listenPort": "0"}
    settings = [word for key, value in own.items() for word in ("--set", f"{key}={value}")]
    with running(*start_words(tmp_path / "store")) as (_, ready):
        namesrv = ready["namesrv"]
        with running("broker", "-n", namesrv, *settings) as (broker, other):
            async with Client(namesrv) as client:
                admin = Admin(client.session)
                await admin.create_topic("both", queues=1)
            broker.send_signal(signal.SIGSTOP)  # a dead one leaves the name server at once
            async with running_page(namesrv) as page:
                first = await page.get("/")
                assert first.status == 200
                assert ready["broker"] in first.text
                assert other["broker"] in first.text
                assert 'class="process down"' in first.text
                answer = await page.get("/topics")
                assert answer.status == 200
                assert "both" in answer.text
