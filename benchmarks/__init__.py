"""Benchmarks: one question a file, lit_loader beside torch in the same run, printed as a ratio with its spread."""
