"""Small mixes for tests."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from lit_loader.images import DecodedImage
from lit_loader.mixing import Mix, MixSample


class Stacked(Mix):
    """Put the image of one partner below the image, and keep the fields that every target of a detection set has."""

    def num_partners(self, epoch):
        return 1

    def apply(self, samples, rng):
        first, second = samples
        images = [first.image.read(), second.image.read()]
        width = max(image.shape[2] for image in images)
        padded = [torch.nn.functional.pad(image, (0, width - image.shape[2])) for image in images]
        pixels = torch.cat(padded, dim=1)
        moved = second.target["boxes"].as_subclass(torch.Tensor) + torch.tensor([0, images[0].shape[1]] * 2)
        boxes = torch.cat([first.target["boxes"].as_subclass(torch.Tensor), moved])
        target = {name: value for name, value in first.target.items() if name in ("image_id", "is_duplicate")}
        for name in ("labels", "area", "iscrowd"):
            target[name] = torch.cat([first.target[name], second.target[name]])
        target["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=tuple(pixels.shape[1:]))
        return MixSample(DecodedImage(pixels), target)


class Added(Mix):
    """Add a partner's numbers, of a data set that returns tensors."""

    def num_partners(self, epoch):
        return 1

    def apply(self, samples, rng):
        return samples[0] + 100 * samples[1]
