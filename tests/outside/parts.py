"""A sampler and a transform from outside of the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from lit_loader import OrderSampler, SamplerConfig

# -- a sampler ---------------------------------------------------------------------------------------------


class CrowdedFirst(OrderSampler):
    """Every image once, by its number of objects."""

    def __init__(self, counts, *, descending, seed=None):
        super().__init__(seed=seed)
        self.images = np.argsort(-counts if descending else counts, kind="stable")

    def order(self, *, seed, epoch):
        return self.images

    def expected_visits(self, epoch=0):
        return np.ones(len(self))

    def __len__(self):
        return len(self.images)

    num_indices = property(__len__)


@dataclass(frozen=True, kw_only=True)
class CrowdedFirstConfig(SamplerConfig):
    """Images with most, or fewest, objects first."""

    descending: bool = True

    def make_sampler(self, table):
        return CrowdedFirst(np.diff(table.offsets), descending=self.descending)


# -- a transform -------------------------------------------------------------------------------------------


class Inverted(torch.nn.Module):
    """Negatives, as float32 in [0, 1]."""

    def forward(self, image, target):
        return tv_tensors.Image(1 - v2.functional.to_dtype(v2.functional.to_image(image), scale=True)), target
