"""Fake machines: figures from formulas with noise, and a clock that only measurements advance."""

from __future__ import annotations

import random

from lit_loader.app.tuning import INLINE, Candidate, Measurement


def figures(candidate=INLINE, rate=100.0, cpu_ms=10.0, main_ms=None, **options):
    """Return a measurement; the main process uses all CPU time unless ``main_ms`` is given."""
    options = {"start_s": 0.1, "wall_s": 1.0, **options}
    main_ms = cpu_ms if main_ms is None else main_ms
    return Measurement(
        candidate=candidate,
        samples_per_s=rate,
        cpu_s_per_sample=cpu_ms / 1e3,
        main_cpu_s_per_sample=main_ms / 1e3,
        **options,
    )


class Machine:
    """Measure by formula, with its own clock.

    Args:
        rate_of: True rate of a candidate, in samples/s.
        noise: Standard deviation of one measurement, as a share of the rate.
        overhead_s: Additional duration of each measurement.
        slow_turn_s: Shortest duration of a turn of batches, per worker.
    """

    def __init__(self, rate_of, *, noise=0.0, overhead_s=0.2, slow_turn_s=0.0, seed=0):
        self.rate_of = rate_of
        self.noise = noise
        self.random = random.Random(seed)
        self.overhead_s = overhead_s
        self.slow_turn_s = slow_turn_s
        self.now = 100.0
        self.calls = []

    def clock(self):
        return self.now

    def __call__(self, candidate, seconds):
        self.calls.append(candidate)
        wall_s = max(seconds, self.slow_turn_s * max(1, candidate.num_workers))
        self.now += wall_s + self.overhead_s
        rate = self.rate_of(candidate) * self.random.gauss(1, self.noise)
        return figures(candidate, rate=max(1e-3, rate), wall_s=wall_s)


def peak_at(best: Candidate, *, inline=100.0):
    """Return a function of rates that fall in all directions from the best candidate."""

    def rate_of(candidate):
        if candidate.num_workers == 0:
            return inline
        off = abs(candidate.num_workers - best.num_workers) / best.num_workers
        ahead = max(candidate.prefetch_factor, best.prefetch_factor) / min(
            candidate.prefetch_factor, best.prefetch_factor
        )
        method_factor = 0.7 if candidate.method != best.method else 1.0
        return 1000 * method_factor / (1 + off) / ahead**0.15

    return rate_of


def saturating(cores, method="fork", *, per_worker=100.0):
    """Return a function of rates that grow with the workers up to the number of cores."""

    def rate_of(candidate):
        if candidate.num_workers == 0:
            return per_worker
        method_factor = 1.0 if candidate.method == method else 0.6
        return per_worker * min(candidate.num_workers, cores) * method_factor

    return rate_of
