"""The data module under all that read annotation tables: source, samplers, transforms, summaries, pictures."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import Dataset, Sampler

from lit_loader.annotations import AnnotationTable, KeypointSchema
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.splitting import copies_across
from lit_loader.collate import batch_images, batch_targets
from lit_loader.datamodules.base import STAGES, LoaderDataModule, SplitData
from lit_loader.datamodules.batch_transforms import apply_to_batch
from lit_loader.datamodules.batching import Batching, checked_batching
from lit_loader.datamodules.keywords import as_settings
from lit_loader.datamodules.pictures import draw_boxes
from lit_loader.datamodules.sampling import RandomSamplerConfig, SamplerConfig
from lit_loader.datamodules.summary import SetSummary, summary_table
from lit_loader.datasets import SampleTable, Stage, TableSource, every_sample
from lit_loader.datasets.samples import SampleUnit
from lit_loader.datasets.targets import attribute_names
from lit_loader.foundation.escaping import printable
from lit_loader.images import CacheSettings, ImageReading
from lit_loader.images.decoded_cache import CachedReader, byte_count, byte_words
from lit_loader.samplers import SequentialSampler
from lit_loader.seeding import preserved_generators

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TableDataModule", "Transforms"]

Transforms: TypeAlias = Callable[..., Any] | Mapping[str, Any]
"""A transform of ``(image, target)``, or keywords of the data module's own preset."""


class _Samples(NamedTuple):
    """A table of samples, and how many objects (or images) and crowd regions of the annotations are not in it."""

    table: AnnotationTable
    num_left_out: int
    num_crowd: int


class TableDataModule(LoaderDataModule):
    """Loaders over the tables of a source; a task is a subclass that says what a sample and a batch are.

    Its hooks: `make_dataset`, which it must have; `collate_fn`; `select_samples`, `transform_defaults`, `names` and
    `draw_batch`, which have defaults. Of the attributes below it sets those that differ.

    Prediction gets every image of its tables, or every object where objects are cut out, known labels or not; its
    tables are brought to the names that those of the other stages have. Training never sees regions that annotations
    mark as crowds, nor images with nothing else; evaluation of whole images keeps them, with ``iscrowd``.

    Attributes:
        sample_unit: Whether a sample is an ``"image"``, or an ``"object"`` cut out of it.
        keypoints: Whether batches hold points.
        wanted_attributes: Names of the attributes that batches hold, or ``"all"`` that the tables have.
        label_attribute: The attribute that labels samples, or None for the class.
        counts_images: Whether summaries count a label once an image, and not for each object.

    Args:
        source: Where the data lies and which split serves which stage. If it has a ``progress``, decoded caches follow
            it.
        preset: The task's transforms: ``preset(train, **keywords)``.
        train_sampler: How training samples are drawn: a `SamplerConfig`, or any sampler of indices (for a stage of one
            set only), or None for every one once, in a new order each epoch.
        val_sampler: The same for validation, or None for in order. Likewise the next two.
        test_sampler: For testing.
        predict_sampler: For prediction.
        train_batching: Which training samples go together in a batch: of like aspect ratio or size, see `Batching`, or
            None for those that the sampler gives after each other.
        eval_batching: The same for validation, testing and prediction, whose samples then come in another order.
        train_transforms: v2 transforms of ``(image, target)``, or a mapping: keywords of the preset, which gets
            what the table knows (flip pairs, names of fields) too, or None for the preset as it is. ``hflip=None`` is
            the preset's own value, and 0 for points without known mirror pairs.
        val_transforms: The same for validation, or None for the preset without randomness, with the keywords of
            ``train_transforms`` if those are a mapping. A mapping is laid over those keywords. Likewise the next two.
            Where ``train_transforms`` is a callable, the preset alone decides here: a warning names both sizes if they
            differ.
        test_transforms: For testing.
        predict_transforms: For prediction.
        batch_transforms: Applied to each training batch after it was moved to the device: any function or module
            that takes a batch and returns one. Its draws, on whichever device, are a function of seed, epoch, batch
            and rank. A module is moved to the device too.
        eval_batch_transforms: The same for batches of validation, testing and prediction, which
            ``batch_transforms`` does not see; give `lit_loader.transforms.NormalizeBatch` to both.
        reading: How image files are read, or None for the defaults. A mapping of the fields is taken too.
        cache: Keep images decoded in a file that all workers and ranks of a host map, and later runs too. Made by
            ``prepare_data`` for the stages that the trainer runs, or for all without a trainer. False to decode in
            every epoch; the next three are then checked and have no effect.
        cache_dir: Folder whose subfolder ``decoded`` holds it, such as one under ``/dev/shm`` to keep it in memory, or
            None for the ``cache_dir`` of the source if it has one, else ``~/.cache/lit_loader``.
        cache_size: Longest side in pixels that is kept, or None for images as decoded.
        cache_budget: Most bytes that the caches which this data module opens may take together, such as
            ``"8 GiB"``, or None for half of the disk space that is free when each is made.
        **settings: Batch sizes, workers and seed, as `LoaderDataModule` takes them.

    Raises:
        ValueError: If a setting is outside its choices.
        TypeError: If a setting, or a keyword of the preset, is not known, or of a wrong type.
    """

    sample_unit: SampleUnit = "image"
    keypoints: bool = False
    wanted_attributes: Sequence[str] | Literal["all"] = ()
    label_attribute: str | None = None
    counts_images: bool = False

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
        batch_transforms: Callable[[Any], Any] | None = None,
        eval_batch_transforms: Callable[[Any], Any] | None = None,
        reading: ImageReading | Mapping[str, Any] | None = None,
        cache: bool = False,
        cache_dir: Path | str | None = None,
        cache_size: int | None = None,
        cache_budget: int | str | None = None,
        **settings: Any,
    ) -> None:
        self._save_arguments(TableDataModule, locals())
        super().__init__(**settings)
        self.reading = as_settings(ImageReading, reading)
        self.hparams["reading"] = asdict(self.reading)
        self.source = source
        train_sampler = RandomSamplerConfig() if train_sampler is None else train_sampler
        samplers = (train_sampler, val_sampler, test_sampler, predict_sampler)
        transforms = (train_transforms, val_transforms, test_transforms, predict_transforms)
        shared = train_transforms if isinstance(train_transforms, Mapping) else {}
        self._samplers: dict[Stage, SamplerConfig | Sampler[int] | None] = {}
        self._transforms: dict[Stage, Transforms] = {}
        self._batchings: dict[Stage, Batching | None] = {}
        self._preset_alone: set[Stage] = set()
        for stage, sampler, given in zip(STAGES, samplers, transforms, strict=True):
            if given is None and callable(train_transforms):
                self._preset_alone.add(stage)
            if given is None or isinstance(given, Mapping):
                given = {**shared, **(given or {})}
                # A config cannot leave a key out. Without hflip `transform_defaults` decides by the mirror pairs.
                if given.get("hflip", 0.0) is None:
                    del given["hflip"]
                preset(False, **given)  # a wrong keyword is an error here and not in the middle of a run
            self._samplers[stage], self._transforms[stage] = sampler, given
            batching = train_batching if stage == "train" else eval_batching
            self._batchings[stage] = checked_batching(stage, batching, sampler)
        self._preset = preset
        self._batch_transforms = {True: batch_transforms, False: eval_batch_transforms}
        self._samples: dict[Stage, list[_Samples]] = {}
        checked = CacheSettings(
            cache_dir=getattr(source, "cache_dir", None) if cache_dir is None else cache_dir,
            cache_size=cache_size,
            cache_budget=cache_budget,
            progress=getattr(source, "progress", True),
        )
        self._cache = checked if cache else None
        self._cached_bytes: dict[str, int] = {}
        self._fingerprint: Any = None
        self._is_prepared = False

    # -- what a task gives ----------------------------------------------------------------------------------

    @abstractmethod
    def make_dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> Dataset[Any]:
        """Return the data set of a table of samples.

        Give it ``**self.reading_arguments``, if it takes ``reading`` and ``cache``.
        """

    def select_samples(self, table: AnnotationTable) -> SampleTable:
        """Return the samples that a table gives to any stage but prediction, by default its images.

        Raises:
            ValueError: If the table lacks what the task needs.
        """
        return SampleTable(table, 0)

    def transform_defaults(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the keywords of the preset that follow from the table; those that the user gives win.

        By default the flip pairs of points. Where none are known the preset does not flip, unless the user gives
        ``hflip`` or ``flip_pairs``.
        """
        if not self.keypoints:
            return {}
        return {"flip_pairs": table.flip_pairs} if table.flip_pairs else {"hflip": 0.0}

    def names(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        """Return the names that must be the same in every table, by what they name.

        Where something else than the class labels samples, its values are ``"labels"``.
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
            NotImplementedError: By default: the task has no drawing.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no drawing; define draw_batch(self, batch, *, max_images, title) that returns "
            "a matplotlib Figure"
        )

    # -- what a task may use --------------------------------------------------------------------------------

    @property
    def reading_arguments(self) -> dict[str, Any]:
        """``reading`` and ``cache`` of a data set that is made now; the cache has what is left of the budget."""
        cache = self._cache
        if cache is not None and (budget := byte_count(cache.cache_budget)) is not None:
            cache = replace(cache, cache_budget=max(1, budget - sum(self._cached_bytes.values())))
        return {"reading": self.reading, "cache": cache or False}

    def has_keypoints(self, stage: Stage) -> bool:
        """Return whether batches of a stage hold points."""
        return self.keypoints and any(table.keypoints is not None for table in self.tables(stage))

    def draw_targets(self, batch: Any, **drawing: Any) -> Figure:
        """Return a picture of a batch of whole images with their targets, with ``drawing`` as `draw_boxes` takes it."""
        names: dict[str, Any] = {"class_names": self.class_names, "attributes": self.attributes}
        return draw_boxes(batch_images(batch), batch_targets(batch), **names, **drawing)

    # -- data -----------------------------------------------------------------------------------------------

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the annotation tables of a stage, with one image row for each sample.

        Raises:
            ValueError: Tables disagree in the names of classes, points or attributes, or lack what is asked for.
        """
        return [samples.table for samples in self._open_samples(stage)]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, or of what else labels samples, in the order of their labels."""
        table = self.first_table()
        return () if table is None else self.names(table).get("labels", table.class_names)

    @property
    def keypoint_schema(self) -> KeypointSchema | None:
        """What the points of a batch are, or None where it has none."""
        table = self.first_table()
        return table.keypoint_schema if table is not None and self.keypoints else None

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of every attribute that batches hold."""
        table = self.first_table()
        names = () if table is None else attribute_names(table, self.wanted_attributes)
        return {name: table.attributes[name].names for name in names} if table is not None else {}

    def first_table(self, stages: Sequence[Stage] = STAGES) -> AnnotationTable | None:
        """Return the first table of these stages, or None without any."""
        return next((table for stage in stages for table in self.tables(stage)), None)

    def prepare_data(self) -> None:
        """Draw, unpack and index the data, once on a machine, and decode what is kept decoded.

        Without a trainer it is not known which stages will run: then a cache is made for all of them.
        """
        self._is_prepared = True
        self.source.prepare()
        self._close_changed()
        if self._cache is None:
            return
        # the base's own: a user's setup() may be one that must not run twice
        LoaderDataModule.setup(self, None if self.trainer is None else self.trainer.state.fn)

    def setup(self, stage: str | None = None) -> None:
        """Open the data of a stage, or of all if it is None; what is open stays, unless its files have changed.

        Raises:
            ValueError: If there is no such stage.
        """
        if self._is_prepared_by_another():
            self.source.reopen()
        self._close_changed()
        super().setup(stage)

    def stage_data(self, stage: Stage) -> list[SplitData]:
        """Return the data sets of a stage's tables with their samplers."""
        found: list[SplitData] = []
        for table in self.tables(stage):
            dataset = self.make_dataset(table, self._transforms_of(stage, table))
            self._note_cache(dataset, stage=stage)
            self._compare_sizes(stage, table)
            sampler: Any = self._sampler(table, stage)
            if (batching := self._batchings[stage]) is not None:
                order = SequentialSampler(table.num_images) if sampler is None else sampler
                sampler = batching.batched(order, table)
            found.append((dataset, sampler))
        return found

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply the batch transforms of the trainer's stage, on the device."""
        if self.trainer is None:
            return batch
        transform = self._batch_transforms[bool(self.trainer.training)]
        return apply_to_batch(transform, batch, self.trainer, seed=self.seed, dataloader_idx=dataloader_idx)

    def _prepare_once(self) -> None:
        """Prepare the source before the first look at its tables, where no trainer does."""
        if self._is_prepared or self.trainer is not None:
            return
        self._is_prepared = True
        if type(self).prepare_data is TableDataModule.prepare_data:
            self.source.prepare()  # and no cache of images
        else:
            self.prepare_data()

    def _open_samples(self, stage: Stage) -> list[_Samples]:
        if stage in self._samples:
            return self._samples[stage]
        self._prepare_once()
        tables = self.source.tables(stage)
        self._close_changed()
        crowds = [0] * len(tables)
        # a crop has no `iscrowd`: evaluation of crops would count a region as an object
        if stage == "train" or (stage != "predict" and self.sample_unit == "object"):
            crowds = [int(table.crowd.sum()) for table in tables]
            tables = [table.without_crowds() for table in tables]
        selected = self._to_predict(tables) if stage == "predict" else list(map(self.select_samples, tables))
        known = [samples.table for sets in self._samples.values() for samples in sets]
        found = [_Samples(*samples, num_crowd) for samples, num_crowd in zip(selected, crowds, strict=True)]
        for samples in found:
            self._check_names(known[0] if known else found[0].table, samples.table, stage)
            if samples.num_left_out or samples.num_crowd:
                left_out = f"{samples.num_left_out} samples and {samples.num_crowd} crowd regions"
                rank_zero_info(f"{stage}: {left_out} left out, {samples.table.num_images} samples stay")
        self._samples[stage] = found
        return found

    def _to_predict(self, tables: list[AnnotationTable]) -> list[SampleTable]:
        """Return every image, or object, of tables, with the names and points of another stage's."""
        trained = self.first_table(STAGES[:3])
        first = [] if trained is None else [trained.select([])]
        named = with_same_names([*first, *tables])[len(first) :]
        empty = sum(int((np.diff(table.offsets) == 0).sum()) for table in named)
        if empty and self.sample_unit == "object":
            rank_zero_info(f"predict: {empty} images have no object, so there is nothing to cut out of them")
        return [every_sample(table, sample_unit=self.sample_unit) for table in named]

    def _check_names(self, known: AnnotationTable, table: AnnotationTable, stage: Stage) -> None:
        """Refuse a table whose ids mean other things than those of one that is known."""
        before, found = self.names(known), self.names(table)
        for what in {**before, **found}:
            if before.get(what, ()) != found.get(what, ()):
                raise ValueError(
                    f"{what} differ between the sets of the source: {before.get(what, ())}, and for {stage} "
                    f"{found.get(what, ())}; a source must give every table the same names in the same order"
                )

    def _transforms_of(self, stage: Stage, table: AnnotationTable) -> Callable[..., Any]:
        given = self._transforms[stage]
        if not isinstance(given, Mapping):
            return given
        keywords = {**self.transform_defaults(table), **given}
        if "flip_pairs" in given and "hflip" not in given:
            keywords.pop("hflip", None)  # the user knows the pairs that the table does not
        transforms: Callable[..., Any] = self._preset(stage == "train", **keywords)
        return transforms

    def _compare_sizes(self, stage: Stage, table: AnnotationTable) -> None:
        """Warn once if a preset that the user did not set evaluates at another size than the user trains at."""
        if stage not in self._preset_alone or table.num_images == 0:
            return
        self._preset_alone.clear()
        first = table.select([0])
        cache = self._cache
        self._cache = None  # of one image there is none
        sizes = []
        try:
            with preserved_generators(), warnings.catch_warnings(action="ignore"):
                for other in ("train", stage):
                    sample = self.make_dataset(first, self._transforms_of(other, first))[0]
                    sizes.append(tuple(sample[0].shape[-2:]))
        except Exception:  # of a sample that cannot be made, the run says why
            return
        finally:
            self._cache = cache
        trained, evaluated = sizes
        if trained != evaluated:
            rank_zero_warn(
                f"train_transforms is a callable, which only training uses: it makes the first image of {stage} "
                f"{trained[0]}x{trained[1]} (height x width), and the preset with its defaults, which evaluates, makes "
                f"it {evaluated[0]}x{evaluated[1]}; give {stage}_transforms, as keywords of the preset such as "
                f"{{'size': {list(trained)}}} or as a callable"
            )

    def _sampler(self, table: AnnotationTable, stage: Stage) -> Sampler[int] | None:
        chosen = self._samplers[stage]
        if isinstance(chosen, SamplerConfig):
            return chosen.make_sampler(table)
        sets = len(self.tables(stage))
        if chosen is not None and sets > 1:
            raise ValueError(
                f"{stage}_sampler={type(chosen).__name__} would be shared by {sets} sets of different length; "
                "give a lit_loader.datamodules.SamplerConfig, which makes a sampler for each set"
            )
        return chosen

    def _note_cache(self, dataset: Dataset[Any], *, stage: str) -> None:
        """Count what the cache of a data set takes; sets of the same images share one."""
        cache = getattr(dataset, "cache", None)
        if self._cache is None or not isinstance(cache, CachedReader) or cache.key in self._cached_bytes:
            return
        self._cached_bytes[cache.key] = cache.num_bytes
        rank_zero_info(f"{stage}: {byte_words(cache.num_bytes)} of decoded images in {self._cache.folder}")

    def _is_prepared_by_another(self) -> bool:
        """Whether the trainer has called `prepare_data` in another process of this machine.

        A subclass with a `prepare_data` of its own may not have prepared the source.
        """
        trainer = self.trainer
        if trainer is None or not type(self).prepare_data.__module__.startswith("lit_loader."):
            return False
        return trainer.local_rank > 0 and (self.prepare_data_per_node or trainer.node_rank == 0)

    def _close_changed(self) -> None:
        """Forget the data of all stages if it was opened from other tables than those that the source has now."""
        found = self.source.fingerprint()
        if found != self._fingerprint:
            self._data.clear()
            self._samples.clear()
        self._fingerprint = found

    # -- looking at it --------------------------------------------------------------------------------------

    def summaries(self, stages: Sequence[Stage] = STAGES[:3]) -> list[SetSummary]:
        """Return counts, imbalance and the expected mix of every set of some stages, with no image opened.

        For each set the label first, then every attribute that batches hold or a sampler balances.
        """
        balanced = [getattr(chosen, "balance_by", None) for chosen in self._samplers.values()]
        others = () if self.counts_images or self.label_attribute else self.attributes
        labels = dict.fromkeys([self.label_attribute, *others, *(by for by in balanced if by is not None)])
        found = []
        for stage in stages:
            sets = self._open_samples(stage)
            for number, samples in enumerate(sets):
                name, settings = stage if len(sets) == 1 else f"{stage}/{number}", samples._asdict()
                table = settings.pop("table")
                settings.update(sampler=self._sampler(table, stage), distinct=self.counts_images)
                found += [SetSummary.of(name, table, by=by, **settings) for by in labels]
        return found

    def summary(self) -> str:
        """Return counts, imbalance and the expected mix as a table for a terminal, and the copies across its sets.

        Files of images are opened where a file of another set has the same size.
        """
        sets: dict[str, AnnotationTable] = {}
        for stage in STAGES[:3]:
            tables = self.tables(stage)
            names = [stage] if len(tables) == 1 else [f"{stage}/{number}" for number in range(len(tables))]
            sets.update(zip(names, tables, strict=True))
        return "\n".join([summary_table(self.summaries()), *map(printable, copies_across(sets))])

    def first_batch(self, stage: Stage) -> Any:
        """Return the first batch of a stage (of its first set) as the model gets it, on the CPU.

        Raises:
            ValueError: The stage gives no batch.
        """
        for loader in self._make_loaders(stage, to_device=False)[:1]:
            with loader:
                for batch in loader:
                    return batch
        sets = [table.num_images for table in self.tables(stage)]
        raise ValueError(f"stage={stage!r} gives no batch; its sets have {sets} images")

    def plot_batch(
        self, stage: Stage = "train", *, path: Path | str | None = None, max_images: int = 16
    ) -> Figure:
        """Return a picture of the first batch of a stage, as the model gets it.

        Args:
            stage: Whose loader.
            path: Where the picture is saved too, by its extension, or None.
            max_images: Images drawn at most.

        Raises:
            ValueError: The stage gives no batch.
            TypeError: Targets come as columns, see `batch_targets`.
        """
        batch = self.first_batch(stage)
        figure = self.draw_batch(batch, max_images=max_images, title=f"{stage} batch")
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure
