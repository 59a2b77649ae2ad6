"""Samplers whose settings change by epoch: exact quotas in every epoch, and cycles that no epoch interrupts."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_loader.errors import SettingError
from lit_loader.samplers import (
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    OrderSampler,
    WeightedRandomSampler,
)
from lit_loader.schedules import BatchChoice, EpochRange, EpochSchedule, FunctionSchedule, LinearSchedule

LABELS = [0] * 30 + [1] * 9 + [2] * 3 + [-1] * 6
WEIGHTS = np.arange(1.0, 13.0)

values = st.floats(0, 1).map(lambda value: round(value, 3))
points = st.dictionaries(st.integers(0, 12), values, min_size=1, max_size=4).map(LinearSchedule)
ranges = st.builds(
    lambda first, length, value, otherwise: EpochRange([first, first + length], value, otherwise),
    *(st.integers(0, 8), st.integers(1, 8), values, values),
)
epoch_schedules = points | ranges


def halved(epoch):
    """Return a value that never stays constant."""
    return 0.5 ** (1 + epoch % 5)


def weights_of(epoch):
    """Return weights that turn around at epoch 3."""
    return WEIGHTS if epoch < 3 else WEIGHTS[::-1].copy()


def orders(sampler, num_epochs, seed=0):
    return [sampler.order(seed=seed, epoch=epoch)[:] for epoch in range(num_epochs)]


def assert_cycles(visits, images):
    """Check that no image comes again before all of them have come."""
    for start in range(0, len(visits) - len(images) + 1, len(images)):
        assert sorted(visits[start : start + len(images)]) == sorted(images)


# -- ClassBalancedSampler ----------------------------------------------------------------------------------


@given(exponent=epoch_schedules, empty_share=st.none() | epoch_schedules, num_samples=st.integers(4, 90))
def test_quotas_of_each_epoch_are_those_of_constant_settings(exponent, empty_share, num_samples):
    sampler = ClassBalancedSampler(LABELS, exponent=exponent, empty_share=empty_share, num_samples=num_samples)
    for epoch in range(14):
        constants = {
            "exponent": round(exponent.at(epoch), 12),
            "empty_share": None if empty_share is None else round(empty_share.at(epoch), 12),
        }
        constant = ClassBalancedSampler(LABELS, num_samples=num_samples, **constants)
        quotas, empty_quota = sampler.quotas_of(epoch)
        assert quotas.tolist() == constant.quotas.tolist()
        assert empty_quota == constant.empty_quota
        labels = np.array(LABELS)[sampler.order(seed=3, epoch=epoch)[:]]
        assert [*np.bincount(labels[labels >= 0], minlength=3)] == quotas.tolist()
        assert len(labels) == len(sampler) == num_samples
        np.testing.assert_allclose(sampler.expected_visits(epoch), constant.expected_visits())


@given(exponent=epoch_schedules, empty_share=epoch_schedules, num_samples=st.integers(4, 90), seed=st.integers())
def test_cycles_of_a_class_continue_although_quotas_change(exponent, empty_share, num_samples, seed):
    sampler = ClassBalancedSampler(LABELS, exponent=exponent, empty_share=empty_share, num_samples=num_samples)
    labels = np.array(LABELS)
    visits = np.concatenate(orders(sampler, 20, seed))
    for class_id in np.unique(labels):
        assert_cycles(visits[labels[visits] == class_id].tolist(), np.flatnonzero(labels == class_id).tolist())


@given(exponent=epoch_schedules, order=st.permutations(range(16)))
def test_order_depends_on_no_order_before_it(exponent, order):
    expected = orders(ClassBalancedSampler(LABELS, exponent=exponent), 16)
    sampler = ClassBalancedSampler(LABELS, exponent=exponent)
    for epoch in order:
        assert sampler.order(seed=0, epoch=epoch)[:].tolist() == expected[epoch].tolist()


def test_equal_values_are_the_same_bits_as_a_constant():
    constant = ClassBalancedSampler(LABELS, exponent=0.5, empty_share=0.25)
    for schedule in (LinearSchedule({0: 0.5, 5: 0.5}), FunctionSchedule(lambda epoch: 0.5)):
        scheduled = ClassBalancedSampler(LABELS, exponent=schedule, empty_share=0.25)
        for epoch in (0, 1, 7, 300):
            expected = constant.order(seed=1, epoch=epoch)[:]
            assert scheduled.order(seed=1, epoch=epoch)[:].tolist() == expected.tolist()


def test_mapping_is_converted_to_a_schedule():
    sampler = ClassBalancedSampler(LABELS, exponent={"points": {0: 0.0, 10: 1.0}})
    assert sampler.exponent == LinearSchedule({0: 0.0, 10: 1.0})
    assert sampler.schedules == (sampler.exponent,)
    assert ClassBalancedSampler(LABELS).schedules == ()


def test_late_epoch_needs_only_the_scheduled_part(monkeypatch):
    sampler = ClassBalancedSampler(LABELS, exponent=LinearSchedule({0: 0.0, 10: 1.0}))
    expected = sampler.order(seed=0, epoch=10_000)[:]
    calls = []
    at = LinearSchedule.at
    monkeypatch.setattr(LinearSchedule, "at", lambda self, epoch: calls.append(epoch) or at(self, epoch))
    fresh = ClassBalancedSampler(LABELS, exponent=LinearSchedule({0: 0.0, 10: 1.0}))
    calls.clear()
    assert fresh.order(seed=0, epoch=10_000)[:].tolist() == expected.tolist()
    assert len(calls) < 20
    # Each further epoch of a schedule in progress adds one sum.
    calls.clear()
    for epoch in (10_001, 10_002):
        fresh.order(seed=0, epoch=epoch)
    assert len(calls) < 10


def test_function_is_called_once_for_each_earlier_epoch():
    calls = []
    sampler = ClassBalancedSampler(
        LABELS, exponent=FunctionSchedule(lambda epoch: calls.append(epoch) or halved(epoch))
    )
    calls.clear()
    sampler.order(seed=0, epoch=400)
    assert len(calls) <= 402
    calls.clear()
    sampler.order(seed=0, epoch=401)
    assert len(calls) <= 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"exponent": BatchChoice([0.0, 1.0])},
            SettingError,
            r"exponent=\{'choices': \[0.0, 1.0\]\} is drawn for every.*",
        ),
        ({"empty_share": {"choices": [0.0, 1.0]}}, SettingError, r"plans a whole epoch at once; give a schedule of ep"),
        (
            {"exponent": {0: 0.5}},
            SettingError,
            r"exponent=\{0: 0.5\} is a mapping that describes no schedule; give one",
        ),
        ({"exponent": {"points": {0: 0.5, 4: 1.5}}}, ValueError, r"exponent=1.5 \(in epoch 4 of the schedule linear"),
        ({"exponent": EpochRange([3, 5], "hot")}, TypeError, r"`exponent` must be a number.*'hot'.*\(in epoch 3"),
        ({"empty_share": {"points": {0: 0, 4: 2}}}, ValueError, r"`empty_share` must be in \[0, 1\].*in epoch 4"),
        (
            {"labels": [0, 1], "empty_share": EpochRange([1, 2])},
            ValueError,
            "empty_share=1.0, but every image.*epoch 1",
        ),
        (
            {"num_samples": 3, "empty_share": EpochRange([1, 2], 0.5)},
            ValueError,
            "num_samples=3 is less than the 4 clas",
        ),
    ],
)
def test_wrong_schedules_are_refused_in_the_constructor(arguments, error, message):
    with pytest.raises(error, match=message):
        ClassBalancedSampler(**{"labels": LABELS, **arguments})


def test_value_of_a_function_that_is_out_of_range_names_its_epoch():
    sampler = ClassBalancedSampler(LABELS, exponent=FunctionSchedule(lambda epoch: epoch / 4))
    sampler.order(seed=0, epoch=4)
    with pytest.raises(ValueError, match=r"exponent=1.25 \(in epoch 5 of the schedule"):
        sampler.order(seed=0, epoch=5)


# -- WeightedRandomSampler and groups ----------------------------------------------------------------------


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("groups", [False, True])
def test_weights_of_each_epoch_draw_as_constant_weights(replacement, groups):
    scheduled = WeightedRandomSampler(FunctionSchedule(weights_of), 12, replacement)
    constants = [WeightedRandomSampler(weights_of(epoch), 12, replacement) for epoch in range(6)]
    samplers = [scheduled, *constants]
    if groups:
        samplers = [GroupedSampler(sampler, np.arange(12) % 3) for sampler in samplers]
    scheduled, *constants = samplers
    for epoch in (0, 4, 3, 2, 5, 1):
        settings = {"seed": 2, "epoch": epoch, "global_batch": 4}
        expected = constants[epoch].batch_order(**settings)[:]
        assert scheduled.batch_order(**settings)[:].tolist() == expected.tolist()
        np.testing.assert_array_equal(scheduled.expected_visits(epoch), constants[epoch].expected_visits())
    assert len(scheduled.schedules) == 1


def test_order_in_use_keeps_its_weights_while_the_next_epoch_is_prepared():
    sampler = WeightedRandomSampler(FunctionSchedule(weights_of), 200)
    order = sampler.order(seed=0, epoch=2)
    expected = order[:].tolist()
    sampler.order(seed=0, epoch=3)[:]
    assert order[:].tolist() == expected


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (EpochRange([2, 4], [1.0, -1.0], [1.0, 1.0]), r"weights\[1\]=-1.0 \(in epoch 2"),
        (EpochRange([2, 4], [1.0], [1.0, 1.0]), r"must have 2 entries.*got 1.*\(in epoch 2"),
        (EpochRange([2, 4], [1.0, 0.0], [1.0, 1.0]), r"num_samples=2 exceeds the 1 positive weights.*\(in epoch 2"),
        (BatchChoice([[1.0, 1.0]]), "is drawn for every batch"),
    ],
)
def test_wrong_schedules_of_weights_are_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        WeightedRandomSampler(schedule, 2, False)


def test_new_weights_replace_a_schedule():
    sampler = WeightedRandomSampler(FunctionSchedule(weights_of), 30)
    sampler.set_weights(WEIGHTS)
    assert (sampler.schedules, sampler.revision) == ((), 1)
    expected = WeightedRandomSampler(WEIGHTS, 30)
    assert sampler.order(seed=0, epoch=4)[:].tolist() == expected.order(seed=0, epoch=4)[:].tolist()
    assert sampler.fingerprint() == expected.fingerprint()


# -- MixedSourceSampler ------------------------------------------------------------------------------------


@given(schedule=points, num_samples=st.integers(2, 60), seed=st.integers())
def test_shares_by_epoch_are_exact_and_streams_continue(schedule, num_samples, seed):
    lengths = (20, 7)
    sampler = MixedSourceSampler(lengths, shares=[1, schedule], num_samples=num_samples)
    rows = orders(sampler, 16, seed)
    for epoch, row in enumerate(rows):
        share = round(schedule.at(epoch), 12)
        quotas = np.bincount(row >= 20, minlength=2)
        assert quotas.tolist() == sampler.quotas_of(epoch).tolist()
        exact = num_samples * share / (1 + share)
        assert abs(quotas[1] - exact) < 1 + (0 < exact < 1)
        assert (quotas[1] == 0) == (share == 0)
        assert sampler.expected_visits(epoch).sum() == pytest.approx(num_samples)
    visits = np.concatenate(rows)
    assert_cycles(visits[visits < 20].tolist(), range(20))
    assert_cycles(visits[visits >= 20].tolist(), range(20, 27))


def test_source_may_be_left_out_of_some_epochs():
    sampler = MixedSourceSampler([20, 7], shares=[1, {"epochs": [0, 3], "value": 3}], num_samples=20)
    assert [sampler.quotas_of(epoch).tolist() for epoch in (0, 2, 3, 9)] == [[5, 15], [5, 15], [20, 0], [20, 0]]
    visits = np.concatenate(orders(sampler, 8))
    assert_cycles(visits[visits < 20].tolist(), range(20))
    assert sampler.expected_visits(3)[20:].sum() == 0


@pytest.mark.parametrize("arguments", [{}, {"counts": [1, 1]}, {"shares": [2, 1], "num_samples": 15}])
def test_sampler_with_a_schedule_mixes_if_its_epochs_are_those_of_the_run(arguments):
    balanced = ClassBalancedSampler([0] * 9 + [1], exponent={"points": {0: 0.0, 4: 1.0}}, seed=5)
    mixed = MixedSourceSampler([balanced, 10], **arguments)
    assert mixed.schedules == balanced.schedules
    for epoch in range(6):
        row = mixed.order(seed=0, epoch=epoch)[:]
        assert sorted(row[row < 10]) == sorted(balanced.order(seed=5, epoch=epoch)[:])
        np.testing.assert_allclose(mixed.expected_visits(epoch)[:10], balanced.expected_visits(epoch))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shares": [1, {"points": {0: 1, 5: 2}}]}, r"num_samples=None leaves the length.*pass num_samples=27"),
        ({"shares": [1, {"choices": [1, 2]}], "num_samples": 9}, r"shares\[1\]=.* is drawn for every batch"),
        ({"shares": [1, {"points": {0: 1, 5: -1}}], "num_samples": 9}, r"shares\[1\]=-1.0 .*not negative \(in epoch 5"),
        ({"shares": [EpochRange([0, 5]), EpochRange([0, 4])], "num_samples": 9}, "0 for all sources in the same epoch"),
        ({"counts": [1, {"points": {0: 1, 5: 2}}]}, r"counts\[1\]=.* is a schedule, and counts fix .*as `shares`"),
    ],
)
def test_wrong_schedules_of_shares_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixedSourceSampler([20, 7], **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shares": [3, 1]}, r"takes 21 of its 10 positions.* settings, or num_samples=21"),
        ({"counts": [2, 1]}, r"takes 14 of its 10 positions.* settings, or num_samples=14"),
        ({"shares": [1, EpochRange([0, 5])], "num_samples": 20}, "takes a changing number of its 10"),
    ],
)
def test_sampler_with_a_schedule_is_refused_where_its_epochs_are_not_those_of_the_run(arguments, message):
    balanced = ClassBalancedSampler([0] * 9 + [1], exponent={"points": {0: 0.0, 4: 1.0}})
    with pytest.raises(ValueError, match=rf"sources\[0\]: ClassBalancedSampler has a setting that .*{message}"):
        MixedSourceSampler([balanced, 7], **arguments)


class Plain(OrderSampler):
    """A user's sampler whose expected visits take no epoch."""

    def __len__(self):
        return 6

    @property
    def num_indices(self):
        return 6

    def order(self, *, seed, epoch):
        return np.arange(6)

    def expected_visits(self):
        return np.ones(6)


def test_expected_visits_of_a_users_sampler_need_no_epoch():
    grouped = GroupedSampler(Plain(), [0, 0, 0, 1, 1, 1])
    assert grouped.expected_visits(3).tolist() == [1] * 6
    mixed = MixedSourceSampler([Plain(), 4], shares=[1, {"epochs": [0, 2]}], num_samples=12)
    assert mixed.expected_visits(3).tolist() == [2] * 6 + [0] * 4


# -- fingerprints and copies -------------------------------------------------------------------------------


class Halving(EpochSchedule):
    """A schedule of a user's own, without breakpoints."""

    def __init__(self, factor=0.5):
        self.factor = factor

    def at(self, epoch):
        return self.factor**epoch


def third(epoch):
    return 0.5 if epoch == 0 else halved(epoch)


SCHEDULES = [
    LinearSchedule({0: 0.0, 10: 1.0}),
    LinearSchedule({0: 0.0, 11: 1.0}),
    LinearSchedule({0: 0.0, 10: 0.9}),
    LinearSchedule({0: 0.0, 5: 0.4, 10: 1.0}),
    LinearSchedule({0: 0.0, 10: 1.0, 20: 0.5}),
    EpochRange([0, 10]),
    EpochRange([0, 11]),
    EpochRange([1, 10]),
    EpochRange([0, None]),
    EpochRange([0, 10], 0.5),
    FunctionSchedule(halved),
    FunctionSchedule(third),
    Halving(),
    Halving(0.25),
]


@pytest.mark.parametrize("argument", ["exponent", "empty_share"])
def test_every_schedule_has_its_own_fingerprint(argument):
    make = partial(ClassBalancedSampler, LABELS)
    constants = [make(**{argument: value}).fingerprint() for value in (0.0, 1.0)]
    fingerprints = [make(**{argument: schedule}).fingerprint() for schedule in SCHEDULES]
    assert len({*constants, *fingerprints}) == len(constants) + len(fingerprints)
    assert fingerprints == [make(**{argument: copy.deepcopy(schedule)}).fingerprint() for schedule in SCHEDULES]


def test_schedules_of_weights_and_shares_change_the_fingerprint():
    ranges_of_weights = [EpochRange([0, end], WEIGHTS, WEIGHTS[::-1].copy()) for end in (3, 4)]
    weighted = [WeightedRandomSampler(schedule) for schedule in [FunctionSchedule(weights_of), *ranges_of_weights]]
    shares = [MixedSourceSampler([9, 9], shares=[1, schedule], num_samples=18) for schedule in SCHEDULES]
    assert len({sampler.fingerprint() for sampler in [*weighted, *shares]}) == len(weighted) + len(shares)


def test_function_need_not_be_defined_for_epochs_after_the_run():
    exponents = [0.0, 0.5, 1.0]
    sampler = ClassBalancedSampler(LABELS, exponent=FunctionSchedule(exponents.__getitem__))
    other = ClassBalancedSampler(LABELS, exponent=FunctionSchedule([0.0, 0.5, 0.9].__getitem__))
    assert sampler.fingerprint() != other.fingerprint()


def drop_at(epoch, end):
    return 0.5 if epoch < end else 0.0


def test_functions_that_differ_in_one_late_epoch_have_different_fingerprints():
    schedules = [FunctionSchedule(partial(drop_at, end=end)) for end in (600, 601)]
    samplers = [ClassBalancedSampler(LABELS, exponent=schedule) for schedule in schedules]
    assert samplers[0].fingerprint() != samplers[1].fingerprint()


@pytest.mark.parametrize("epochs", [(), (3, 9)])
def test_copies_have_the_same_orders(epochs):
    samplers = [
        ClassBalancedSampler(LABELS, exponent={"points": {0: 0.0, 10: 1.0}}),
        WeightedRandomSampler(FunctionSchedule(weights_of)),
        MixedSourceSampler([20, 7], shares=[1, {"epochs": [0, 3], "value": 3}], num_samples=20),
    ]
    for sampler in samplers:
        for epoch in epochs:
            sampler.order(seed=0, epoch=epoch)[:]
        for clone in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
            assert clone.fingerprint() == sampler.fingerprint()
            assert clone.order(seed=0, epoch=5)[:].tolist() == sampler.order(seed=0, epoch=5)[:].tolist()
