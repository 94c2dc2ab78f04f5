"""Programs that measure; run one with ``python -m benchmarks.NAME``."""
