"""CPU time that measuring the stages adds to a detection sample, in one thread.

Each sample is made with a clock of stages, as in a loader, and without one, as by ``dataset[index]``, in turns and with
the same draws. `benchmarks.overhead` has the cost of a batch.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import detection
from benchmarks.photographs import write_photographs
from benchmarks.rounds import judge, run
from lit_loader.foundation.stage_times import StageClock

NUM_FILES = 32
NUM_SAMPLES = 128


def main(rounds: int) -> None:
    """Print the CPU time of a sample with and without a clock, and judge the difference."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder, "all"), NUM_FILES, size=detection.SIZE)
        dataset = detection.our_dataset(Path(folder), decode="fast", to_float=False)
        shares = []
        for number in range(rounds + 1):
            measured_us, plain_us = _medians_us(dataset)
            if number:
                shares.append(measured_us / plain_us - 1)
                print(f"  sample with a clock {measured_us:8.1f} us CPU, without {plain_us:8.1f} us CPU")
        judge("stage times, of a detection sample", shares, at_most=0.01)


def _medians_us(dataset: Any) -> tuple[float, float]:
    """Return the medians of a sample's CPU time with a clock and without one, over all samples."""
    clock = StageClock()
    contexts: tuple[Any, Any] = (clock, contextlib.nullcontext())
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(NUM_SAMPLES):
        # Whichever comes second finds the caches warm, so they change places.
        for measured in (number % 2, 1 - number % 2):
            torch.manual_seed(number)
            with contexts[measured]:
                clock.start_task()
                start = time.thread_time()
                dataset[number % NUM_FILES]
                seconds[measured].append(time.thread_time() - start)
    return statistics.median(seconds[0]) * 1e6, statistics.median(seconds[1]) * 1e6


if __name__ == "__main__":
    run(main)
