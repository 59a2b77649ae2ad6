"""Guarantee: the value of a schedule is a function of the epoch, or of (seed, epoch, global batch)."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lit_loader import BatchChoice, EpochRange, FunctionSchedule, LinearSchedule, sample_key
from lit_loader.errors import SettingError
from lit_loader.schedules import as_schedule, current_value, schedules_in, value_at


def half(epoch):
    return epoch / 2


def values(schedule, epochs):
    return [schedule.at(epoch) for epoch in epochs]


def in_batch(schedule, **key):
    with sample_key(**key):
        return schedule.current()


def test_linear_schedule_is_linear_between_points_and_constant_outside():
    schedule = LinearSchedule({2: 1.0, 4: 0.0, 8: 2.0})
    assert values(schedule, range(10)) == [1, 1, 1, 0.5, 0, 0.5, 1, 1.5, 2, 2]
    assert schedule.breakpoints() == (2, 4, 8)
    assert schedule.constant_from() == 8
    assert schedule.final() == 2


@pytest.mark.parametrize("points", [[[4, 0.0], [2, 1.0]], {4: 0.0, 2: 1.0}, ((2, 1), (4, 0)), {"2": 1.0, "4": 0.0}])
def test_points_may_be_pairs_or_mappings_in_any_order_and_from_json(points):
    assert LinearSchedule(points) == LinearSchedule({2: 1, 4: 0})


def test_steps_round_to_whole_multiples():
    schedule = LinearSchedule({0: 320, 10: 640}, step=32)
    sizes = values(schedule, range(11))
    assert sizes == [320, 352, 384, 416, 448, 480, 512, 544, 576, 608, 640]
    assert all(type(size) is int for size in sizes)
    assert values(LinearSchedule({0: 1, 1: 47, 2: 48}, step=32), range(3)) == [0, 32, 64]
    assert values(LinearSchedule({0: 3, 3: 0}, step=1), range(4)) == [3, 2, 1, 0]
    assert values(LinearSchedule({0: -64, 2: 0}, step=32), range(3)) == [-64, -32, 0]


def test_interpolated_values_have_twelve_digits():
    assert LinearSchedule({0: 0.0, 3: 1.0}).at(1) == 0.333333333333


@given(st.dictionaries(st.integers(0, 200), st.floats(-1e6, 1e6), min_size=1, max_size=6), st.integers(0, 250))
def test_linear_schedule_stays_between_its_points(points, epoch):
    value = LinearSchedule(points).at(epoch)
    digits = 1e-11 * max(map(abs, points.values()))
    assert min(points.values()) - digits <= value <= max(points.values()) + digits
    if epoch in points:
        assert value == pytest.approx(points[epoch], rel=1e-11)


def test_epoch_range_ends_before_its_second_epoch():
    assert values(EpochRange([1, 3], value=0.5), range(5)) == [0, 0.5, 0.5, 0, 0]
    assert values(EpochRange([2, None], value="b", otherwise="a"), range(4)) == ["a", "a", "b", "b"]
    assert EpochRange([2, None], value="b", otherwise="a").final() == "b"
    assert EpochRange([0, 85], value=0.5).final() == 0


def test_function_schedule_calls_its_function():
    schedule = FunctionSchedule(half)
    assert values(schedule, range(3)) == [0, 0.5, 1]
    assert str(schedule) == "half(epoch)"
    with pytest.raises(SettingError, match="has no last value, which evaluation uses"):
        schedule.final()


def test_current_value_is_that_of_the_samples_epoch():
    setting = [LinearSchedule({0: 0, 4: 4}), 7, [EpochRange([2, 3])]]
    with sample_key(epoch=3):
        assert current_value(setting) == [3, 7, [0]]
        assert current_value(5) == 5
    assert value_at(setting, 2) == [2, 7, [1]]
    assert len(schedules_in(setting)) == 2


def test_value_outside_of_a_loader_names_the_remedy():
    with pytest.raises(RuntimeError, match="pass a seed to the loader, or call dataset"):
        LinearSchedule({0: 1}).current()


def test_batch_choice_is_one_for_all_samples_of_a_global_batch():
    sizes = BatchChoice([320, 384, 448])
    for batch in range(20):
        assert len({in_batch(sizes, epoch=1, batch=batch, position=position) for position in (0, 5, 99)}) == 1


def test_batch_choice_depends_on_seed_epoch_and_batch():
    sizes = BatchChoice(range(8))
    course = [in_batch(sizes, batch=batch) for batch in range(32)]
    assert course != [in_batch(sizes, batch=batch, epoch=1) for batch in range(32)]
    assert course != [in_batch(sizes, batch=batch, seed=1) for batch in range(32)]
    assert course == [in_batch(BatchChoice(range(8)), batch=batch) for batch in range(32)]


def test_batch_choices_are_equally_frequent():
    counts = Counter(in_batch(BatchChoice(["a", "b", "c"]), batch=batch) for batch in range(3000))
    expected = 1000
    # Four standard deviations of a binomial distribution.
    assert all(abs(count - expected) < 4 * math.sqrt(3000 * 2 / 9) for count in counts.values())
    assert len(counts) == 3


def test_batch_choices_of_equal_length_draw_the_same_place():
    for batch in range(10):
        size = in_batch(BatchChoice([320, 640]), batch=batch)
        assert in_batch(BatchChoice([[1, 1], [2, 2]]), batch=batch) == ((1, 1) if size == 320 else (2, 2))


@pytest.mark.parametrize(
    ("choices", "largest"), [([384, 448, 320], 448), ([[1, 9], [4, 4]], (4, 4)), (["crop", "stretch"], "stretch")]
)
def test_final_choice_is_the_largest(choices, largest):
    assert BatchChoice(choices).final() == largest


@pytest.mark.parametrize(
    ("value", "schedule"),
    [
        ({"points": {0: 320, 10: 640}, "step": 32}, LinearSchedule({0: 320, 10: 640}, step=32)),
        ({"epochs": [0, 85], "value": 0.5}, EpochRange([0, 85], 0.5)),
        ({"epochs": [5, None], "value": [3, 4], "otherwise": [1, 2]}, EpochRange([5, None], [3, 4], [1, 2])),
        ({"choices": [[320, 384], [384, 448]]}, BatchChoice([[320, 384], [384, 448]])),
        ([1, {"choices": [2, 3]}], [1, BatchChoice([2, 3])]),
    ],
)
@pytest.mark.parametrize("convert", [lambda value: value, OmegaConf.create], ids=["dict", "omegaconf"])
def test_mappings_of_a_config_become_schedules(value, schedule, convert):
    converted = as_schedule(convert(value))
    assert converted == schedule
    assert "Config" not in repr(converted)


@pytest.mark.parametrize("value", [None, 0.5, "points", [1, 2], {"size": 3}, LinearSchedule({0: 1})])
def test_other_values_stay_unchanged(value):
    assert as_schedule(value) is value


def test_schedules_survive_json_and_pickle():
    mapping = json.loads(json.dumps({"points": {0: 0.5, 10: 0.0}}))
    assert as_schedule(mapping) == LinearSchedule({0: 0.5, 10: 0})
    for schedule in (LinearSchedule({0: 1}), EpochRange([0, 2]), BatchChoice([1, 2]), FunctionSchedule(half)):
        assert pickle.loads(pickle.dumps(schedule)) == schedule
        assert hash(schedule) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearSchedule({}), "at least one epoch"),
        (lambda: LinearSchedule("0"), "at least one epoch"),
        (lambda: LinearSchedule([[1, 2, 3]]), "at least one epoch"),
        (lambda: LinearSchedule([[1, 2], [1, 3]]), "different whole numbers"),
        (lambda: LinearSchedule({-1: 1}), "different whole numbers"),
        (lambda: LinearSchedule({0.5: 1}), "different whole numbers"),
        (lambda: LinearSchedule({"1e3": 1}), "different whole numbers"),
        (lambda: LinearSchedule({"9" * 10: 1}), "different whole numbers"),
        (lambda: LinearSchedule({0: math.nan}), "finite"),
        (lambda: LinearSchedule({0: True}), "finite"),
        (lambda: LinearSchedule({0: "1"}), "finite"),
        (lambda: LinearSchedule({0: 1}, step=0), "positive whole number"),
        (lambda: EpochRange([3, 3]), "first epoch after the range"),
        (lambda: EpochRange([0]), "first epoch after the range"),
        (lambda: EpochRange([0, 1.5]), "first epoch after the range"),
        (lambda: FunctionSchedule(3), "function of the epoch"),
        (lambda: BatchChoice([]), "list of values"),
        (lambda: BatchChoice("ab"), "list of values"),
        (lambda: BatchChoice([{"epochs": [0, 1]}, 3]), "is inside of a schedule, which has plain values"),
        (lambda: EpochRange([0, 5], value={"points": {0: 1}}), "is inside of a schedule"),
        (lambda: EpochRange([0, 5], otherwise=[LinearSchedule({0: 1})]), "otherwise=.* is inside of a schedule"),
        (lambda: as_schedule({"points": {0: 1}, "stpe": 2}), "stpe=2 is not one of"),
        (lambda: as_schedule({"epochs": [0, 1], "points": {0: 1}}), "is not one of"),
        (lambda: value_at(BatchChoice([1, 2]), 0), "are drawn for every batch"),
    ],
)
def test_wrong_settings_say_what_was_expected(make, message):
    with pytest.raises(SettingError, match=message):
        make()
