"""Base of the data modules that read annotation tables: source, samplers, transforms, summaries, pictures."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import Dataset, Sampler

from lit_loader.annotations import AnnotationTable, KeypointSchema, Tiling, tile_table
from lit_loader.annotations.keypoints import names_without_mirror
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.splitting import copies_across
from lit_loader.collate import batch_images, batch_targets
from lit_loader.datamodules.applied_transforms import transform_lines
from lit_loader.datamodules.base import RUN_STAGES, STAGES, LoaderDataModule, SplitData
from lit_loader.datamodules.batch_transforms import apply_to_batch, transform_batch
from lit_loader.datamodules.batching import Batching, checked_batching
from lit_loader.datamodules.data_fingerprint import check_data, data_record, set_record
from lit_loader.datamodules.joining import check_batch_size, check_can_join
from lit_loader.datamodules.keywords import as_settings, check_at_least, plain_arguments
from lit_loader.datamodules.pictures import draw_boxes
from lit_loader.datamodules.request_report import request_line
from lit_loader.datamodules.sampling import RandomSamplerConfig, SamplerConfig
from lit_loader.datamodules.schedule_report import draw_schedules, named_schedules, schedule_table
from lit_loader.datamodules.set_names import clean_set_names
from lit_loader.datamodules.summary import SetSummary, expected_class_mix, shares_by_epoch, summary_table
from lit_loader.datasets import JoinedDataset, MixingDataset, SampleTable, Stage, TableSource, every_sample
from lit_loader.datasets.mixing import Mixing, as_mixes
from lit_loader.datasets.samples import SampleUnit
from lit_loader.datasets.targets import attribute_names
from lit_loader.errors import SettingError
from lit_loader.foundation.byte_sizes import byte_count, byte_words
from lit_loader.foundation.counts import counted
from lit_loader.foundation.escaping import printable
from lit_loader.images import CacheSettings, ImageReading
from lit_loader.images.decoded_cache import CachedReader
from lit_loader.loader import DataLoader
from lit_loader.samplers import MixedSourceSampler, OrderSampler, SequentialSampler
from lit_loader.schedules import Schedule
from lit_loader.seeding import key64, sample_key
from lit_loader.transforms import describe
from lit_loader.transforms.preset_extras import without_extras
from lit_loader.types import FIRST_LABEL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TableDataModule", "Transforms"]

Transforms: TypeAlias = Callable[..., Any] | Mapping[str, Any]
"""A transform of ``(image, target)``, or keywords of the data module's preset."""


class _Samples(NamedTuple):
    """Table of a set's samples, with the numbers of objects (or images) and crowd regions that were left out.

    ``name`` has the stage, as in ``val/plant``; ``set_name`` does not. ``images`` is the table of whole images that
    tiles were made from, or ``table`` itself.
    """

    name: str
    set_name: str
    table: AnnotationTable
    images: AnnotationTable
    num_left_out: int
    num_crowd: int


# Counts of `_Samples` that summaries show.
_LEFT_OUT: Final = ("num_left_out", "num_crowd")


class TableDataModule(LoaderDataModule):
    """Loaders over the tables of a source; a subclass for a task defines its samples and batches.

    A subclass must define `make_dataset` and usually defines `collate_fn`. The hooks `select_samples`,
    `transform_defaults`, `names` and `draw_batch` have defaults. It sets the attributes below that differ from their
    defaults.

    Prediction gets every image of its tables, or every object where objects are cut out, with or without known labels;
    its tables are converted to the names of the other stages. Training never sees regions that are annotated as crowds,
    nor images that contain nothing else; evaluation of whole images keeps them, with ``iscrowd``.

    Training joins the tables of a source with several training tables, such as `MixedSource`: each gets a sampler from
    the `SamplerConfig`, and `TableSource.join_samplers` mixes them.

    Attributes:
        sample_unit: ``"image"``, or ``"object"`` for samples that are cut out of their images.
        keypoints: True for batches with points.
        wanted_attributes: Names of the attributes of a batch, or ``"all"`` for all attributes of the tables.
        label_attribute: Attribute whose values are the labels, or None for the class.
        first_label: Label of the first class in the targets of whole images.
        counts_images: True if summaries count a label once an image, False if they count it for each object.
        tiling: Settings of the tiles that are the samples of some stages, or None for whole images.
        mixing: Tuple of the mixes of training images, in the order in which they are applied.

    Args:
        source: Location of the data, and the split of each stage. Decoded caches use its ``progress``, if it has one.
        preset: The task's transforms: ``preset(train, **keywords)``.
        train_sampler: A `SamplerConfig`, which makes a sampler for each set, or any sampler of indices (only for a
            stage with one set), or None to visit each sample once an epoch, in a new order every epoch.
        val_sampler: The same for validation, or None for sequential order.
        test_sampler: The same for testing, or None for sequential order.
        predict_sampler: The same for prediction, or None for sequential order.
        train_batching: Composition of training batches, such as images of similar aspect ratio or size, see `Batching`
            (only for one training set), or None for consecutive samples of the sampler.
        eval_batching: The same for validation, testing and prediction. It changes the order of samples.
        train_transforms: v2 transforms of ``(image, target)``, or a mapping with keywords of the preset, or None for
            the preset's defaults. The preset also gets keywords that depend on the table, such as flip pairs.
            ``hflip=None`` means the preset's default, or 0 for points without known mirror pairs.
        val_transforms: The same for validation, or None for the preset without randomness. If ``train_transforms`` is a
            mapping, the preset gets its keywords except ``extra_before`` and ``extra_after``, updated by a mapping
            given here. If ``train_transforms`` is a callable, a warning names both image sizes if they differ.
        test_transforms: The same for testing.
        predict_transforms: The same for prediction.
        mixing: One `Mix`, or a list or a mapping of several, which mix each training image with others of the training
            sets, in this order; None to mix none. The mixed image is then transformed as any other.
        batch_transforms: A function or module that maps a batch to a batch, applied to each training batch on the
            device. Its draws, on any device, are a function of seed, epoch, batch and rank. A module is moved to the
            device.
        eval_batch_transforms: The same for validation, testing and prediction, which do not use ``batch_transforms``;
            pass `lit_loader.transforms.NormalizeBatch` to both.
        reading: Settings for reading image files, or a mapping of their fields, or None for the defaults.
        cache: True to keep decoded images in a file that all workers and ranks of a host, and later runs, map.
            ``prepare_data`` makes it for the stages that the trainer runs, or for all without a trainer. False to
            decode in every epoch; the next three are then checked and have no effect.
        cache_dir: Folder that contains the cache in its subfolder ``decoded``, such as a folder under ``/dev/shm`` to
            keep it in memory, or None for the ``cache_dir`` of the source, or else ``~/.cache/lit_loader``.
        cache_size: Longest side in pixels of a cached image, or None for the full size.
        cache_budget: Maximum number of bytes of all caches that this data module opens, such as ``"8 GiB"``, or None
            for half of the disk space that is free when a cache is made.
        strict_data: True to refuse a checkpoint if the data of a stage that runs has changed since; False to warn. A
            checkpoint records the images, annotations, transforms, mixes and samplers of the open stages.
        **settings: Batch sizes, workers and seed, as in `LoaderDataModule`.

    Raises:
        ValueError: If a setting is outside its choices.
        TypeError: If a setting, or a keyword of the preset, is unknown or has a wrong type.
    """

    sample_unit: SampleUnit = "image"
    keypoints: bool = False
    wanted_attributes: Sequence[str] | Literal["all"] = ()
    label_attribute: str | None = None
    first_label: int = FIRST_LABEL
    counts_images: bool = False
    tiling: Tiling | None = None
    _is_prepared = False
    _fingerprint: Any = None  # of the source, see `_close_changed`

    def __init__(
        self,
        source: TableSource,
        *,
        preset: Callable[..., Any],
        train_sampler: SamplerConfig | Sampler[int] | None = None,
        val_sampler: SamplerConfig | Sampler[int] | None = None,
        test_sampler: SamplerConfig | Sampler[int] | None = None,
        predict_sampler: SamplerConfig | Sampler[int] | None = None,
        train_batching: Batching | None = None,
        eval_batching: Batching | None = None,
        train_transforms: Transforms | None = None,
        val_transforms: Transforms | None = None,
        test_transforms: Transforms | None = None,
        predict_transforms: Transforms | None = None,
        mixing: Mixing | None = None,
        batch_transforms: Callable[[Any], Any] | None = None,
        eval_batch_transforms: Callable[[Any], Any] | None = None,
        reading: ImageReading | Mapping[str, Any] | None = None,
        cache: bool = False,
        cache_dir: Path | str | None = None,
        cache_size: int | None = None,
        cache_budget: int | str | None = None,
        strict_data: bool = False,
        **settings: Any,
    ) -> None:
        # Before the types are checked, because its refusals have remedies.
        self.mixing = as_mixes(mixing)
        self._save_arguments(TableDataModule, locals())
        super().__init__(**settings)
        self._reading = as_settings(ImageReading, reading)
        self.hparams["reading"] = asdict(self._reading)
        self.source = source
        train_sampler = RandomSamplerConfig() if train_sampler is None else train_sampler
        samplers = (train_sampler, val_sampler, test_sampler, predict_sampler)
        self._samplers: dict[Stage, Any] = dict(zip(STAGES, samplers, strict=True))
        self._batchings: dict[Stage, Batching | None] = {
            stage: checked_batching(stage, train_batching if stage == "train" else eval_batching, sampler)
            for stage, sampler in self._samplers.items()
        }
        self._preset = preset
        transforms_of_stages = (train_transforms, val_transforms, test_transforms, predict_transforms)
        stage_transforms: dict[Stage, Transforms | None] = dict(zip(STAGES, transforms_of_stages, strict=True))
        self._transforms = self._checked_transforms(stage_transforms)
        # `_compare_sizes` warns of these stages, because the user may have forgotten them.
        missing = [stage for stage, transforms in stage_transforms.items() if transforms is None]
        self._stages_without_transforms: set[Stage] = set(missing) if callable(train_transforms) else set()
        self._mix_names = _mix_names(mixing)
        self._batch_transforms = {True: batch_transforms, False: eval_batch_transforms}  # True for training batches
        self._samples: dict[Stage, list[_Samples]] = {}
        self._set_records: dict[str, Any] = {}  # of the open sets by their names, for checkpoints
        self.strict_data = strict_data
        # The settings are checked even if the cache is off.
        cache_settings = CacheSettings(
            cache_dir=getattr(source, "cache_dir", None) if cache_dir is None else cache_dir,
            cache_size=cache_size,
            cache_budget=cache_budget,
            progress=getattr(source, "progress", True),
        )
        self._cache = cache_settings if cache else None
        self._cached_bytes: dict[str, int] = {}  # of the open caches by key; they count against cache_budget

    def _checked_transforms(self, stage_transforms: Mapping[Stage, Transforms | None]) -> dict[Stage, Transforms]:
        """Return the transforms, or the checked keywords, of every stage, and save keywords as hyperparameters."""
        for stage, transforms in stage_transforms.items():
            # A checkpoint cannot keep transforms that the user adds, but all other keywords.
            if isinstance(transforms, Mapping) and f"{stage}_transforms" not in self.hparams:
                self.hparams.update(plain_arguments({f"{stage}_transforms": without_extras(transforms)}))
        train_transforms = stage_transforms["train"]
        return {
            stage: self._with_train_keywords(transforms, train_transforms)
            for stage, transforms in stage_transforms.items()
        }

    def _with_train_keywords(self, transforms: Transforms | None, train_transforms: Transforms | None) -> Transforms:
        """Return a stage's transforms; keywords of the preset are added to the training keywords, and checked."""
        if transforms is not None and not isinstance(transforms, Mapping):
            return transforms
        # Transforms that the user adds may be random, so each stage has only those that are given for it.
        train_keywords = without_extras(train_transforms) if isinstance(train_transforms, Mapping) else {}
        keywords = {**train_keywords, **(transforms or {})}
        # A config cannot leave a key out. Without hflip `transform_defaults` decides by the mirror pairs.
        if keywords.get("hflip", 0.0) is None:
            del keywords["hflip"]
        # A wrong keyword fails here, not in the middle of a run.
        self._preset(False, **keywords)
        return keywords

    # -- hooks of a task ------------------------------------------------------------------------------------

    @abstractmethod
    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> Dataset[Any]:
        """Return the data set over a table of samples.

        If the data set takes ``reading`` and ``cache``, pass ``**self.reading_arguments`` to it.
        """

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples of a table for every stage except prediction; by default its images.

        Raises:
            ValueError: If the table lacks annotations that the task needs.
        """
        return SampleTable(table, 0)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the preset's keywords that depend on the table; the user's keywords override them.

        By default these are the flip pairs of points. Without known pairs the preset does not flip, unless the user
        sets ``hflip`` or ``flip_pairs``.
        """
        if not self.keypoints:
            return {}
        return {"flip_pairs": table.flip_pairs} if table.flip_pairs else {"hflip": 0.0}

    def names(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        """Return the lists of names that all tables must share, by kind.

        A task whose labels are not classes returns the label names under ``"labels"``.
        """
        names = {"class_names": table.class_names}
        if self.keypoints:
            names["keypoint_names"] = table.keypoint_names
        for name in attribute_names(table, self.wanted_attributes):
            names[f"values of the attribute {name!r}"] = table.attributes[name].names
        return names

    def draw_batch(self, batch: Any, *, max_images: int, title: str) -> Figure:
        """Return a picture of a batch as a matplotlib figure, for `plot_batch`.

        Raises:
            NotImplementedError: By default, because the task does not define it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot draw batches; define draw_batch(self, batch, *, max_images, title) that "
            "returns a matplotlib Figure"
        )

    # -- for use in a task ----------------------------------------------------------------------------------

    @property
    def reading(self) -> ImageReading:
        """Reading of the source's images."""
        return self.source.image_reading(self._reading)

    @reading.setter
    def reading(self, reading: ImageReading) -> None:
        self._reading = reading

    @property
    def reading_arguments(self) -> dict[str, Any]:
        """Arguments ``reading`` and ``cache`` of a new data set."""
        cache = self._cache
        # All caches share one budget, so a new cache gets the remaining bytes.
        if cache is not None and (budget := byte_count(cache.cache_budget)) is not None:
            # A budget of 0 would be refused as a setting; with 1 byte the cache itself is refused, with the reason.
            cache = replace(cache, cache_budget=max(1, budget - sum(self._cached_bytes.values())))
        return {"reading": self.reading, "cache": cache or False}

    def has_keypoints(self, stage: Stage) -> bool:
        """Return True if batches of a stage have points."""
        return self.keypoints and any(table.keypoints is not None for table in self.tables(stage))

    def mirror_pairs(self, table: AnnotationTable) -> tuple[tuple[int, int], ...]:
        """Return the pairs of points of a table that a horizontal flip exchanges in training.

        Empty if the batches have no points, if no pairs are known, or if the preset does not flip. Transforms of your
        own, which may do anything, have none either.
        """
        transforms = self._transforms["train"]
        if not self.keypoints or table.keypoints is None or not isinstance(transforms, Mapping):
            return ()
        keywords = self._preset_keywords(transforms, table)
        pairs = keywords.get("flip_pairs") or ()
        return () if keywords.get("hflip") == 0 else tuple((first, second) for first, second in pairs)

    def draw_targets(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch of whole images with their targets, with further arguments of `draw_boxes`."""
        names = {"class_names": self.class_names, "attributes": self.attributes, "first_label": self.first_label}
        defaults = {**names, "skeleton": self.skeleton}
        return draw_boxes(batch_images(batch), batch_targets(batch), **{**defaults, **drawing})

    # -- data -----------------------------------------------------------------------------------------------

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the annotation tables of a stage, with one image row for each sample.

        Raises:
            ValueError: If tables have different names of classes, points or attributes, or lack annotations.
        """
        return [samples.table for samples in self._open_samples(stage)]

    def image_tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage before `tiling`: the same images and names, one row for each image.

        Raises:
            ValueError: As `tables`.
        """
        return [samples.images for samples in self._open_samples(stage)]

    def set_names(self, stage: Stage) -> list[str]:
        """Return the names of a stage's sets, in the order of `tables`, for the names of metrics and files.

        The source gives the names: a `MixedSource` the names of its sources, others by default numbers. Characters
        other than letters, digits, ``_``, ``-`` and ``.`` become ``_``, and equal names get numbers.
        """
        return [samples.set_name for samples in self._open_samples(stage)]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or of the attribute values that are the labels, in label order."""
        table = self.first_table()
        return () if table is None else self.names(table).get("labels", table.class_names)

    @property
    def keypoint_schema(self) -> KeypointSchema | None:
        """Names and flip pairs of the points of a batch, or None if it has no points."""
        table = self.first_table()
        return table.keypoint_schema if table is not None and self.keypoints else None

    @property
    def skeleton(self) -> tuple[tuple[int, int], ...]:
        """Positions of the points that drawings connect by lines, see `KeypointSchema`; empty without points."""
        schema = self.keypoint_schema
        return () if schema is None else schema.skeleton

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Value names of every attribute of a batch."""
        table = self.first_table()
        if table is None:
            return {}
        return {name: table.attributes[name].names for name in attribute_names(table, self.wanted_attributes)}

    def first_table(self, stages: Sequence[Stage] = STAGES) -> AnnotationTable | None:
        """Return the first table of these stages, or None without any."""
        return next((table for stage in stages for table in self.tables(stage)), None)

    def prepare_data(self) -> None:
        """Draw, unpack and index the data, once on a machine, and make the caches of decoded images.

        Without a trainer the stages that will run are unknown, so caches are made for all stages.
        """
        self._is_prepared = True
        self.source.prepare()
        # Preparing may have replaced the files of data that is open.
        self._close_changed()
        if self._cache is None:
            return
        # Not self.setup(): a user's setup() might fail if it ran twice.
        LoaderDataModule.setup(self, None if self.trainer is None else self.trainer.state.fn)

    def setup(self, stage: str | None = None) -> None:
        """Open the data of a stage, or of all stages if it is None; open data stays open unless its files changed.

        Raises:
            ValueError: If the stage is unknown.
        """
        if self._is_prepared_by_another():
            # The other process has put the tables into their cache; open them without checking the files again.
            self.source.reopen()
        self._close_changed()
        super().setup(stage)

    def stage_data(self, stage: Stage) -> list[SplitData]:
        """Return the data sets of a stage's tables with their samplers; those for training are joined.

        Raises:
            ValueError: If the samplers or the batching of several training tables cannot be joined.
        """
        split_data: list[SplitData] = []
        tables = self.tables(stage)
        is_joined = stage == "train" and len(tables) > 1
        for table in tables:
            dataset = self.make_dataset(table, self._make_transforms(stage, table))
            cache = getattr(dataset, "cache", None)
            # Sets of the same images share one cache, which counts once against the budget.
            if self._cache is not None and isinstance(cache, CachedReader) and cache.key not in self._cached_bytes:
                self._cached_bytes[cache.key] = cache.num_bytes
                rank_zero_info(f"{stage}: {byte_words(cache.num_bytes)} of decoded images in {self._cache.folder}")
            self._compare_sizes(stage, table)
            sampler: Any = None if is_joined else self._sampler(table, stage)
            # Batching needs an order to regroup, so None becomes the data set's order.
            if (batching := self._batchings[stage]) is not None and not is_joined:
                order = SequentialSampler(table.num_images) if sampler is None else sampler
                sampler = batching.batched(order, table)
            split_data.append((dataset, sampler))
        if is_joined:
            split_data = [(JoinedDataset([dataset for dataset, _ in split_data]), self._joined_sampler())]
        if stage == "train" and self.mixing:
            self._check_unlabelled(tables)
            split_data = [(MixingDataset(dataset, self.mixing), sampler) for dataset, sampler in split_data]
        return split_data

    def _check_unlabelled(self, tables: Sequence[AnnotationTable]) -> None:
        """Refuse to mix training sets that label different classes.

        Of a class that a mixed image may show without labels, no object trains, not even those that are labelled.
        """
        class_lists = [sorted(table.unlabelled_classes) for table in tables]
        if any(names != class_lists[0] for names in class_lists):
            names_text = " and ".join(map(str, class_lists))
            rule = f"would mix images of training sets with different unlabelled classes: {names_text}"
            remedy = "label the same classes in all of them, or declare the classes of a MixedSource absent (missing)"
            raise SettingError("mixing", list(self.mixing), rule, remedy, settings={"mixing": None})

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply the batch transforms of the trainer's stage, on the device."""
        if self.trainer is None:
            return batch
        transform = self._batch_transforms[bool(self.trainer.training)]
        return apply_to_batch(transform, batch, self.trainer, seed=self.seed, dataloader_idx=dataloader_idx)

    def _prepare_once(self) -> None:
        """Prepare the source before its tables are first read, if no trainer does it."""
        if self._is_prepared or self.trainer is not None:
            return
        self._is_prepared = True
        if type(self).prepare_data is TableDataModule.prepare_data:
            # Reading tables needs no cache of images.
            self.source.prepare()
        else:
            self.prepare_data()

    def _open_samples(self, stage: Stage) -> list[_Samples]:
        if stage in self._samples:
            return self._samples[stage]
        self._prepare_once()
        tables = self.source.tables(stage)
        # The source may read its tables only now, and then has another fingerprint.
        self._close_changed()
        crowds = [0] * len(tables)
        # A crop has no `iscrowd`, so evaluation of crops would count a crowd region as an object.
        if stage == "train" or (stage != "predict" and self.sample_unit == "object"):
            crowds = [int(table.crowd.sum()) for table in tables]
            tables = [table.without_crowds() for table in tables]
        selected = self._to_predict(tables) if stage == "predict" else list(map(self.select_samples, tables))
        set_names = clean_set_names(self.source.set_names(stage))
        names = [stage] if len(tables) == 1 else [f"{stage}/{name}" for name in set_names]
        parts = zip(names, set_names, selected, crowds, strict=True)
        stage_samples = [
            _Samples(name, set_name, self._tiled(stage, samples.table), *samples, num_crowd)
            for name, set_name, samples, num_crowd in parts
        ]
        all_samples = [*(samples for sets in self._samples.values() for samples in sets), *stage_samples]
        # The first open table decides the names. Ids of other tables would otherwise mean other classes.
        for samples, table in zip(stage_samples, tables, strict=True):
            self._check_names(all_samples[0].table, samples.table, stage)
            counts = {
                # A sample of one object has an image row of its own, so only whole images are comparable.
                "image": table.num_images - samples.images.num_images if self.sample_unit == "image" else 0,
                "object": table.num_objects - samples.images.num_objects,
                "crowd region": samples.num_crowd,
            }
            left_out = " and ".join(counted(count, noun) for noun, count in counts.items() if count)
            if left_out:
                rank_zero_info(f"{samples.name}: {left_out} left out, {samples.images.num_images} samples stay")
            if samples.table is not samples.images:
                rank_zero_info(
                    f"{samples.name}: {samples.table.num_images} tiles of {samples.images.num_images} images"
                )
        self._samples[stage] = stage_samples
        return stage_samples

    def _tiled(self, stage: Stage, table: AnnotationTable) -> AnnotationTable:
        """Return the tiles of a table of images if the samples of a stage are tiles, else the table."""
        if self.tiling is None or stage not in self.tiling.stages:
            return table
        return tile_table(table, self.tiling, exif_orientation=self.reading.exif_orientation)

    def _set_tiling(self, tiling: Tiling | Mapping[str, Any] | None) -> None:
        """Check the argument ``tiling`` of a data module and keep it."""
        self.tiling = None if tiling is None else as_settings(Tiling, tiling)
        self.hparams["tiling"] = None if self.tiling is None else plain_arguments(asdict(self.tiling))

    def _to_predict(self, tables: list[AnnotationTable]) -> list[SampleTable]:
        """Return every image, or object, of tables, with the names and points of another stage."""
        reference = self.first_table(STAGES[:3])
        # An empty table in front decides the names.
        references = [] if reference is None else [reference.select([])]
        renamed = with_same_names([*references, *tables])[len(references) :]
        num_empty = sum(int((np.diff(table.offsets) == 0).sum()) for table in renamed)
        if num_empty and self.sample_unit == "object":
            rank_zero_info(f"predict: {num_empty} images have no object, so they give no sample")
        return [every_sample(table, sample_unit=self.sample_unit) for table in renamed]

    def _check_names(self, reference: AnnotationTable, table: AnnotationTable, stage: Stage) -> None:
        """Refuse a table whose class, point or attribute ids have other names than in a reference table."""
        expected = self.names(reference)
        actual = self.names(table)
        for kind in {**expected, **actual}:
            if expected.get(kind, ()) != actual.get(kind, ()):
                raise ValueError(
                    f"{kind} differ between the sets of the source: {expected.get(kind, ())}, and for {stage} "
                    f"{actual.get(kind, ())}; a source must give every table the same names in the same order"
                )

    def _make_transforms(self, stage: Stage, table: AnnotationTable) -> Callable[..., Any]:
        transforms = self._transforms[stage]
        if not isinstance(transforms, Mapping):
            return transforms
        keywords = self._preset_keywords(transforms, table)
        preset_transforms: Callable[..., Any] = self._preset(stage == "train", **keywords)
        # The user's pairs are taken unchanged.
        if stage == "train" and "flip_pairs" not in transforms and keywords.get("hflip") != 0:
            warn_of_sides(table.keypoint_schema if self.keypoints else None)
        return preset_transforms

    def _preset_keywords(self, transforms: Mapping[str, Any], table: AnnotationTable) -> dict[str, Any]:
        """Return the preset's keywords: the table's, updated by the user's."""
        keywords = {**self.transform_defaults(table), **transforms}
        if "flip_pairs" in transforms and "hflip" not in transforms:
            # The table knows no pairs, but the user does, so the default hflip=0 does not apply.
            keywords.pop("hflip", None)
        return keywords

    def _transform_lines(self) -> list[str]:
        """Return the mixes of training and the transforms of every stage as lines of a summary."""
        # Presets get keywords from a table, such as the mirror pairs of its points.
        table = self.first_table(STAGES[:3])
        if table is None:
            return []
        mixes = [f"  {line}" for line in describe(self._training_mixes())]
        heading = ["train mixing:"] if mixes else []
        return [*heading, *mixes, *transform_lines({stage: self._make_transforms(stage, table) for stage in STAGES})]

    def _compare_sizes(self, stage: Stage, table: AnnotationTable) -> None:
        """Warn once if the user's training transforms and the preset of evaluation make images of different sizes."""
        if stage not in self._stages_without_transforms or table.num_images == 0:
            return
        # One warning is enough, whichever stage comes first.
        self._stages_without_transforms.clear()
        first = table.select([0])
        cache = self._cache
        # A table of one image would get its own cache.
        self._cache = None
        sizes = []
        try:
            # The comparison must not change the draws of the run. Schedules need an epoch.
            with sample_key(), warnings.catch_warnings(action="ignore"):
                for transforms_stage in ("train", stage):
                    sample = self.make_dataset(first, self._make_transforms(transforms_stage, first))[0]
                    sizes.append(tuple(sample[0].shape[-2:]))
        except Exception:  # the run itself will report a sample that fails
            return
        finally:
            self._cache = cache
        train_size, eval_size = sizes
        if train_size != eval_size:
            rank_zero_warn(
                f"train_transforms is a callable, which only training uses: it makes the first image of {stage} "
                f"{train_size[0]}x{train_size[1]} (height x width), and the preset's defaults, which evaluation uses, "
                f"make it {eval_size[0]}x{eval_size[1]}; give {stage}_transforms, as keywords of the preset such as "
                f"{{'size': {list(train_size)}}} or as a callable"
            )

    def _sampler(self, table: AnnotationTable, stage: Stage) -> Sampler[int] | None:
        sampler: SamplerConfig | Sampler[int] | None = self._samplers[stage]
        if isinstance(sampler, SamplerConfig):
            return sampler.make_sampler(table)
        num_sets = len(self.tables(stage))
        if sampler is not None and num_sets > 1:
            raise ValueError(
                f"{stage}_sampler={type(sampler).__name__} would be shared by {num_sets} sets of different length; "
                "give a lit_loader.datamodules.SamplerConfig, which makes a sampler for each set"
            )
        return sampler

    def _joined_sampler(self) -> OrderSampler:
        """Return the sampler of several training tables that are joined.

        Raises:
            ValueError: If the tables, their sampler, the batching or the batch size do not fit a mix.
        """
        tables = {samples.name: samples.table for samples in self._open_samples("train")}
        check_can_join(tables, self._batchings["train"])
        samplers: list[Any] = [self._sampler(table, "train") for table in tables.values()]
        sampler = self.source.join_samplers(samplers)
        self._check_mix(sampler)
        return sampler

    def _check_mix(self, sampler: OrderSampler) -> None:
        """Refuse a batch size that does not fit the mix of a sampler."""
        argument = "batch_size" if self._stage_batch_sizes["train"] is None else "train_batch_size"
        check_batch_size(sampler, argument, self.batch_size)

    def _make_loaders(self, stage: Stage, *, to_device: bool = True) -> list[DataLoader[Any]]:
        if stage == "train" and len(self.tables(stage)) > 1:
            sampler = self._open(stage)[0][1]
            # Again, since `batch_size` may have been set after `setup`. A subclass may have a sampler of its own.
            if isinstance(sampler, OrderSampler):
                self._check_mix(sampler)
        return super()._make_loaders(stage, to_device=to_device)

    def _is_prepared_by_another(self) -> bool:
        """Return True if the trainer has called `prepare_data` in another process of this machine."""
        trainer = self.trainer
        # A subclass that overrides `prepare_data` may not have prepared the source.
        if trainer is None or not type(self).prepare_data.__module__.startswith("lit_loader."):
            return False
        return trainer.local_rank > 0 and (self.prepare_data_per_node or trainer.node_rank == 0)

    def _close_changed(self) -> None:
        """Forget the open data of all stages if the source's tables have changed since."""
        fingerprint = self.source.fingerprint()
        if fingerprint != self._fingerprint:
            self._data.clear()
            self._samples.clear()
            self._set_records.clear()
        self._fingerprint = fingerprint

    # -- checkpoints ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training loader, and a record of the open data, the same on every rank."""
        state = super().state_dict()
        record = self._data_record()
        return {**state, "data": record} if record["sets"] else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare the data of the stages that run with the checkpoint's, and continue when training starts.

        Raises:
            DataChangedError: If the data has changed, and ``strict_data`` is true.
        """
        trainer = self.trainer
        # The function of a trainer that has not run is None.
        stages = ("train",) if trainer is None else RUN_STAGES.get(str(getattr(trainer.state.fn, "value", "")), ())
        if any(self._samples.get(stage) for stage in stages if stage != "predict"):
            check_data(state_dict.get("data"), self._data_record(), stages, strict=self.strict_data)
        super().load_state_dict(state_dict)

    def _data_record(self) -> dict[str, Any]:
        """Return the record of the open sets; each table is hashed only once."""
        sets: dict[str, Any] = {}
        for stage in STAGES[:3]:
            for samples in self._samples.get(stage, ()):
                if samples.name not in self._set_records:
                    self._set_records[samples.name] = self._set_record(stage, samples.table)
                sets[samples.name] = self._set_records[samples.name]
        return data_record(sets)

    def _set_record(self, stage: Stage, table: AnnotationTable) -> dict[str, Any]:
        """Return the record of one set."""
        sampler = self._samplers[stage]
        has_config = isinstance(sampler, SamplerConfig)
        mix = None
        # Evaluation, and random order, have the mix of the data.
        if stage == "train" and has_config and not isinstance(sampler, RandomSamplerConfig):
            order = sampler.make_sampler(table)
            # Mixes draw from all training sets together.
            mixing = self.mixing if len(self._open_samples(stage)) == 1 else ()
            counting: dict[str, Any] = {"by": self.label_attribute, "distinct": self.counts_images}
            mix = expected_class_mix([table], order, mixing=mixing, **counting)
        return set_record(
            table,
            label_attribute=self.label_attribute,
            mix=mix,
            transforms=self._make_transforms(stage, table),
            mixing=(self._training_mixes() or None) if stage == "train" else None,
            batch_transforms=self._batch_transforms[stage == "train"],
            # A sampler object may show its progress.
            sampler=sampler if has_config or sampler is None else type(sampler),
        )

    def _training_mixes(self) -> list[Any]:
        """Return the mixes of training samples, or of batches, for summaries and records."""
        return list(self.mixing)

    # -- summaries and pictures -----------------------------------------------------------------------------

    def summaries(self, stages: Sequence[Stage] = STAGES[:3]) -> list[SetSummary]:
        """Return counts, imbalance and the expected class mix of every set of some stages, without opening images.

        For each set the label comes first, then every attribute of a batch, and every attribute that a sampler
        balances. Several training sets are first summarised together, under the name ``train``.
        """
        balanced = [getattr(sampler, "balance_by", None) for sampler in self._samplers.values()]
        attributes = () if self.counts_images or self.label_attribute else self.attributes
        # Without duplicates, in this order.
        labels = dict.fromkeys([self.label_attribute, *attributes, *filter(None, balanced)])
        summaries = []
        for stage in stages:
            sets = self._open_samples(stage)
            # By epoch, if they change.
            shares: list[dict[int, float] | None] = [None] * len(sets)
            # The sets of a summary, their sampler, and their share of a mix.
            parts: list[tuple[str, list[_Samples], Any, dict[int, float] | None]] = []
            if stage == "train" and len(sets) > 1:
                joined_sampler = self._joined_sampler()
                if isinstance(joined_sampler, MixedSourceSampler):
                    shares = list(shares_by_epoch(joined_sampler))
                parts.append((stage, sets, joined_sampler, None))
            for samples, share in zip(sets, shares, strict=True):
                parts.append((samples.name, [samples], self._sampler(samples.table, stage), share))
            for name, part, sampler, share in parts:
                counts = {field: sum(getattr(samples, field) for samples in part) for field in _LEFT_OUT}
                if any(samples.table is not samples.images for samples in part):
                    counts["num_tiled_images"] = sum(samples.images.num_images for samples in part)
                tables = [samples.table for samples in part]
                settings: dict[str, Any] = {"distinct": self.counts_images, "shares": share, **counts}
                # Mixes draw from all training sets together, and those have the name of the stage.
                if name == "train":
                    settings["mixing"] = self.mixing
                summaries += [SetSummary.of(name, tables, sampler, by=label, **settings) for label in labels]
        return summaries

    def summary(self) -> str:
        """Return counts, imbalance and the expected class mix as a table for a terminal, duplicates, and transforms.

        For a packed set in a store it says how many requests an image training needs.
        Image files are opened only if a file of another set has the same size.
        """
        sets: dict[str, list[AnnotationTable]] = {"train": self.image_tables("train")}
        sets |= {samples.name: [samples.images] for stage in STAGES[1:3] for samples in self._open_samples(stage)}
        copies = map(printable, copies_across(sets, self.reading.copy_traits))
        schedules = self.schedules()
        tables = [summary_table(self.summaries()), *([schedule_table(schedules)] if schedules else [])]
        requests = [
            line
            for samples in self._open_samples("train")
            for line in request_line(samples.name, samples.table, self._sampler(samples.table, "train"), self.reading)
        ]
        return "\n".join([*tables, *copies, *requests, *self._transform_lines()])

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of transforms, mixes, samplers and the source by name, as ``train_transforms.hflip``."""
        # Presets get keywords from a table, such as the mirror pairs of its points.
        table = self.first_table(STAGES[:3])
        settings: dict[str, Any] = {}
        for stage in STAGES:
            settings[f"{stage}_transforms"] = None if table is None else self._make_transforms(stage, table)
            settings[f"{stage}_sampler"] = self._samplers[stage]
        for index, mix in enumerate(self._training_mixes()):
            name = self._mix_names[index] if self._mix_names else f"mixing[{index}] {type(mix).__name__}"
            settings[name] = mix
        settings["batch_transforms"] = self._batch_transforms[True]
        settings["eval_batch_transforms"] = self._batch_transforms[False]
        settings["source.ratio"] = getattr(self.source, "ratio", None)
        schedules: dict[str, Schedule] = {}
        for name, setting in settings.items():
            schedules |= named_schedules(name, setting)
        return schedules

    def plot_schedules(self, num_epochs: int | None = None, *, path: Path | str | None = None) -> Figure:
        """Return a picture of the schedules over the epochs.

        Args:
            num_epochs: Number of epochs to show. None shows the trainer's ``max_epochs``, and without a trainer all
                epochs up to the last change.
            path: File to which the picture is saved, in the format of its extension, or None.

        Raises:
            SettingError: If the data module has no schedule, or ``num_epochs`` is below 1.
        """
        if num_epochs is None and self.trainer is not None:
            max_epochs = self.trainer.max_epochs
            # -1 means no limit.
            num_epochs = max_epochs if max_epochs is not None and max_epochs > 0 else None
        figure = draw_schedules(self.schedules(), num_epochs=num_epochs)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure

    def first_batch(self, stage: Stage, *, epoch: int = 0) -> Any:
        """Return the first batch of a stage's first set in an epoch as the model gets it, on the CPU.

        Args:
            stage: The stage.
            epoch: The epoch, from 0, whose values schedules have.

        Raises:
            ValueError: If the stage has no batch, or ``epoch`` is negative.
        """
        with closing(self._iter_batches(stage, epoch=epoch)) as batches:
            for batch in batches:
                return batch
        sizes = [table.num_images for table in self.tables(stage)]
        raise ValueError(f"stage={stage!r} gives no batch; its sets have {sizes} images")

    def batches(
        self, stage: Stage, *, epoch: int = 0, start: int = 0, num_batches: int = 1, dataloader_idx: int = 0
    ) -> list[Any]:
        """Return consecutive batches of a stage in an epoch, as `first_batch`, fewer at the epoch's end.

        They are the batches of a run with the same seed on one rank. Batch transforms are applied with the draws that
        they have on a CPU.

        Args:
            stage: The stage.
            epoch: The epoch, from 0.
            start: Number of the first batch, from 0. The batches before it are made and discarded.
            num_batches: Maximum number of batches.
            dataloader_idx: Index of the stage's loader; validation, test and prediction have one for each set.

        Raises:
            ValueError: If ``epoch``, ``start`` or ``dataloader_idx`` is negative, or ``num_batches`` is below 1.
        """
        check_at_least(0, start=start, dataloader_idx=dataloader_idx)
        check_at_least(1, num_batches=num_batches)
        transform = self._batch_transforms[stage == "train"]
        with closing(self._iter_batches(stage, epoch=epoch, dataloader_idx=dataloader_idx)) as iterator:
            batches = list(islice(iterator, start, start + num_batches))
        if transform is None:
            return batches
        key = key64(self.seed, "batch transforms", stage, dataloader_idx)
        cpu = torch.device("cpu")
        return [
            transform_batch(transform, batch, device=cpu, key=key, epoch=epoch, number=number, rank=0)
            for number, batch in enumerate(batches, start=start)
        ]

    def _iter_batches(self, stage: Stage, *, epoch: int, dataloader_idx: int = 0) -> Generator[Any]:
        """Yield the batches of a loader in an epoch, on the CPU, without changing the epoch of training."""
        # The stage may have no set at all.
        for loader in self._make_loaders(stage, to_device=False)[dataloader_idx : dataloader_idx + 1]:
            # Training uses the same sampler, and continues with its own epoch.
            sampler_state = getattr(loader.sampler, "__dict__", {})
            epochs: dict[str, Any] = {
                name: sampler_state[name] for name in ("epoch", "num_epochs_set") if name in sampler_state
            }
            with loader:
                loader.set_epoch(epoch)
                try:
                    yield from loader
                finally:
                    sampler_state.update(epochs)

    def plot_batch(
        self, stage: Stage = "train", *, epoch: int = 0, path: Path | str | None = None, max_images: int = 16
    ) -> Figure:
        """Return a picture of the first batch of a stage in an epoch, as the model gets it.

        Args:
            stage: The stage.
            epoch: The epoch, from 0: it shows the effect of schedules and mixes in this epoch.
            path: File to which the picture is saved, in the format of its extension, or None.
            max_images: Maximum number of images.

        Raises:
            ValueError: If the stage has no batch, or ``epoch`` is negative.
            TypeError: If the collate function returns columns instead of targets, see `batch_targets`.
        """
        batch = self.first_batch(stage, epoch=epoch)
        title = f"{stage} batch of epoch {epoch}" if epoch else f"{stage} batch"
        figure = self.draw_batch(batch, max_images=max_images, title=title)
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure


def _mix_names(mixing: Mixing | None) -> list[str]:
    """Return names of the mixes in a mapping by its keys, as its user knows them; empty without a mapping."""
    return [f"mixing.{key}" for key, mix in mixing.items() if mix is not None] if isinstance(mixing, Mapping) else []


def warn_of_sides(schema: KeypointSchema | None) -> None:
    """Warn if a horizontal flip would leave points whose names say left or right on the wrong side."""
    names = () if schema is None else names_without_mirror(schema)
    if names:
        listed = shorten(", ".join(map(repr, names)))
        rank_zero_warn(
            f"training mirrors images, but the flip pairs do not exchange left and right of the points {listed}, so "
            "they are trained on the wrong side; complete flip_pairs in the schema, or pass "
            "train_transforms={'hflip': 0}"
        )
