"""Runs, one or many. Whoever launches them says where they are kept, and what the presets are."""
