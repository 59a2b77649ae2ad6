"""Comparison of the worker settings found by ``lit-loader tune`` with a full grid, in the same session.

    python -m benchmarks.tune [SECONDS] [KEY=VALUE ...]

Uses the embedded set unless `dataset` or `experiment` selects another.

Every setting of the grid is measured `ROUNDS` times in alternation; medians count. The settings found are measured
again with the grid, so that a lucky measurement during the search does not count. Takes about two minutes in addition
to the search on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.app.tuning import INLINE, METHODS, Candidate, LoaderMeter, Measurement, median, search_settings
from lit_loader.foundation.host import count_cores

ROUNDS = 5
WINDOW_S = 1.0


def main(words: list[str] | None = None) -> None:
    """Tune, measure the grid, and print the ratio."""
    arguments = sys.argv[1:] if words is None else words
    budget_s = float(arguments[0]) if arguments and arguments[0].isdigit() else 60.0
    overrides = [word for word in arguments if "=" in word]
    is_named = any(word.startswith(("dataset=", "experiment=")) for word in overrides)
    cfg = compose_config(overrides=overrides if is_named else ["experiment=shapes", *overrides])
    torch.set_num_threads(cfg.num_threads)
    datamodule = build_datamodule(cfg)
    datamodule.prepare_data()
    meter = LoaderMeter(datamodule)
    cores = count_cores()
    methods = ["thread", METHODS[1]]
    most = max(4, 2 * cores)
    start = time.perf_counter()
    tuned = search_settings(meter, num_cores=cores, methods=methods, max_workers=most, budget_s=budget_s)
    print(f"tuned in {time.perf_counter() - start:.0f} s: {tuned.best!s}")

    grid = full_grid(num_workers=sorted({1, 2, 3, 4, cores, 2 * cores}), methods=methods, prefetch_factors=[2, 4])
    grid += [] if tuned.best in grid else [tuned.best]
    measured: dict[Candidate, list[Measurement]] = {candidate: [] for candidate in grid}
    for number in range(ROUNDS):
        for candidate in grid if number % 2 == 0 else grid[::-1]:
            measured[candidate].append(meter(candidate, WINDOW_S))
    rates = {candidate: median(measurement).samples_per_s for candidate, measurement in measured.items()}
    for candidate in sorted(rates, key=lambda measurement: -rates[measurement]):
        candidate_rates = [measurement.samples_per_s for measurement in measured[candidate]]
        mark = "  <- picked" if candidate == tuned.best else ""
        spread = f"{min(candidate_rates):.0f} to {max(candidate_rates):.0f}"
        print(f"  {candidate!s:26} {rates[candidate]:9.1f} ({spread}) samples/s{mark}")
    print(f"the pick reaches {rates[tuned.best] / max(rates.values()):.1%} of the best of the grid")


def full_grid(
    *, num_workers: Sequence[int], methods: Sequence[str], prefetch_factors: Sequence[int]
) -> list[Candidate]:
    """Return loading without workers, and every combination of the settings."""
    return [
        INLINE,
        *(Candidate(n, method, p) for n in num_workers if n for method in methods for p in prefetch_factors),
    ]


if __name__ == "__main__":
    main()
