"""How long from a state to the next batch, and how large is the state, wherever it was taken? Beside torchdata's.

torchdata's is compared where it is installed (``pip install torchdata``); it keeps no order of its own, so that its
time grows with the position: it is asked for the smaller sets alone.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from torch.utils.data import Dataset

from benchmarks.rounds import judge, run
from lit_loader import DataLoader

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

SIZES, PARTS, BATCH_SIZE = (10**4, 10**6, 10**8), (0.0, 0.5, 0.99), 64
MOST_OF_TORCHDATA = 10**6
STEPS = 2000


class Indices(Dataset[int]):
    """Costs nothing."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


def ours(size: int) -> DataLoader[int]:
    """Return our loader, shuffled."""
    return DataLoader(Indices(size), BATCH_SIZE, shuffle=True, seed=0)


def our_state(size: int, part: float) -> dict[str, Any]:
    """Return the state at a part of an epoch, by setting the number of batches that were received."""
    loader = ours(size)
    iterator = iter(loader)
    next(iterator)
    progress: Any = loader._epochs._progress
    progress._num_received = int(len(loader) * part)
    return loader.state_dict()


def torchdata_state(size: int, part: float) -> dict[str, Any]:
    """Return the state of torchdata's loader after a part of an epoch, which takes a pass."""
    loader = StatefulDataLoader(Indices(size), BATCH_SIZE, shuffle=True)
    iterator = iter(loader)
    for _ in range(max(1, int(len(loader) * part))):
        next(iterator)
    state: dict[str, Any] = loader.state_dict()
    return state


def to_first_batch(loader: Any, state: dict[str, Any]) -> float:
    """Return the seconds from loading a state to the first batch."""
    start = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - start


def sized(state: Any) -> int:
    """Return the bytes of a state as JSON."""
    return len(json.dumps(state, default=repr))


def every_step(loader: Any) -> float:
    """Return the seconds of a `state_dict()` after every batch."""
    iterator, spent = iter(loader), 0.0
    for _ in range(STEPS):
        next(iterator)
        start = time.perf_counter()
        loader.state_dict()
        spent += time.perf_counter() - start
    return spent / STEPS


def main(rounds: int) -> None:
    """Answer for sizes and positions, and for a state at every step."""
    print("\nmilliseconds from load_state_dict to the first batch (no workers), and bytes of the state")
    flat: list[float] = []
    for size in SIZES:
        medians = []
        for part in PARTS:
            state = our_state(size, part)
            line = f"  {size:>11,} samples at {part:4.0%}"
            found = [to_first_batch(ours(size), state) * 1e3 for _ in range(rounds)]
            medians.append(statistics.median(found))
            line += (
                f"   ours {medians[-1]:8.2f} ms ({min(found):.2f} to {max(found):.2f}), {sized(state)} bytes"
            )
            if StatefulDataLoader is not None and size <= MOST_OF_TORCHDATA:
                theirs = torchdata_state(size, part)
                times = [
                    to_first_batch(StatefulDataLoader(Indices(size), BATCH_SIZE, shuffle=True), theirs) * 1e3
                    for _ in range(min(rounds, 3))
                ]
                line += f"   torchdata {statistics.median(times):8.2f} ms, {sized(theirs)} bytes"
            print(line)
        flat.append(max(medians) / min(medians))
    judge("slowest position as a multiple of the fastest, over the sizes", flat, at_most=1.5)
    print(f"\nmicroseconds of state_dict() at every step, {STEPS} steps")
    taken = [every_step(DataLoader(Indices(10**6), 4, shuffle=True, seed=0)) * 1e6 for _ in range(rounds)]
    judge("state_dict() at every step", taken, at_most=50, unit=" us")
    if StatefulDataLoader is None:
        print("  torchdata is not installed: nothing to compare with")
        return
    others = [every_step(StatefulDataLoader(Indices(10**6), 4, shuffle=True)) * 1e6 for _ in range(rounds)]
    print(f"  torchdata's: {statistics.median(others):.1f} us ({min(others):.1f} to {max(others):.1f})")


if __name__ == "__main__":
    run(main, rounds=7)
