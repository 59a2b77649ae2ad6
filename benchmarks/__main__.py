"""Run the benchmarks of the loader: ``python -m benchmarks --rounds 5``; `benchmarks.tune` runs by itself."""

from __future__ import annotations

from benchmarks import class_weights, detection, epoch_gap, heavy_tail, overhead, startup
from benchmarks.rounds import run


def main(rounds: int) -> None:
    """Answer one question after the other."""
    for question in (class_weights, overhead, detection, epoch_gap, heavy_tail, startup):
        question.main(rounds)


if __name__ == "__main__":
    run(main, rounds=5)
