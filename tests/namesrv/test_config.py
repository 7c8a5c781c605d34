"""A name server's settings under upstream's names."""

from cometmq.core import settings
from cometmq.namesrv.config import NamesrvConfig


def test_upstreams_property_names_are_known() -> None:
    config, used = settings.build(
        NamesrvConfig,
        {
            "listenPort": "9877",
            "bindAddress": "0.0.0.0",
            "kvConfigPath": "kv.json",
            "orderMessageEnable": "true",
        },
    )
    assert len(used) == 4
    assert config == NamesrvConfig("0.0.0.0", 9877, "kv.json", order_message_enable=True)


def test_others_cannot_reach_or_change_it_unless_told() -> None:
    assert NamesrvConfig().bind_address == "127.0.0.1"
    assert not NamesrvConfig().remote_admin_enable
