"""A plugin of dbt-duckdb: each Parquet table that CometMQ wrote becomes a view of its files."""

from typing import Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt_common.exceptions import DbtRuntimeError
from duckdb import DuckDBPyConnection

from cometmq.spark.tables.parquet import ParquetTable


# --8<-- [start:plugin]
class Plugin(BasePlugin):
    """Views in the schema ``schema``; ``tables`` has the path of each, by its name."""

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """List the files of the committed batches. This happens once, when dbt starts, so all
        models and tests see the same messages while a stream goes on writing."""
        self._schema = plugin_config["schema"]
        self._files = {name: committed(path) for name, path in plugin_config["tables"].items()}

    def configure_connection(self, conn: DuckDBPyConnection) -> None:
        """Create the views."""
        conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
        for name, files in self._files.items():
            listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
            conn.execute(
                f'CREATE OR REPLACE VIEW "{self._schema}"."{name}" AS '
                f"SELECT * FROM read_parquet([{listed}], hive_partitioning = true)"
            )


def committed(path: str) -> list[str]:
    """Return the paths of a table's files."""
    files = [url.removeprefix("file://") for url in ParquetTable(path).files()]
    if not files:
        raise DbtRuntimeError(f"{path} has no batch yet: archive messages first")
    return files


# --8<-- [end:plugin]
