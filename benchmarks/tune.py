"""Does ``lit-loader tune`` find the best worker settings? Its pick beside a full grid, in the same session.

    python -m benchmarks.tune [SECONDS] [KEY=VALUE ...]

on the embedded set unless `dataset` or `experiment` names another.

Every setting of the grid is measured `ROUNDS` times, in turns; medians. The pick is measured again among them, so that
it gains nothing by a lucky measurement of the search's. About two minutes beyond the search on two cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from lit_loader.app.composition import build_datamodule, compose_config
from lit_loader.app.tuning import (
    INLINE,
    METHODS,
    Candidate,
    LoaderMeter,
    Measurement,
    median,
    search_settings,
)
from lit_loader.foundation.host import count_cores

ROUNDS = 5
WINDOW_S = 1.0


def main(words: list[str] | None = None) -> None:
    """Tune, measure the grid, print the ratio."""
    given = sys.argv[1:] if words is None else words
    budget_s = float(given[0]) if given and given[0].isdigit() else 60.0
    overrides = [word for word in given if "=" in word]
    is_named = any(word.startswith(("dataset=", "experiment=")) for word in overrides)
    cfg = compose_config(overrides=overrides if is_named else ["experiment=shapes", *overrides])
    torch.set_num_threads(cfg.num_threads)
    datamodule = build_datamodule(cfg)
    datamodule.prepare_data()
    meter, cores = LoaderMeter(datamodule), count_cores()
    methods, most = ["thread", METHODS[1]], max(4, 2 * cores)
    start = time.perf_counter()
    tuned = search_settings(meter, num_cores=cores, methods=methods, max_workers=most, budget_s=budget_s)
    print(f"tuned in {time.perf_counter() - start:.0f} s: {tuned.best!s}")

    grid = full_grid(
        num_workers=sorted({1, 2, 3, 4, cores, 2 * cores}), methods=methods, prefetch_factors=[2, 4]
    )
    grid += [] if tuned.best in grid else [tuned.best]
    measured: dict[Candidate, list[Measurement]] = {candidate: [] for candidate in grid}
    for number in range(ROUNDS):
        for candidate in grid if number % 2 == 0 else grid[::-1]:
            measured[candidate].append(meter(candidate, WINDOW_S))
    rates = {candidate: median(each).samples_per_s for candidate, each in measured.items()}
    for candidate in sorted(rates, key=lambda each: -rates[each]):
        own = [each.samples_per_s for each in measured[candidate]]
        mark = "  <- picked" if candidate == tuned.best else ""
        print(
            f"  {candidate!s:26} {rates[candidate]:9.1f} ({min(own):.0f} to {max(own):.0f}) samples/s{mark}"
        )
    print(f"the pick reaches {rates[tuned.best] / max(rates.values()):.1%} of the best of the grid")


def full_grid(
    *, num_workers: Sequence[int], methods: Sequence[str], prefetch_factors: Sequence[int]
) -> list[Candidate]:
    """Return inline and every combination."""
    return [
        INLINE,
        *(Candidate(n, method, p) for n in num_workers if n for method in methods for p in prefetch_factors),
    ]


if __name__ == "__main__":
    main()
