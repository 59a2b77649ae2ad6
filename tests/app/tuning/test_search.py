"""The search finds the best settings of noisy machines, keeps its budget, and skips unusable settings."""

from __future__ import annotations

import pytest

from benchmarks.tune import full_grid
from lit_loader.app.tuning import INLINE, Candidate, pick, search_settings
from tests.support.surfaces import Machine, figures, peak_at, saturating

METHODS = ["thread", "fork"]


def search(machine, *, num_cores=8, max_workers=16, budget_s=60.0, methods=METHODS, **options):
    return search_settings(
        machine,
        num_cores=num_cores,
        methods=methods,
        max_workers=max_workers,
        budget_s=budget_s,
        clock=machine.clock,
        **options,
    )


def share_of_best(machine, tuned, *, max_workers=16):
    grid = full_grid(num_workers=range(1, max_workers + 1), methods=METHODS, prefetch_factors=[1, 2, 4, 8, 16])
    return machine.rate_of(tuned.best) / max(map(machine.rate_of, grid))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prefetch", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8, 12, 16])
def test_search_finds_the_peak_anywhere(workers, method, prefetch):
    machine = Machine(peak_at(Candidate(workers, method, prefetch)), noise=0.02, seed=workers)
    assert share_of_best(machine, search(machine)) >= 0.95


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget_s", [20.0, 60.0])
def test_repeated_measurements_average_out_noise(seed, budget_s):
    machine = Machine(saturating(4), noise=0.1, seed=seed)
    tuned = search(machine, num_cores=4, max_workers=8, budget_s=budget_s)
    assert machine.rate_of(tuned.best) >= 0.95 * 400
    assert tuned.best.method == "fork"
    # Without noise, the fewest workers win among equal rates.
    assert search(Machine(saturating(4)), num_cores=4, max_workers=8).best.num_workers == 4


def test_search_follows_rates_that_grow_beyond_the_cores():
    machine = Machine(saturating(30))  # such as waiting for a network
    assert search(machine, num_cores=2, max_workers=64, budget_s=120.0).best.num_workers >= 12


@pytest.mark.parametrize("budget_s", [1.0, 3.0, 10.0, 60.0, 600.0])
@pytest.mark.parametrize("overhead_s", [0.0, 0.5, 5.0])
def test_budget_is_kept_except_for_the_first_measurement(budget_s, overhead_s):
    machine = Machine(saturating(4), overhead_s=overhead_s)
    start = machine.now
    tuned = search(machine, budget_s=budget_s)
    assert machine.now - start <= max(budget_s, 3.0 + overhead_s)
    assert machine.calls[0] == INLINE
    assert tuned.best in tuned.measured


def test_large_budget_is_not_used_up():
    machine = Machine(saturating(4))
    start = machine.now
    search(machine, budget_s=36_000.0)
    assert machine.now - start < 600


def test_survivors_take_turns_and_are_measured_often():
    tuned = search(Machine(peak_at(Candidate(8, "fork", 2)), noise=0.05))
    assert len(tuned.measured[tuned.best]) >= 5
    assert len(tuned.measured[Candidate(1, "thread", 2)]) == 1


def test_settings_that_raise_are_refused_with_their_reason():
    def rate_of(candidate):
        if candidate.is_threaded:
            raise TypeError("draws from numpy.random under threads\nsecond line")
        return 100.0 * (1 + candidate.num_workers)

    tuned = search(Machine(rate_of))
    assert tuned.best.method == "fork"
    assert {candidate.method for candidate in tuned.refused} == {"thread"}
    assert set(tuned.refused.values()) == {"TypeError: draws from numpy.random under threads"}
    assert not set(tuned.refused) & set(tuned.measured)


def test_refusal_is_the_last_line_of_a_workers_traceback():
    def rate_of(candidate):
        if candidate.num_workers:
            raise KeyError("Caught KeyError in worker 0.\nOriginal Traceback (most recent call last):\nKeyError: 'x'\n")
        return 100.0

    tuned = search(Machine(rate_of))
    assert tuned.best == INLINE
    assert all("KeyError: 'x'" in reason and "Traceback" not in reason for reason in tuned.refused.values())


def test_data_that_inline_cannot_read_ends_the_search():
    def rate_of(candidate):
        raise OSError("cannot decode a.jpg")

    with pytest.raises(OSError, match=r"a\.jpg"):
        search(Machine(rate_of))


def test_progress_is_reported_before_each_measurement():
    calls = []
    machine = Machine(saturating(2))
    search(machine, budget_s=10.0, progress=lambda candidate, elapsed_s: calls.append((candidate, elapsed_s)))
    assert [candidate for candidate, _ in calls] == machine.calls
    times = [elapsed_s for _, elapsed_s in calls]
    assert times == sorted(times)
    assert times[0] == 0


# -- the choice -----------------------------------------------------------------------------------------------

ONE = Candidate(1, "fork", 2)
TWO = Candidate(2, "fork", 2)
FOUR = Candidate(4, "fork", 2)


def measured(*rates):
    return {candidate: [figures(candidate, rate=rate) for rate in values] for candidate, values in rates}


def test_inline_is_chosen_only_if_clearly_faster():
    assert pick(measured((INLINE, [101.0]), (ONE, [100.0]))) == ONE
    assert pick(measured((INLINE, [104.0]), (ONE, [100.0]))) == INLINE
    assert pick(measured((INLINE, [104.0]))) == INLINE


def test_fewer_workers_win_within_two_percent():
    assert pick(measured((TWO, [199.0]), (FOUR, [200.0]))) == TWO
    assert pick(measured((TWO, [190.0]), (FOUR, [200.0]))) == FOUR


def test_one_lucky_measurement_does_not_win():
    assert pick(measured((TWO, [190.0, 210.0]), (FOUR, [300.0]))) == TWO
    assert pick(measured((TWO, [190.0, 500.0, 195.0]), (FOUR, [200.0] * 3))) == FOUR


def test_less_cpu_wins_among_equal_numbers_of_workers():
    dear = Candidate(2, "fork", 4)
    cheap = Candidate(2, "thread", 2)
    measurements = {dear: [figures(dear, rate=100.0, cpu_ms=9)], cheap: [figures(cheap, rate=100.0, cpu_ms=6)]}
    assert pick(measurements) == cheap
