"""Sources that read annotation files: any format, the VOC layout, and the drawn datasets."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats import read_annotations
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.splitting import check_groups, group_names
from lit_loader.datasets.figures import NUM_FIGURE_IMAGES, draw_figures
from lit_loader.datasets.folds import check_folds, split_by_file, split_by_fold
from lit_loader.datasets.held_out import check_fractions, held_out
from lit_loader.datasets.shapes import DEFAULT_NUM_IMAGES, draw_shapes
from lit_loader.datasets.sources import FileSource, Stage, StageTables, listed
from lit_loader.datasets.url_source import UrlSource
from lit_loader.errors import AnnotationError, SettingError
from lit_loader.images import ImageReading

__all__ = ["FiguresSource", "FormatSource", "ShapesSource", "VocSource"]

_SPLITS: Final[tuple[Stage, ...]] = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class FormatSource(UrlSource):
    r"""Annotations of any format in `lit_loader.annotations.formats.registry`.

    Args:
        format: Name of the format, such as ``"keypoints_txt"``, ``"coco"``, ``"image_folder"``.
        root: Folder of the dataset, or the URL of a folder in a store, such as ``"s3://bucket/set"``.
        train: File, folder or split to train on, relative to ``root``, in the form that the format expects, or None
            without training.
        val: The same for validation, or a list for several validation sets, or None for images held out from
            ``train`` with ``val_fraction``, if any.
        test: The same for testing, with ``test_fraction``.
        predict: The same for prediction, or None for the images of ``test``.
        options: Options of the format, such as ``columns``.
        stage_options: Options of single stages, by the stage's name; they override ``options``.
        val_fraction: Fraction of the images of ``train`` to use for validation instead.
        test_fraction: Fraction of the images of ``train`` to use for testing instead.
        folds: Number of folds for a cross-validation: the images of ``train`` and ``val`` are split by class and group
            into folds; ``val`` becomes fold ``fold``, and ``train`` the others. Without a test set of its own, the run
            tests on the validation fold, also if all images of ``test`` are in the folds; the same is true of
            ``predict``.
        fold: Number of the fold for validation, from 0, of ``folds`` or of a split file.
        split_file: File of ``lit-loader split``, or its URL below ``root``, that names the fold or the split of each
            image. The sets with images in the file are split again; the file must name all of their images and no
            others.
        group_pattern: Regular expression whose first group, searched in an image path, names a unit that must not be
            divided between splits, such as a person: ``'([A-Za-z_]+)_\d+'``. A group in two of training, validation and
            test is then an error, whether files or fractions define the splits.
        seed: Seed of the splits by fractions and folds; see `stratified_split`. Byte-identical copies of an image stay
            in one split, which is logged.
        class_names: Names in the order of their ids, or None for the names in all stages, in the format's order if it
            defines one, otherwise sorted.
        policy: How to handle invalid annotations, as keywords of the format's policy.
        storage: Settings of the store of a URL: ``cache_budget``, the largest size of the cached images, such as
            ``"100 GiB"``, by default half of the free disk space; ``window``, the number of samples to fetch ahead of
            each rank; ``num_connections``, the number of requests in flight; ``annotation_budget``, the largest size of
            all other files; and options of obstore, such as ``endpoint`` or ``region``. Set credentials by the store's
            environment variables, such as ``AWS_ACCESS_KEY_ID``; here, they are neither shown nor pickled.
        cache_dir: Folder of the cached tables, and of the images of a URL, or None for the user's cache folder.
        num_workers: Processes that read, or None to decide by the amount of work.
        progress: Show a progress bar.

    Raises:
        ValueError: The settings contradict each other, or the format or an option is unknown.
        StorageError: The store of a URL cannot be read.
        AnnotationError: An annotation cannot be used, two splits share a group, a fraction or fold leaves a stage
            without images, or the split file does not fit.
    """

    format: str = field(kw_only=False)
    root: str | Path = field(kw_only=False)
    train: str | None = None
    val: str | Sequence[str] | None = None
    test: str | Sequence[str] | None = None
    predict: str | Sequence[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    stage_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    folds: int | None = None
    fold: int | None = None
    split_file: str | None = None
    group_pattern: str | None = None
    seed: int = 0
    class_names: Sequence[str] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)
    cache_dir: str | None = None
    num_workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        # A string, because messages and cache keys contain it.
        object.__setattr__(self, "root", str(self.root))
        self.check_root()
        stages = get_args(Stage)
        if not any(listed(getattr(self, stage)) for stage in stages):
            raise ValueError(f"{self.format} in {self.root}: no stage is set; give one, e.g. train='train.txt'")
        unknown_stages = sorted(set(self.stage_options) - set(stages))
        if unknown_stages:
            raise ValueError(f"stage_options names {unknown_stages}; the stages are {', '.join(stages)}")
        check_folds(self.split_file, self.folds, self.fold, self._fractions(), self.train)
        check_fractions(self._fractions(), {stage: getattr(self, stage) for stage in stages})
        # Without paths, this only checks that the pattern compiles and has a group.
        if self.group_pattern is not None:
            group_names([], self.group_pattern)

    def _fractions(self) -> dict[Stage, float]:
        return {"val": self.val_fraction, "test": self.test_fraction}

    def read_folder(self, folder: Path, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read the lists of all stages, give them the same class ids, and hold images out."""
        table_by_key: dict[str, AnnotationTable] = {}
        stage_keys: dict[Stage, list[str]] = {stage: [] for stage in get_args(Stage)}
        # A Folder remembers its listings, so all stages share one.
        listed_folder = Folder(folder)
        for stage in get_args(Stage):
            options = {**self.options, **self.stage_options.get(stage, {})}
            for name in listed(getattr(self, stage)):
                # Stages with the same name and options share a table, which is read once.
                key = json.dumps([name, options], sort_keys=True, default=repr)
                stage_keys[stage].append(key)
                if key not in table_by_key:
                    table_by_key[key] = self._read_list(listed_folder, name, {"trust_cache": trust_cache, **options})
        # A table without a cache key may have changed; a new object() never equals an earlier one.
        cache_keys = [table.cache_key or object() for table in table_by_key.values()]
        if not any(table.class_names for table in table_by_key.values()):
            message = "no object in any of the lists, so the classes are unknown"
            raise AnnotationError(message, path=self.root, settings={"class_names": ...})
        # The same ids for the same names in all stages.
        merged_tables = with_same_names(list(table_by_key.values()))
        table_by_key = dict(zip(table_by_key, merged_tables, strict=True))
        tables = {stage: [table_by_key[key] for key in keys] for stage, keys in stage_keys.items()}
        # After the merge, so that the new tables have the same class ids as all others.
        names = ("group_pattern", "seed", "cache_dir")
        settings: dict[str, Any] = {"origin": self.root, **{name: getattr(self, name) for name in names}}
        # Copies are found in the store, if there is one.
        settings["traits"] = self.image_reading(ImageReading()).copy_traits
        if any(self._fractions().values()):
            tables |= held_out(tables["train"][0], self._fractions(), **settings)
        elif self.folds is not None and self.fold is not None:
            tables |= split_by_fold(tables, folds=self.folds, fold=self.fold, **settings)
        elif self.split_file is not None:
            path = self._split_path(self.split_file, folder)
            split_key, new_tables = split_by_file(tables, path, self.fold, origin=self.root)
            # The file may change between two reads.
            cache_keys.append(split_key)
            tables |= new_tables
        if self.group_pattern is not None:
            self._check_groups(tables, self.group_pattern)
        # After the split, because test images may be held out from training.
        if self.predict is None:
            tables["predict"] = tables["test"]
        return cache_keys, tables

    def _split_path(self, split_file: str, folder: Path) -> str | Path:
        """Return the path of the split file, which for a URL below the root is in the mirror."""
        name = split_file.removeprefix(f"{str(self.root).rstrip('/')}/")
        if "://" not in split_file:
            return split_file
        if name == split_file:
            rule = f"is not below root={self.root!r}"
            raise SettingError("split_file", split_file, rule, "give a file of this host, or put it into the data set")
        return folder / check_relative(name)

    def _check_groups(self, tables: StageTables, pattern: str) -> None:
        paths: dict[str, list[str]] = {}
        for split in _SPLITS:
            # A run without a test set tests on the validation set.
            if split == "test" and list(map(id, tables["test"])) == list(map(id, tables["val"])):
                continue
            paths[split] = [path for table in tables[split] for path in table.image_paths]
        check_groups(paths, pattern, root=self.root)

    def _read_list(self, folder: Folder, name: str, options: Mapping[str, Any]) -> AnnotationTable:
        settings = ("class_names", "policy", "cache_dir", "num_workers", "progress")
        return read_annotations(self.format, folder, name, **{key: getattr(self, key) for key in settings}, **options)


@dataclass(frozen=True, kw_only=True)
class VocSource(FormatSource):
    """A folder in VOC layout: `FormatSource` with the splits of ``ImageSets/Main`` and the options of the format.

    Args:
        root: The folder.
        train: Split file in ``ImageSets/Main`` (without ``.txt``) to train on, or None.
        val: The same for validation, or a list of several.
        test: The same for testing, or a list of several.
        schema: Schema of the points, see `keypoint_schema`: a known name such as ``face_68``, names with flip pairs, or
            a number of points; None for the schema that the files declare.
        one_based: Subtract one from the coordinates.
        image_dir: Folder of the images in ``root``.
        annotation_dir: Folder of the XML files in ``root``.
        **settings: The other arguments of `FormatSource`.

    Raises:
        AnnotationError: An annotation cannot be used.
    """

    format: str = field(default="voc", init=False)
    train: str | None = "train"
    val: str | Sequence[str] | None = "val"
    test: str | Sequence[str] | None = "test"
    schema: Any = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"

    def _read_list(self, folder: Folder, name: str, options: Mapping[str, Any]) -> AnnotationTable:
        voc_options = {key: getattr(self, key) for key in ("schema", "one_based", "image_dir", "annotation_dir")}
        try:
            return super()._read_list(folder, name, {**voc_options, **options})
        except AnnotationError:
            # A missing split file deserves a better message, with the arguments of this class.
            path = folder.root / "ImageSets/Main" / f"{name}.txt"
            if not path.parent.is_dir() or path.exists():
                raise
            stage = next(stage for stage in get_args(Stage) if name in listed(getattr(self, stage)))
            splits = ", ".join(sorted(file.stem for file in path.parent.glob("*.txt"))[:20]) or "none"
            raise AnnotationError(
                f"the split file of {stage}={name!r} does not exist",
                path=path,
                remedy=f"give one of the existing splits: {splits}",
                settings={stage: None},
            ) from None


class _DrawnSource(FileSource):
    """A dataset that is drawn on first use, as unified VOC; subclasses are dataclasses of its settings."""

    num_images: Mapping[str, int]
    cache_dir: str | None
    progress: bool

    def __post_init__(self) -> None:
        unknown_splits = sorted(set(self.num_images) - set(_SPLITS))
        if unknown_splits:
            raise ValueError(f"num_images names {unknown_splits}; the splits are train, val and test")

    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Draw the dataset if it does not exist, and read it as `VocSource` does."""
        return self._source().read(trust_cache=trust_cache)

    def _source(self) -> FileSource:
        """Return the source of the drawn folder."""
        return VocSource(self._folder(), cache_dir=self.cache_dir, progress=self.progress, **self._splits("{}"))

    @abstractmethod
    def _folder(self) -> Path:
        """Draw the dataset if it does not exist, and return its folder."""

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of the drawing function, which are the fields of the source."""
        settings: Any = fields(self)  # type: ignore[arg-type] # every subclass is a dataclass
        return {setting.name: getattr(self, setting.name) for setting in settings}

    def _splits(self, name: str) -> dict[str, Any]:
        """Return the annotations of each split, or None for a missing one, which VocSource would look for."""
        return {split: name.format(split) if split in self.num_images else None for split in _SPLITS}


@dataclass(frozen=True, kw_only=True)
class ShapesSource(_DrawnSource):
    """The built-in dataset: scenes of shapes with points and a finish, drawn on first use.

    The three classes have 90, 9 and 1 % of the objects. Independently of the class, 88, 10 and 2 % have the attribute
    ``finish`` plain, dotted and hollow.

    Args:
        num_images: Number of images in the splits ``train``, ``val`` and ``test``; a missing split is not drawn.
        image_size: Side of the square images in pixels.
        objects_per_image: Smallest and largest number of objects in an image.
        class_shares: Share of each class among the objects.
        finish_shares: Share of each finish among the objects.
        max_rotation: Largest rotation of an object in either direction, in degrees.
        seed: Seed of the drawing.
        masks: Objects also have masks, see `draw_shapes`.
        cache_dir: Folder of the dataset, or None for the user's cache folder.
        progress: Show a progress bar.

    Raises:
        ValueError: ``num_images`` names another split.
    """

    num_images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_NUM_IMAGES))
    image_size: int = 96
    objects_per_image: Sequence[int] = (2, 6)
    class_shares: Sequence[float] = (0.90, 0.09, 0.01)
    finish_shares: Sequence[float] = (0.88, 0.10, 0.02)
    max_rotation: float = 25.0
    seed: int = 0
    masks: bool = False
    cache_dir: str | None = None
    progress: bool = True

    def _folder(self) -> Path:
        return draw_shapes(**self._settings())

    def _source(self) -> FileSource:
        if not self.masks:
            return super()._source()
        settings: dict[str, Any] = {"cache_dir": self.cache_dir, "progress": self.progress}
        return FormatSource("coco", self._folder(), **self._splits("annotations/{}.json"), **settings)


@dataclass(frozen=True, kw_only=True)
class FiguresSource(_DrawnSource):
    """Drawn figures with limbs: people and animals of 13 named points each, several in an image, drawn on first use.

    Points outside of the image are absent, and those behind another figure are hidden. See
    `lit_loader.datasets.figures.FIGURE_POINTS` for the points, their mirror pairs, sigmas and skeleton.

    Args:
        num_images: Number of images in the splits ``train``, ``val`` and ``test``; a missing split is not drawn.
        image_size: Side of the square images in pixels.
        objects_per_image: Smallest and largest number of figures in an image.
        class_shares: Share of people and of animals among the figures.
        max_rotation: Largest rotation of a figure in either direction, in degrees.
        seed: Seed of the drawing.
        cache_dir: Folder of the dataset, or None for the user's cache folder.
        progress: Show a progress bar.

    Raises:
        ValueError: ``num_images`` names another split.
    """

    num_images: Mapping[str, int] = field(default_factory=lambda: dict(NUM_FIGURE_IMAGES))
    image_size: int = 128
    objects_per_image: Sequence[int] = (1, 4)
    class_shares: Sequence[float] = (0.7, 0.3)
    max_rotation: float = 25.0
    seed: int = 0
    cache_dir: str | None = None
    progress: bool = True

    def _folder(self) -> Path:
        return draw_figures(**self._settings())
