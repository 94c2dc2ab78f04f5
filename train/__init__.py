"""Train models on streams of tasks with TAG and its baselines, and report what they remember."""
