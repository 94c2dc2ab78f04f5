"""One run: its config, its compiled functions, the loop, checkpoints, records, and its result."""
