"""Every job is what the frame expects."""

import inspect
import subprocess
import sys
from dataclasses import is_dataclass

import pytest

from cometmq.spark.jobs.job import BY_NAME, JOBS, Job


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_has_options_a_report_and_run(job: Job) -> None:
    module = job.load()
    assert is_dataclass(module.options)
    assert is_dataclass(module.report)
    assert list(inspect.signature(module.run).parameters) == ["spark", "options", "progress"]
    assert BY_NAME[job.name] is job


def test_the_names_alone_need_no_spark() -> None:
    code = (
        "import sys, cometmq.cli.commands.spark; "
        "print('pyspark' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"]
