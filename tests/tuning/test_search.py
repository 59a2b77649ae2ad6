"""The search finds the best of noisy surfaces, keeps its budget, and lives with settings that cannot be used."""

from __future__ import annotations

import pytest

from benchmarks.tune import full_grid
from lit_loader.app.tuning import INLINE, Candidate, pick, search_settings
from tests.tuning.surfaces import Machine, figures, peak_at, saturating

METHODS = ["thread", "fork"]


def found_on(machine, *, num_cores=8, max_workers=16, budget_s=60.0, methods=METHODS, **given):
    return search_settings(
        machine,
        num_cores=num_cores,
        methods=methods,
        max_workers=max_workers,
        budget_s=budget_s,
        clock=machine.clock,
        **given,
    )


def share_of_best(machine, tuned, *, max_workers=16):
    grid = full_grid(
        num_workers=range(1, max_workers + 1), methods=METHODS, prefetch_factors=[1, 2, 4, 8, 16]
    )
    return machine.rate_of(tuned.best) / max(map(machine.rate_of, grid))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prefetch", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8, 12, 16])
def test_the_peak_is_found_wherever_it_is(workers, method, prefetch):
    machine = Machine(peak_at(Candidate(workers, method, prefetch)), noise=0.02, seed=workers)
    assert share_of_best(machine, found_on(machine)) >= 0.95


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget_s", [20.0, 60.0])
def test_noise_of_a_tenth_is_measured_away(seed, budget_s):
    machine = Machine(saturating(4), noise=0.1, seed=seed)
    tuned = found_on(machine, num_cores=4, max_workers=8, budget_s=budget_s)
    assert machine.rate_of(tuned.best) >= 0.95 * 400
    assert tuned.best.method == "fork"


def test_rates_that_grow_beyond_the_cores_are_followed():
    machine = Machine(saturating(30))  # waiting for a network, say
    assert found_on(machine, num_cores=2, max_workers=64, budget_s=120.0).best.num_workers >= 12


def test_of_equal_rates_the_fewest_workers_win():
    tuned = found_on(Machine(saturating(4)), num_cores=4, max_workers=8)
    assert tuned.best.num_workers == 4


@pytest.mark.parametrize("budget_s", [1.0, 3.0, 10.0, 60.0, 600.0])
@pytest.mark.parametrize("overhead_s", [0.0, 0.5, 5.0])
def test_the_budget_is_kept_but_for_the_first_measurement(budget_s, overhead_s):
    machine = Machine(saturating(4), overhead_s=overhead_s)
    start = machine.now
    tuned = found_on(machine, budget_s=budget_s)
    assert machine.now - start <= max(budget_s, 3.0 + overhead_s)
    assert machine.calls[0] == INLINE
    assert tuned.best in tuned.measured


def test_slow_batches_that_take_longer_than_asked_for_keep_the_budget_too():
    machine = Machine(saturating(4), slow_turn_s=2.0)
    start = machine.now
    found_on(machine, budget_s=60.0, max_workers=4)
    assert machine.now - start <= 60.0 + 2.0 * 4  # a larger number of workers may be tried for the first time


def test_a_large_budget_ends_when_nothing_more_can_be_learned():
    machine = Machine(saturating(4))
    start = machine.now
    found_on(machine, budget_s=36_000.0)
    assert machine.now - start < 600


def test_survivors_take_turns_and_are_measured_often():
    tuned = found_on(Machine(peak_at(Candidate(8, "fork", 2)), noise=0.05))
    assert len(tuned.measured[tuned.best]) >= 5
    assert len(tuned.measured[Candidate(1, "thread", 2)]) == 1


def test_settings_that_raise_are_left_out_with_their_reason():
    def rate_of(candidate):
        if candidate.is_threaded:
            raise TypeError("draws from numpy.random under threads\nsecond line")
        return 100.0 * (1 + candidate.num_workers)

    tuned = found_on(Machine(rate_of))
    assert tuned.best.method == "fork"
    assert {candidate.method for candidate in tuned.refused} == {"thread"}
    assert set(tuned.refused.values()) == {"TypeError: draws from numpy.random under threads"}
    assert not set(tuned.refused) & set(tuned.measured)


def test_of_an_error_with_a_workers_traceback_the_last_line_is_told():
    def rate_of(candidate):
        if candidate.num_workers:
            raise KeyError(
                "Caught KeyError in worker 0.\nOriginal Traceback (most recent call last):\nKeyError: 'x'\n"
            )
        return 100.0

    tuned = found_on(Machine(rate_of))
    assert tuned.best == INLINE
    assert all("KeyError: 'x'" in reason and "Traceback" not in reason for reason in tuned.refused.values())


def test_data_that_inline_cannot_read_ends_the_search():
    def rate_of(candidate):
        raise OSError("cannot decode a.jpg")

    with pytest.raises(OSError, match=r"a\.jpg"):
        found_on(Machine(rate_of))


def test_progress_is_told_before_each_measurement():
    told = []
    machine = Machine(saturating(2))
    found_on(
        machine, budget_s=10.0, progress=lambda candidate, elapsed_s: told.append((candidate, elapsed_s))
    )
    assert [candidate for candidate, _ in told] == machine.calls
    times = [elapsed_s for _, elapsed_s in told]
    assert times == sorted(times)
    assert times[0] == 0


# -- the choice -----------------------------------------------------------------------------------------------

ONE, TWO, MORE = Candidate(1, "fork", 2), Candidate(2, "fork", 2), Candidate(4, "fork", 2)


def measured(*rates):
    return {candidate: [figures(candidate, rate=rate) for rate in own] for candidate, own in rates}


def test_inline_is_chosen_only_if_it_is_clearly_faster():
    assert pick(measured((INLINE, [101.0]), (ONE, [100.0]))) == ONE
    assert pick(measured((INLINE, [104.0]), (ONE, [100.0]))) == INLINE
    assert pick(measured((INLINE, [104.0]))) == INLINE


def test_fewer_workers_win_within_two_percent():
    assert pick(measured((TWO, [199.0]), (MORE, [200.0]))) == TWO
    assert pick(measured((TWO, [190.0]), (MORE, [200.0]))) == MORE


def test_one_lucky_measurement_does_not_win():
    assert pick(measured((TWO, [190.0, 210.0]), (MORE, [300.0]))) == TWO
    assert pick(measured((TWO, [190.0, 500.0, 195.0]), (MORE, [200.0] * 3))) == MORE


def test_of_equally_many_workers_the_cheaper_in_cpu_wins():
    dear, cheap = Candidate(2, "fork", 4), Candidate(2, "thread", 2)
    found = {dear: [figures(dear, rate=100.0, cpu_ms=9)], cheap: [figures(cheap, rate=100.0, cpu_ms=6)]}
    assert pick(found) == cheap
