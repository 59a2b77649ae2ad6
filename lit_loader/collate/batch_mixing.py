"""Mixing of the images of a classification batch, and of their labels, by torchvision's MixUp and CutMix."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

import torch
from torch import Tensor

from lit_loader.errors import SettingError
from lit_loader.schedules import EpochSchedule, Schedule, Scheduled, as_schedule, example_epochs, schedules_in, value_at
from lit_loader.seeding import current_epoch
from lit_loader.seeding.generators import context

# The sum of two probabilities such as 0.9 and 0.1 may be one rounding error above 1.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class BatchMixing:
    """Mixing of a whole batch by torchvision's ``v2.MixUp`` or ``v2.CutMix``, chosen by probability.

    Each image is mixed with the one before it in the batch, and its label in the same proportion. So an image counts
    once in its batch, mixed or not, and a sampler's class shares stay the same. The exception are classes that some
    images do not label (-1): a label that is mixed with -1 becomes -1, and is not counted.

    Runs in: workers and the main process.
    Determinism: the draws are a function of (seed, epoch, batch, rank). The pairs are within the batch of a rank, so
        another number of ranks mixes other pairs.

    Args:
        mixup: Probability that MixUp mixes a batch, in [0, 1]; may be a schedule of epochs.
        cutmix: The same for CutMix. Their sum is at most 1; the other batches are not mixed.
        mixup_alpha: Both parameters of the Beta distribution of MixUp's proportion, above 0; may be a schedule of
            epochs.
        cutmix_alpha: The same for CutMix.

    Raises:
        SettingError: A probability is outside of [0, 1], the sum is above 1 in an epoch, a parameter is not above 0, or
            a schedule depends on the batch.

    Source:
        Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization"; Yun et al. 2019, "CutMix".
    """

    mixup: Scheduled = 0.0
    cutmix: Scheduled = 0.0
    mixup_alpha: Scheduled = 0.2
    cutmix_alpha: Scheduled = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = as_schedule(getattr(self, field.name))
            is_schedule = isinstance(value, Schedule)
            if is_schedule and not isinstance(value, EpochSchedule):
                raise SettingError(field.name, value, "depends on the batch", "give a number, points or epochs")
            if not is_schedule and (isinstance(value, bool) or not isinstance(value, Real)):
                raise SettingError(field.name, value, "is not a number", "give a number, points or epochs")
            object.__setattr__(self, field.name, value)
        # A wrong epoch in the middle of a run fails here.
        for epoch in example_epochs(schedules_in([getattr(self, field.name) for field in fields(self)])):
            self.chances(epoch)
            self._alpha("mixup_alpha", epoch)
            self._alpha("cutmix_alpha", epoch)

    def __repr__(self) -> str:
        # Semicolons, because the text of a schedule has commas.
        settings = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        changed = [f"{name}={value}" for name, value, default in settings if value != default]
        return f"{type(self).__name__}({'; '.join(changed)})"

    def chances(self, epoch: int) -> tuple[float, float]:
        """Return the probabilities of MixUp and of CutMix in an epoch.

        Raises:
            SettingError: A probability is outside of [0, 1], or their sum is above 1.
        """
        mixup = float(value_at(self.mixup, epoch))
        cutmix = float(value_at(self.cutmix, epoch))
        for name, chance in (("mixup", mixup), ("cutmix", cutmix)):
            if not 0 <= chance <= 1:
                raise SettingError(name, chance, f"is not a probability in [0, 1] (epoch {epoch})")
        if mixup + cutmix > 1 + _ROUNDING:
            rule = f"and mixup={mixup} add up to more than 1 in epoch {epoch}; a batch is mixed by one of them"
            raise SettingError("cutmix", cutmix, rule, "lower one of the probabilities")
        return mixup, cutmix

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix a batch, or return it unchanged, as the probabilities of the present epoch decide.

        Args:
            images: Float or uint8 ``(B, C, H, W)``.
            labels: float32 ``(B, num_classes)`` of 0 and 1; -1 for a class that an image does not label.

        Returns:
            Mixed images, of the same dtype: uint8 is rounded to the nearest level. Labels, float32
            ``(B, num_classes)``; a class that one of two mixed images does not label is -1.

        Raises:
            RuntimeError: The loader has no seed.
        """
        # Without the key of a batch, the draws would depend on the number of workers and could not be resumed.
        if context.key_parts is None:
            raise RuntimeError(
                "BatchMixing needs a loader with a seed, which gives each batch its draws; pass seed=0 to "
                "lit_loader.DataLoader, or collate within `with lit_loader.sample_key(epoch=0):`"
            )
        epoch = current_epoch()
        mixup, cutmix = self.chances(epoch)
        draw = torch.rand(()).item()
        if draw >= mixup + cutmix:
            return images, labels
        # Here, because lit_loader's loader works without torchvision.
        from torchvision.transforms import v2

        transform: v2.MixUp | v2.CutMix
        if draw < mixup:
            transform = v2.MixUp(alpha=self._alpha("mixup_alpha", epoch))
        else:
            transform = v2.CutMix(alpha=self._alpha("cutmix_alpha", epoch))
        # The unlabelled classes become further columns, which are mixed as the labels are: above 0 where one of the two
        # images does not label the class.
        columns = torch.cat([labels.clamp(min=0), (labels < 0).float()], dim=1)
        # torchvision's MixUp multiplies in the dtype of the images, which fails for integers.
        pixels = images if images.is_floating_point() or draw >= mixup else images.float()
        pixels, columns = transform(pixels, columns)
        if pixels.dtype != images.dtype:
            pixels = pixels.round_().to(images.dtype)
        mixed_labels, unlabelled = columns.chunk(2, dim=1)
        return pixels, mixed_labels.masked_fill(unlabelled > 0, -1.0)

    def _alpha(self, name: str, epoch: int) -> float:
        alpha = float(value_at(getattr(self, name), epoch))
        if not 0 < alpha < math.inf:
            raise SettingError(name, alpha, f"must be above 0 (epoch {epoch})")
        return alpha
