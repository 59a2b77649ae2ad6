"""Mixing: several images in one sample. Base class of mixes, and the interface of data sets that apply them.

NOTE [Partners of a sample]
    Other libraries take the other images of a mosaic from a buffer in the worker, so a sample depends on the worker and
    on the samples that it made before. Here the partners of a sample are a function of (seed, epoch, position): the
    engine draws them when it plans the batch, in the main process, and sends their indices with the task. A worker
    reads each part under a key of its own, then mixes and transforms the sample under the sample's key.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lit_loader.errors import SettingError
from lit_loader.samplers.epoch_settings import EpochSetting
from lit_loader.schedules import EpochSchedule, Scheduled
from lit_loader.seeding import SampleRng
from lit_loader.types import IndexArray

if TYPE_CHECKING:
    from lit_loader.annotations import AnnotationTable
    from lit_loader.images.lazy_image import LazyImage

__all__ = ["MAX_PARTNERS", "Mix", "MixSample", "Partner", "PartnerDataset", "PartnerPool", "mix_parts"]

MAX_PARTNERS: Final = 15
"""Largest number of partners of one mix, so that each has draws of its own."""


class MixSample(NamedTuple):
    """A sample to be mixed, before it is transformed.

    Attributes:
        image: The image, whose pixels are read on demand.
        target: As `lit_loader.DetectionDataset` describes it, in pixels of the image.
        object_row: Row of the object for which a `PartnerPool` drew this partner, or None.
        fields: `DeclaredFields` of the target: names of its per-object and per-image fields; None for the defaults.
    """

    image: LazyImage
    target: dict[str, Any]
    object_row: int | None = None
    fields: Any = None


class Mix(ABC):
    """Mixes a sample with partners: other samples of the same data set, or objects of them.

    Determinism: the partners and all draws are functions of (seed, epoch, position), so a mixed sample has the same
        bits on any worker, rank and backend, and in a resumed run.

    Args:
        p: Probability that a sample is mixed, in [0, 1]; may be a schedule of epochs.

    Raises:
        SettingError: ``p`` is outside [0, 1] in an example epoch, or depends on the batch.
    """

    def __init__(self, *, p: Scheduled = 1.0) -> None:
        setting = EpochSetting("p", p, _checked_chance)
        self.p: float | EpochSchedule = setting.schedule or setting.at(0)

    def chance(self, epoch: int) -> float:
        """Return the probability that a sample of an epoch is mixed.

        Raises:
            SettingError: The schedule of ``p`` has a value outside [0, 1] there.
        """
        return float(EpochSetting("p", self.p, _checked_chance).at(epoch))

    @abstractmethod
    def num_partners(self, epoch: int) -> int:
        """Return the number of partners of a mixed sample in an epoch, at most `MAX_PARTNERS`."""

    @abstractmethod
    def apply(self, samples: list[Any], rng: SampleRng) -> Any:
        """Return one sample made of several.

        Args:
            samples: The sample, then its partners: `MixSample` for lit_loader's data sets, otherwise what
                ``dataset[i]`` returns.
            rng: Generators of the sample.
        """

    def pool(self, tables: Sequence[AnnotationTable]) -> PartnerPool | None:
        """Return where partners are drawn from, or None for the order of the epoch, which is the default.

        Args:
            tables: The tables of the data set, one after the other.
        """
        return None

    def __repr__(self) -> str:
        # Semicolons, because the text of a schedule has commas.
        return f"{type(self).__name__}({'; '.join(_arguments(self))})"


class PartnerPool(Protocol):
    """Images or objects from which partners are drawn, instead of the order of the epoch."""

    def draw(self, key: int, start: int, stop: int) -> tuple[IndexArray, IndexArray]:
        """Return draws number ``start`` to ``stop - 1``, each independent of the others.

        Args:
            key: A 64-bit key.
            start: The first draw.
            stop: One past the last draw.

        Returns:
            Indices of the data set, and the row of an object in each image's target or -1; int64 ``(stop - start,)``.
        """


class Partner(NamedTuple):
    """A partner of one sample, as the plan of an epoch draws it.

    Attributes:
        mix: Position of the mix in `PartnerDataset.mixing`.
        dataset_index: Index of its sample.
        object_row: Row of the object in the image's target, or None.
        spares: Pairs of index and object row that may replace the partner if it cannot be read, in order.
    """

    mix: int
    dataset_index: int
    object_row: int | None = None
    spares: tuple[tuple[int, int | None], ...] = ()


class PartnerDataset(ABC):
    """Interface of a data set whose samples are mixed: the engine reads each part, then calls `mixed_sample`.

    Attributes:
        mixing: The mixes, in the order in which they are applied.
    """

    mixing: tuple[Mix, ...]

    @abstractmethod
    def partner_pool(self, number: int) -> PartnerPool | None:
        """Return the pool of mix number ``number``, or None for the order of the epoch."""

    @abstractmethod
    def read_part(self, index: int, object_row: int | None = None) -> Any:
        """Return a sample before it is mixed.

        Args:
            index: Index of the data set.
            object_row: Row of the object for which it was drawn, or None.
        """

    @abstractmethod
    def mixed_sample(self, index: int, part: Any, partners: Sequence[tuple[int, Any]]) -> Any:
        """Return the sample ``index``, mixed with its partners and transformed.

        Args:
            index: Index of the data set.
            part: The sample's own part, from `read_part`.
            partners: For each partner the number of its mix and its part; empty if the sample is not mixed.
        """


def mix_parts(mixing: Sequence[Mix], part: Any, partners: Sequence[tuple[int, Any]], rng: SampleRng) -> Any:
    """Apply the mixes that have partners, one after the other, and return the mixed part.

    Args:
        mixing: The mixes of the data set.
        part: The sample's own part.
        partners: For each partner the number of its mix and its part.
        rng: Generators of the sample.
    """
    for number, mix in enumerate(mixing):
        samples = [partner for mix_number, partner in partners if mix_number == number]
        if samples:
            part = mix.apply([part, *samples], rng)
    return part


def _checked_chance(name: str, value: Any) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:
        raise SettingError(name, value, "is not a probability in [0, 1]")
    return float(value)


def _arguments(mix: Mix) -> list[str]:
    """Return ``p`` and the arguments that differ from their defaults, as ``name=value``."""
    arguments = []
    for name, parameter in inspect.signature(type(mix).__init__).parameters.items():
        # Texts are compared, because configs have lists where Python has tuples.
        text = _text(getattr(mix, name, parameter.default))
        if name == "p" or (name != "self" and text != _text(parameter.default)):
            arguments.append(f"{name}={text}")
    return arguments


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
