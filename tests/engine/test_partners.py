"""Partners of a position are drawn from its key alone, with the distribution of the sampler or of the pool."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lit_loader import DataLoader
from lit_loader.engine import PartnerDraws, partners, plan_order
from lit_loader.errors import SettingError
from lit_loader.mixing import MAX_PARTNERS
from lit_loader.samplers import (
    ClassBalancedSampler,
    GroupedSampler,
    MixedSourceSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from tests.support.chi_square import assert_fits
from tests.support.partner_sets import Blend, Mixed, Plain
from tests.support.sampler_families import FAMILIES

NUM_INDICES = 24


def mixed_set(*mixing):
    return Mixed(*mixing, dataset=Plain(NUM_INDICES))


def loader_of(dataset, **arguments):
    return DataLoader(dataset, **{"batch_size": 8, "shuffle": "sampler" not in arguments, "seed": 3, **arguments})


def partners_of(dataset, epoch=0, start=0, **arguments):
    """Return the partners of each sample of an epoch, as this rank's batches have them."""
    loader = loader_of(dataset, **arguments)
    spec = loader._spec()
    tasks = plan_order(spec, spec.slicing, epoch, start=start, partner_draws=PartnerDraws(dataset))
    return [task.partners for task in tasks]


def flat(batches):
    return [sample for batch in batches for sample in batch]


def indices_of(batches):
    return np.array([[partner.dataset_index for partner in sample] for sample in flat(batches)])


# -- the distribution ------------------------------------------------------------------------------------


def probabilities(sampler):
    return sampler.expected_visits() / len(sampler)


WEIGHTS = np.arange(NUM_INDICES) % 5
SAMPLERS = {
    "random": lambda: RandomSampler(NUM_INDICES),
    "weighted": lambda: WeightedRandomSampler(WEIGHTS, 400),
    "class balanced": lambda: ClassBalancedSampler(np.arange(NUM_INDICES) % 7 % 3, num_samples=96),
    "mixed shares": lambda: MixedSourceSampler([20, 4], shares=[1, 1], num_samples=96),
    "grouped": lambda: GroupedSampler(RandomSampler(NUM_INDICES), np.arange(NUM_INDICES) % 3),
    "grouped weighted": lambda: GroupedSampler(WeightedRandomSampler(WEIGHTS, 400), np.arange(NUM_INDICES) % 3),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_partners_follow_the_distribution_of_the_sampler(name):
    """The draws are independent given the order, whose own counts are close to the expected ones."""
    sampler = SAMPLERS[name]()
    counts = np.zeros(NUM_INDICES)
    order_counts = np.zeros(NUM_INDICES)
    for epoch in range(60):
        counts += np.bincount(
            indices_of(partners_of(mixed_set(Blend(4)), epoch, sampler=sampler)).ravel(), minlength=24
        )
        order = sampler.batch_order(seed=3, epoch=epoch, global_batch=8)
        order_counts += np.bincount(order[0 : len(order)], minlength=24)
    drawn = order_counts > 0
    assert_fits(counts[drawn], order_counts[drawn] / order_counts.sum())
    expected = probabilities(sampler)
    assert (counts[expected == 0] == 0).all()
    assert np.abs(counts / counts.sum() - expected).max() < 0.02


def test_images_of_weight_zero_never_are_partners():
    weights = np.arange(NUM_INDICES) % 2
    sampler = WeightedRandomSampler(weights, 200)
    assert (indices_of(partners_of(mixed_set(Blend(4)), sampler=sampler)) % 2 == 1).all()


def test_partners_come_from_the_source_of_their_sample():
    """A pattern of sources fixes the mix of each batch and of its partners."""
    sampler = MixedSourceSampler([20, 4], counts=[3, 1], num_samples=96)
    batches = partners_of(mixed_set(Blend(4)), sampler=sampler)
    from_second = indices_of(batches) >= 20
    assert (from_second == (np.arange(96) % 4 == 3)[:, None]).all()
    assert len(np.unique(indices_of(batches))) == NUM_INDICES


def test_pools_have_their_own_distribution_and_rows():
    weights = np.arange(NUM_INDICES) % 4
    counts = np.zeros(NUM_INDICES)
    dataset = mixed_set(Blend(3, weights=weights))
    for epoch in range(40):
        for partner in flat(flat(partners_of(dataset, epoch, sampler=SequentialSampler(NUM_INDICES)))):
            counts[partner.dataset_index] += 1
            assert partner.object_row == partner.dataset_index % 5
    assert_fits(counts[weights > 0], weights[weights > 0] / weights.sum())
    assert (counts[weights == 0] == 0).all()


def test_row_minus_one_of_a_pool_is_no_object():
    (partner,) = partners_of(mixed_set(Blend(1, weights=[1] + [0] * 23)), batch_size=24)[0][5]
    assert (partner.dataset_index, partner.object_row) == (0, None)


def test_draws_of_partners_are_independent():
    """Pairs of two partners, and of a position and its partner, are uniform."""
    batches = flat([partners_of(mixed_set(Blend(2)), epoch) for epoch in range(600)])
    pairs = indices_of(batches)
    assert_fits(np.bincount(pairs[:, 0] * 24 + pairs[:, 1], minlength=576), np.full(576, 1 / 576))
    positions = np.tile(np.arange(24), 600)
    assert_fits(np.bincount(positions * 24 + pairs[:, 0], minlength=576), np.full(576, 1 / 576))


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_share_of_mixed_samples_is_p(p):
    epochs = [partners_of(mixed_set(Blend(1), Blend(2, p=p)), epoch) for epoch in range(100)]
    is_mixed = [len(sample) == 3 for batches in epochs for sample in flat(batches)]
    if p == 0.25:
        assert_fits([sum(is_mixed), len(is_mixed) - sum(is_mixed)], [0.25, 0.75])
    else:
        assert set(is_mixed) == {p == 1.0}


# -- the key ---------------------------------------------------------------------------------------------


def test_partners_depend_on_seed_epoch_and_mix():
    dataset = mixed_set(Blend(3), Blend(3))
    draws = [partners_of(dataset, epoch, seed=seed) for seed in (3, 4) for epoch in (0, 1)]
    assert partners_of(dataset, 1, seed=4) == draws[-1]
    mix_indices = [indices_of(batches)[:, columns] for batches in draws for columns in (slice(3), slice(3, 6))]
    assert len({indices.tobytes() for indices in mix_indices}) == len(mix_indices)


@pytest.mark.parametrize("policy", ["raise", "substitute"])
@pytest.mark.parametrize("weights", [None, np.arange(NUM_INDICES)], ids=["order", "pool"])
def test_partners_depend_on_neither_batches_nor_ranks(weights, policy):
    dataset = mixed_set(Blend(3, p=0.7, weights=weights))
    draw = partial(partners_of, dataset, 2, on_bad_sample=policy)
    expected = flat(draw(batch_size=12))
    assert flat(draw(batch_size=4)) == flat(draw(batch_size=None)) == expected
    assert flat(draw(batch_size=4, start=8)) == expected[8:]
    by_rank = [draw(batch_size=3, rank=rank, world_size=4) for rank in range(4)]
    assert [sample for batches in zip(*by_rank, strict=True) for batch in batches for sample in batch] == expected


@pytest.mark.parametrize("weights", [None, np.arange(NUM_INDICES)], ids=["order", "pool"])
def test_spares_and_more_partners_leave_the_others_unchanged(weights):
    few, many = (mixed_set(Blend(count, weights=weights)) for count in (2, MAX_PARTNERS))
    partners = flat(partners_of(many))
    assert flat(partners_of(few)) == [sample[:2] for sample in partners]
    with_spares = flat(partners_of(many, on_bad_sample="substitute"))
    assert [[partner._replace(spares=()) for partner in sample] for sample in with_spares] == partners
    spares = [[index for index, _ in partner.spares] for sample in with_spares for partner in sample]
    assert np.shape(spares) == (NUM_INDICES * MAX_PARTNERS, 3)
    if weights is None:
        assert_fits(np.bincount(np.ravel(spares), minlength=24), np.full(24, 1 / 24))


def test_numbers_of_draws_never_overlap(monkeypatch):
    numbers = []
    draw_indices = partners.draw_indices

    def recorded(order, key, draws, **arguments):
        numbers.append(draws.ravel())
        return draw_indices(order, key, draws, **arguments)

    monkeypatch.setattr(partners, "draw_indices", recorded)
    partners_of(mixed_set(Blend(MAX_PARTNERS)), on_bad_sample="substitute")
    assert len(np.unique(np.concatenate(numbers))) == NUM_INDICES * MAX_PARTNERS * 4


@pytest.mark.parametrize("name", FAMILIES)
def test_long_orders_are_not_stored_and_give_the_same_partners(name, monkeypatch):
    sampler = FAMILIES[name](NUM_INDICES, None)
    draw = partial(partners_of, mixed_set(Blend(3)), sampler=sampler, on_bad_sample="substitute")
    expected = draw()
    monkeypatch.setattr(partners, "_MOST_STORED", 0)
    assert draw() == expected


def test_duplicates_have_partners_of_their_own_positions():
    """27 positions fill the last global batch of two ranks up to 28."""
    dataset = Mixed(Blend(3), dataset=Plain(27))
    batches = [partners_of(dataset, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    assert [len(batch) for batch in batches[0]] == [len(batch) for batch in batches[1]] == [4, 4, 4, 2]
    assert batches[0][0][0] != batches[1][-1][-1]  # position 27 has the image of position 0


# -- the plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", [(), (Blend(0),), (Blend(3, p=0.0), Blend([2, 0]))], ids=["none", "0", "ended"])
def test_epochs_without_partners_have_none_in_their_plan(mixing):
    assert partners_of(mixed_set(*mixing), 1) == [None] * 3


def test_pools_are_made_once_and_only_if_they_are_used():
    dataset = mixed_set(Blend(2, weights=np.ones(24), p={"epochs": [1, 3], "value": 1}), Blend(1, p=0.0))
    draws = PartnerDraws(dataset)
    spec = loader_of(dataset)._spec()
    num_pools = []
    for epoch in range(4):
        list(plan_order(spec, spec.slicing, epoch, partner_draws=draws))
        num_pools.append(dataset.num_pools)
    assert num_pools == [0, 1, 1, 1]


@pytest.mark.parametrize("count", [-1, MAX_PARTNERS + 1])
def test_number_of_partners_out_of_range_is_refused(count):
    with pytest.raises(
        SettingError, match=rf"num_partners={count} in epoch 0 of Blend is not a whole number in \[0, 15\]"
    ):
        partners_of(mixed_set(Blend(count)))


def test_fraction_of_a_partner_is_refused():
    with pytest.raises(SettingError, match=r"num_partners=1.5 in epoch 0 of Blend is not a whole number"):
        partners_of(mixed_set(Blend([1.5])))
