"""The data module under all that read annotation tables: source, samplers, transforms, summaries, pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from lightning.pytorch.utilities import rank_zero_info
from matplotlib.figure import Figure
from torch.utils.data import Dataset, Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.datamodules.base import SplitData
from lit_loader.datamodules.batch_transforms import BatchTransforms
from lit_loader.datamodules.batching import Batching, batched, stage_batchings
from lit_loader.datamodules.sampling import RandomSampling, Sampling
from lit_loader.datamodules.source_module import SourceDataModule
from lit_loader.datamodules.stage_tables import check_alike, samples_to_predict
from lit_loader.datamodules.summary import SetSummary, summary_table
from lit_loader.datasets import SampleTable, Stage, TableSource
from lit_loader.datasets.samples import SampleUnit
from lit_loader.datasets.targets import attribute_names

__all__ = ["DEFAULT_SIZE", "TableDataModule", "Transforms"]

DEFAULT_SIZE: Final = 96
"""Height and width of crops and classified images, in pixels, where transforms say nothing."""

Transforms: TypeAlias = Callable[..., Any] | Mapping[str, Any]
"""A transform of ``(image, target)``, or keywords of the data module's own preset."""

_STAGES: tuple[Stage, ...] = ("train", "val", "test", "predict")


class TableDataModule(SourceDataModule):
    """Loaders over the tables of a source; a task says what a sample, a batch and a picture of it are.

    Prediction gets every image of its tables, or every object where objects are cut out, known labels or not; its
    tables are brought to the names that those of the other stages have.

    Args:
        source: Where the data lies and which split serves which stage.
        preset: The task's transforms: ``preset(train, **keywords)``.
        train_sampler: How training samples are drawn: one of ours by its settings (`Sampling`), or any
            sampler of indices (for a stage of one set only). None: every one once, in a new order each epoch.
        val_sampler: The same for validation; None: in order. Likewise the next two.
        test_sampler: For testing.
        predict_sampler: For prediction.
        train_batching: Which training samples go together in a batch: of like aspect ratio or size, see `Batching`.
            None: those that the sampler gives after each other.
        eval_batching: The same for validation, testing and prediction, whose samples then come in another order.
        train_transforms: v2 transforms of ``(image, target)``, or a mapping: keywords of the preset, which gets
            what the table knows (flip pairs, names of fields) too. None: the preset as it is.
        val_transforms: The same for validation; None: the preset without randomness, with the keywords of
            ``train_transforms`` if those are a mapping. Likewise the next two.
        test_transforms: For testing.
        predict_transforms: For prediction.
        batch_transforms: Applied to each training batch after it was moved to the device: any function or module
            that takes a batch and returns one. Its draws, on whichever device, are a function of seed, epoch, batch
            and rank. A module is moved to the device too.
        eval_batch_transforms: The same for batches of validation, testing and prediction, which
            ``batch_transforms`` does not see; give `lit_loader.transforms.NormalizeBatch` to both.
        **settings: Reading of images and what is kept of them, as `SourceDataModule` takes them; batch sizes, workers
            and seed, as `LoaderDataModule` takes them.

    Raises:
        ValueError: If a setting is outside its choices.
        TypeError: If a setting, or a keyword of the preset, is not known.
    """

    def __init__(
        self,
        source: TableSource,
        *,
        preset: Callable[..., Any],
        train_sampler: Sampling | Sampler[int] | None = None,
        val_sampler: Sampling | Sampler[int] | None = None,
        test_sampler: Sampling | Sampler[int] | None = None,
        predict_sampler: Sampling | Sampler[int] | None = None,
        train_batching: Batching | None = None,
        eval_batching: Batching | None = None,
        train_transforms: Transforms | None = None,
        val_transforms: Transforms | None = None,
        test_transforms: Transforms | None = None,
        predict_transforms: Transforms | None = None,
        batch_transforms: Callable[[Any], Any] | None = None,
        eval_batch_transforms: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(source, **settings)
        self._samplers: dict[Stage, Sampling | Sampler[int] | None] = {
            "train": RandomSampling() if train_sampler is None else train_sampler,
            "val": val_sampler,
            "test": test_sampler,
            "predict": predict_sampler,
        }
        self._batchings = stage_batchings(
            self._samplers, train_batching=train_batching, eval_batching=eval_batching
        )
        shared = train_transforms if isinstance(train_transforms, Mapping) else None
        self._preset = preset
        self._transforms: dict[Stage, Transforms | None] = {
            "train": train_transforms,
            "val": shared if val_transforms is None else val_transforms,
            "test": shared if test_transforms is None else test_transforms,
            "predict": shared if predict_transforms is None else predict_transforms,
        }
        for given in self._transforms.values():
            if isinstance(given, Mapping):
                preset(False, **given)  # a wrong keyword is told here and not in the middle of a run
        self._batch_transforms = BatchTransforms(training=batch_transforms, evaluation=eval_batch_transforms)
        self._wanted_attributes: Sequence[str] | Literal["all"] = ()
        self._uses_keypoints = False
        self._sample_unit: SampleUnit = "image"
        self._samples: dict[Stage, list[SampleTable]] = {}

    # -- what a task gives ----------------------------------------------------------------------------------

    def _samples_of(self, table: AnnotationTable) -> SampleTable:
        """Return the samples that a table gives to any stage but prediction: its images."""
        return SampleTable(table, 0)

    @abstractmethod
    def _dataset(self, table: AnnotationTable, transforms: Callable[..., Any]) -> Dataset[Any]:
        """Return the data set of a table of samples."""

    def _preset_keywords(self, table: AnnotationTable) -> dict[str, Any]:
        """Return the keywords of the preset that follow from the table; those that the user gives win."""
        return {}

    @abstractmethod
    def _draw(self, batch: Any, *, max_images: int, title: str) -> Figure:
        """Return a picture of a batch."""

    def _summaries_of(
        self, name: str, samples: SampleTable, sampler: Sampler[int] | None
    ) -> list[SetSummary]:
        """Return the summaries of a set, one for each kind of label."""
        labels: dict[str | None, None] = dict.fromkeys([None, *self.attributes, *self._balanced_by()])
        return [
            SetSummary.of(name, samples.table, sampler, by=by, num_left_out=samples.num_left_out)
            for by in labels
        ]

    # -- data -----------------------------------------------------------------------------------------------

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the annotation tables of a stage, with one image row for each sample.

        Raises:
            ValueError: Tables disagree in the names of classes, points or attributes, or lack what is asked for.
        """
        return [samples.table for samples in self._open_samples(stage)]

    def _open_samples(self, stage: Stage) -> list[SampleTable]:
        if stage not in self._samples:
            tables = self._source_tables(stage)
            if stage == "predict":
                trained = self._first_table(_STAGES[:3])
                found = samples_to_predict(tables, trained=trained, sample_unit=self._sample_unit)
            else:
                found = [self._samples_of(table) for table in tables]
            known = [samples.table for sets in self._samples.values() for samples in sets]
            for samples in found:
                first = (known or [found[0].table])[0]
                check_alike(self._names_of(first), self._names_of(samples.table), stage=stage)
                if samples.num_left_out:
                    rank_zero_info(
                        f"{stage}: {samples.num_left_out} left out, {samples.table.num_images} samples stay"
                    )
            self._samples[stage] = found
        return self._samples[stage]

    def _forget_samples(self) -> None:
        self._samples.clear()

    def _names_of(self, table: AnnotationTable) -> dict[str, tuple[str, ...]]:
        """Return the names that must be the same in every table, by what they name."""
        names = {"class_names": table.class_names}
        if self._uses_keypoints:
            names["keypoint_names"] = table.keypoint_names
        for name in attribute_names(table, self._wanted_attributes):
            names[f"values of the attribute {name!r}"] = table.attributes[name].names
        return names

    def _has_keypoints(self, stage: Stage) -> bool:
        """Whether batches of a stage hold points."""
        return self._uses_keypoints and any(table.keypoints is not None for table in self.tables(stage))

    def _first_table(self, stages: Sequence[Stage] = _STAGES) -> AnnotationTable | None:
        return next((table for stage in stages for table in self.tables(stage)), None)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their labels."""
        table = self._first_table()
        return () if table is None else table.class_names

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of every attribute that batches hold."""
        table = self._first_table()
        names = () if table is None else attribute_names(table, self._wanted_attributes)
        return {name: table.attributes[name].names for name in names} if table is not None else {}

    def _flip_keywords(self, table: AnnotationTable) -> dict[str, Any]:
        """Return what a preset must know to flip points; where no pairs are known, it does not flip by itself."""
        return {"flip_pairs": table.flip_pairs} if table.flip_pairs else {"hflip": 0.0}

    def _split_data(self, stage: Stage) -> list[SplitData]:
        found: list[SplitData] = []
        for table in self.tables(stage):
            dataset = self._dataset(table, self._transforms_of(stage, table))
            self._note_cache(dataset, stage=stage)
            sampler = batched(self._sampler(table, stage), table, self._batchings[stage])
            found.append((dataset, sampler))
        return found

    def _transforms_of(self, stage: Stage, table: AnnotationTable) -> Callable[..., Any]:
        given = self._transforms[stage]
        if given is None or isinstance(given, Mapping):
            found: Callable[..., Any] = self._preset(
                stage == "train", **{**self._preset_keywords(table), **(given or {})}
            )
            return found
        return given

    def _sampler(self, table: AnnotationTable, stage: Stage) -> Sampler[int] | None:
        chosen = self._samplers[stage]
        if chosen is None or isinstance(chosen, Sampling):
            return None if chosen is None else chosen.sampler(table)
        sets = len(self.tables(stage))
        if sets > 1:
            raise ValueError(
                f"{stage}_sampler={type(chosen).__name__} would be shared by {sets} sets of different length; "
                "give a lit_loader.datamodules.Sampling, which makes a sampler for each set"
            )
        return chosen

    def _balanced_by(self) -> list[str]:
        """Return the attributes that samplers balance."""
        found = [getattr(chosen, "balance_by", None) for chosen in self._samplers.values()]
        return [by for by in found if by is not None]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply the batch transforms of the trainer's stage, on the device."""
        return self._batch_transforms(batch, self.trainer, seed=self.seed, dataloader_idx=dataloader_idx)

    # -- looking at it --------------------------------------------------------------------------------------

    def summaries(self) -> list[SetSummary]:
        """Return counts, imbalance and the expected mix of every set, with no image opened.

        For each set the class first, then every attribute that batches hold or a sampler balances.
        """
        found = []
        for stage in _STAGES[:3]:
            sets = self._open_samples(stage)
            for number, samples in enumerate(sets):
                name = stage if len(sets) == 1 else f"{stage}/{number}"
                found += self._summaries_of(name, samples, self._sampler(samples.table, stage))
        return found

    def summary(self) -> str:
        """Return counts, imbalance and the expected mix as a table for a terminal."""
        return summary_table(self.summaries())

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
            path: Where the picture is saved too, by its extension.
            max_images: Images drawn at most.

        Raises:
            ValueError: The stage gives no batch.
            TypeError: Targets come as columns, see `batch_targets`.
        """
        batch = self.first_batch(stage)
        figure = self._draw(batch, max_images=max_images, title=f"{stage} batch")
        if path is not None:
            figure.savefig(path, dpi=120)
        return figure
