"""Run the benchmarks of the loader: ``python -m benchmarks --rounds 5``. The others are run one by one."""

from __future__ import annotations

from benchmarks import (
    class_weights,
    classification,
    decoded_cache,
    detection,
    draws,
    epoch_gap,
    heavy_tail,
    mixing,
    overhead,
    padding,
    recovery,
    resume,
    sample_profile,
    stage_marks,
    startup,
    tiles,
    transport,
    walk,
)
from benchmarks.rounds import run


def main(rounds: int) -> None:
    """Run all benchmarks of the loader."""
    questions = (class_weights, overhead, transport, detection, classification, decoded_cache, tiles, mixing)
    more_questions = (
        sample_profile,
        stage_marks,
        epoch_gap,
        heavy_tail,
        startup,
        recovery,
        resume,
        padding,
        draws,
        walk,
    )
    for question in (*questions, *more_questions):
        question.main(rounds)


if __name__ == "__main__":
    run(main, rounds=5)
