"""Programs of examples/ that use Spark, each on a small scale."""
