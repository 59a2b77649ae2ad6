"""Time from loading a state to the next batch, and size of the state, at several positions; compared with torchdata.

torchdata is measured if it is installed (``pip install torchdata``). It replays the sampler, so its time grows with the
position; it is measured only for the smaller sets.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from benchmarks.rounds import judge, run
from lit_loader import DataLoader

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None

SIZES = (10**4, 10**6, 10**8)
PARTS = (0.0, 0.5, 0.99)
BATCH_SIZE = 64
MOST_OF_TORCHDATA = 10**6
STEPS = 2000


def ours(size: int, batch_size: int = BATCH_SIZE) -> Any:
    """Return lit_loader's loader with shuffling, over a range, which is a dataset of its numbers."""
    dataset: Any = range(size)
    return DataLoader(dataset, batch_size, shuffle=True, seed=0)


def torchdatas(size: int, batch_size: int = BATCH_SIZE) -> Any:
    """Return torchdata's loader of the same batches."""
    return StatefulDataLoader(range(size), batch_size, shuffle=True)


def our_state(size: int, part: float) -> dict[str, Any]:
    """Return the state after a part of an epoch, by setting the number of received batches."""
    loader = ours(size)
    iterator = iter(loader)
    next(iterator)
    progress: Any = loader._epochs._progress
    progress.num_received = int(len(loader) * part)
    state: dict[str, Any] = loader.state_dict()
    return state


def torchdata_state(size: int, part: float) -> dict[str, Any]:
    """Return the state of torchdata's loader after a part of an epoch, by iterating up to there."""
    loader = torchdatas(size)
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


def every_step(loader: Any) -> float:
    """Return the mean time in seconds of `state_dict()`, called after every batch."""
    iterator = iter(loader)
    spent = 0.0
    for _ in range(STEPS):
        next(iterator)
        start = time.perf_counter()
        loader.state_dict()
        spent += time.perf_counter() - start
    return spent / STEPS


def described(times_ms: list[float], state: Any) -> str:
    """Return the median and the range of times, and the size of a state in bytes of JSON."""
    spread = f"{min(times_ms):.2f} to {max(times_ms):.2f}"
    return f"{statistics.median(times_ms):8.2f} ms ({spread}), {len(json.dumps(state, default=repr))} bytes"


def main(rounds: int) -> None:
    """Measure sizes and positions, and a state at every step."""
    print("\nmilliseconds from load_state_dict to the first batch (no workers), and bytes of the state")
    flat: list[float] = []
    for size in SIZES:
        medians = []
        for part in PARTS:
            state = our_state(size, part)
            times_ms = [to_first_batch(ours(size), state) * 1e3 for _ in range(rounds)]
            medians.append(statistics.median(times_ms))
            print(f"  {size:>11,} samples at {part:4.0%}   {described(times_ms, state)}")
            if StatefulDataLoader is not None and size <= MOST_OF_TORCHDATA:
                state = torchdata_state(size, part)
                times_ms = [to_first_batch(torchdatas(size), state) * 1e3 for _ in range(min(rounds, 3))]
                print(f"  {'torchdata':>26s}   {described(times_ms, state)}")
        flat.append(max(medians) / min(medians))
    judge("slowest position as a multiple of the fastest, over the sizes", flat, at_most=1.5)
    print(f"\nmicroseconds of state_dict() at every step, {STEPS} steps")
    our_times = [every_step(ours(10**6, batch_size=4)) * 1e6 for _ in range(rounds)]
    judge("state_dict() at every step", our_times, at_most=50, unit=" us")
    if StatefulDataLoader is None:
        print("  torchdata is not installed, so it is not compared")
        return
    their_times = [every_step(torchdatas(10**6, batch_size=4)) * 1e6 for _ in range(rounds)]
    print(f"  torchdata's: {statistics.median(their_times):.1f} us ({min(their_times):.1f} to {max(their_times):.1f})")


if __name__ == "__main__":
    run(main, rounds=7)
