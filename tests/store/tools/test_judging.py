"""What single finds mean for the whole store."""

from pathlib import Path

from tests.store.tools.verifying import damage, kinds, verified


def test_tables_and_checkpoint(unsealed: Path) -> None:
    config = unsealed / "config"
    config.mkdir()
    (config / "topics.json").write_text('{"topicConfigTable":{}}')
    (config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5}}}')
    assert verified(unsealed).is_sound
    for text in ("{", "[]", "{}", ""):
        (config / "consumerOffset.json").write_text(text)
        (found,) = damage(verified(unsealed))
        assert found.path.endswith("consumerOffset.json")
    (config / "consumerOffset.json").unlink()
    checkpoint = unsealed / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    assert kinds(verified(unsealed)) == {"checkpoint"}
    checkpoint.unlink()
    assert "checkpoint" in kinds(verified(unsealed))
