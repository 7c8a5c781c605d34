"""``make ecommerce``: a broker, a day of the shop with Spark beside it, and a check of the books.

python -m examples.ecommerce [--orders N] [--folder FOLDER]
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from cometmq.admin.node import NodeProcess
from cometmq.spark.session import local_session
from examples.ecommerce.books import Books
from examples.ecommerce.funnel import collected, follow, minutes, revenue
from examples.ecommerce.shop import Plan, open_shop

#: The broker soon checks transactions whose outcome it did not receive.
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}


def run(plan: Plan, folder: Path) -> bool:
    """Run everything. Return whether the books are consistent and Spark computed the same."""
    node = NodeProcess(folder / "store", settings=SETTINGS)
    node.start()
    try:
        spark = local_session("ecommerce")
        query = follow(spark, node.namesrv, folder)
        outcome = asyncio.run(open_shop(node.namesrv, folder, plan))
        query.processAllAvailable()
        query.stop()
        found = minutes(spark, folder).cache()
        by_spark = collected(found)
        revenue(found).show(100)
        spark.stop()
    finally:
        node.terminate()
    print(", ".join(f"{count} {what}" for what, count in outcome.counts.items()))
    books = Books(folder)
    problems = books.wrong(outcome.charges, sum(plan.items.values()))
    if by_spark != books.minutes():
        problems.append("Spark's minutes are those of the books")
    books.close()
    for problem in problems:
        print("does NOT hold:", problem)
    if not problems:
        print("the books are right, and Spark has the same")
    return not problems


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.ecommerce")
    parser.add_argument("--orders", type=int, default=600)
    parser.add_argument("--folder", type=Path, help="keep the databases and Spark's files here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shop-") as place:
        kept = options.folder or Path(place)
        kept.mkdir(parents=True, exist_ok=True)
        sys.exit(0 if run(Plan(options.orders), kept) else 1)
