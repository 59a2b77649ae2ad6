"""The data module over a source: how its images are read, and which of them are kept decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import Dataset

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.base import LoaderDataModule
from lit_loader.datasets import MAX_PIXELS, CacheSettings, ImageReading, Stage, TableSource
from lit_loader.datasets.decoded import CachedReader, CacheKind, byte_count, byte_words
from lit_loader.datasets.reading import Decode

__all__ = ["SourceDataModule"]


class SourceDataModule(LoaderDataModule):
    """Loaders over the images of a source.

    Args:
        source: Where the data lies and which split serves which stage. If it has a ``cache_dir`` or a ``progress``,
            decoded caches follow them.
        size_mismatch: What an image that contradicts its annotated size does, see `DetectionDataset`.
        exif_orientation: Turn images upright by their EXIF, see `DetectionDataset`.
        max_pixels: Largest image accepted.
        decode: ``"exact"`` or ``"fast"``, see `DetectionDataset`.
        cache: Keep images decoded, once a host: ``"ram"`` in anonymous memory as long as the run, ``"disk"`` in the
            cache folder for later runs too; see `lit_loader.datasets.CacheSettings`. Made by ``prepare_data`` for the
            stages that the trainer runs, else when a stage is set up. None: decode in every epoch; the next two
            then wait, checked but without effect.
        cache_size: Longest side in pixels that is kept; None: images as decoded.
        cache_budget: Most bytes that the caches which this data module opens may take together, such as
            ``"8 GiB"``; None: each may take half of what is free when it is made.
        **settings: Batch sizes, workers and seed, as `LoaderDataModule` takes them.

    Raises:
        ValueError: If a setting is outside its choices.
        TypeError: If a setting is not known.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        size_mismatch: Literal["clip", "raise"] = "clip",
        exif_orientation: bool = True,
        max_pixels: int = MAX_PIXELS,
        decode: Decode = "exact",
        cache: CacheKind | None = None,
        cache_size: int | None = None,
        cache_budget: int | str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.source = source
        self._image_reading = ImageReading(
            size_mismatch=size_mismatch,
            exif_orientation=exif_orientation,
            max_pixels=max_pixels,
            decode=decode,
        )
        wanted = CacheSettings(
            "disk" if cache is None else cache,
            size=cache_size,
            budget=cache_budget,
            cache_dir=getattr(source, "cache_dir", None),
            progress=getattr(source, "progress", True),
        )
        self._cache = None if cache is None else wanted
        self._cached_bytes: dict[str, int] = {}
        self._fingerprint: Any = None

    @property
    def _reading(self) -> dict[str, Any]:
        """How a data set that is made now reads its images."""
        return {"reading": self._image_reading, "cache": self._cache_left()}

    def _cache_left(self) -> CacheSettings | None:
        """Return the settings of the next cache, with what is left of the budget, at least a byte."""
        budget = None if self._cache is None else byte_count(self._cache.budget)
        if self._cache is None or budget is None:
            return self._cache
        return replace(self._cache, budget=max(1, budget - sum(self._cached_bytes.values())))

    def _note_cache(self, dataset: Dataset[Any], *, stage: str) -> None:
        """Count what the cache of a data set takes; sets of the same images share one."""
        cache = getattr(dataset, "cache", None)
        if self._cache is None or not isinstance(cache, CachedReader) or cache.key in self._cached_bytes:
            return
        self._cached_bytes[cache.key] = cache.num_bytes
        place = "memory" if self._cache.kind == "ram" else "a file"
        rank_zero_info(f"{stage}: {byte_words(cache.num_bytes)} of decoded images in {place}, once a host")

    def prepare_data(self) -> None:
        """Draw, unpack and index the data, once on a machine, and decode what is kept decoded.

        Without a trainer nobody says which stages will run: then a cache on disk is made for all of them, one in
        memory when a stage is set up.
        """
        self.source.prepare()
        self._close_changed()
        if self._cache is None or (self.trainer is None and self._cache.kind == "ram"):
            return
        # the base's own: a user's setup() may be one that must not run twice
        LoaderDataModule.setup(self, None if self.trainer is None else self.trainer.state.fn)

    def setup(self, stage: str | None = None) -> None:
        """Open the data of a stage, None: of all; what is open stays, unless its files have changed.

        Raises:
            ValueError: If there is no such stage.
        """
        if self._is_prepared_by_another():
            self.source.reopen()
        self._close_changed()
        super().setup(stage)

    def _is_prepared_by_another(self) -> bool:
        """Whether the trainer has called `prepare_data` in another process of this machine.

        A subclass with a `prepare_data` of its own may not have prepared the source.
        """
        trainer = self.trainer
        if trainer is None or not type(self).prepare_data.__module__.startswith("lit_loader."):
            return False
        return trainer.local_rank > 0 and (self.prepare_data_per_node or trainer.node_rank == 0)

    def _source_tables(self, stage: Stage) -> list[AnnotationTable]:
        tables = self.source.tables(stage)
        self._close_changed()
        return tables

    def _close_changed(self) -> None:
        """Forget the data of all stages if it was opened from other tables than those that the source has now."""
        found = self.source.fingerprint()
        if found != self._fingerprint:
            self._data.clear()
            self._forget_samples()
        self._fingerprint = found

    def _forget_samples(self) -> None:
        """Forget what a subclass has made of the tables."""
