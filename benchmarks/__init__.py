"""Benchmarks: one question a file, ours beside torch's in the same run, printed as a ratio with its spread."""
