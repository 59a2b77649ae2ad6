"""A loader that cannot draw partners refuses a dataset that mixes samples, with the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import Subset

from lit_loader import DataLoader
from tests.support.partner_sets import Blend, Mixed


@pytest.mark.parametrize("dataset", [Mixed(Blend(3)), Subset(Mixed(Blend(3)), range(5))], ids=["whole", "subset"])
def test_loader_without_a_seed_refuses_to_mix(dataset):
    with pytest.raises(ValueError, match=r"seed=None gives the samples of Mixed no partners.*pass seed=\.\.\."):
        DataLoader(dataset)


@pytest.mark.parametrize(
    "arguments", [{"sampler": [1, 2, 3]}, {"batch_sampler": [[1, 2], [3]]}, {"sampler": [1, 2, 3], "batch_size": None}]
)
def test_loader_with_a_foreign_sampler_refuses_to_mix(arguments):
    (argument,) = set(arguments) - {"batch_size"}
    with pytest.raises(
        ValueError, match=rf"^{argument}=list has no order .*pass one of lit_loader.samplers as sampler="
    ):
        DataLoader(Mixed(Blend(3)), seed=1, **arguments)


def test_subset_refuses_a_mix_with_a_pool():
    """It would show images that the subset leaves out."""
    dataset = Mixed(Blend(3), Blend(1, weights=np.ones(23)))
    with pytest.raises(ValueError, match=r"^dataset=Subset selects images of Mixed, but Blend .*split the data before"):
        DataLoader(Subset(dataset, range(5)), seed=1)


@pytest.mark.parametrize("arguments", [{}, {"sampler": [1, 2, 3], "seed": 1}, {"batch_sampler": [[1, 2]], "seed": 1}])
def test_dataset_without_mixes_is_read_by_any_loader(arguments):
    class Reading(Mixed):
        def mixed_sample(self, index, part, partners):
            assert partners == ()
            return part["members"][0][0]

    loader = DataLoader(Reading(), **arguments)
    assert next(iter(loader)).tolist()[0] in (0, 1)
