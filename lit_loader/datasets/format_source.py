"""Sources of files: any format, the VOC layout, and the embedded data set."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.merge import with_same_names
from lit_loader.annotations.splitting import check_groups, group_names, hold_out
from lit_loader.datasets.shapes import DEFAULT_NUM_IMAGES, draw_shapes
from lit_loader.datasets.sources import FileSource, Stage, listed
from lit_loader.errors import AnnotationError

__all__ = ["FormatSource", "ShapesSource", "VocSource"]

_logger = logging.getLogger(__name__)
_SPLITS: Final[tuple[Stage, ...]] = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class FormatSource(FileSource):
    r"""Annotations of any format that `lit_loader.annotations.formats.registry` names.

    Args:
        format: A format's name, such as ``"keypoints_txt"``, ``"coco"``, ``"image_folder"``.
        root: The data set's folder.
        train: What to train on: a file, folder or split relative to ``root``, as the format takes it, or None
            without training.
        val: The same for validation, or several, or None for images held out of ``train`` by
            ``val_fraction``, if any.
        test: The same for the test, with ``test_fraction``.
        predict: The same for prediction, or None for the ones of ``test``.
        options: The format's own options, such as ``columns``.
        stage_options: Options that differ in a stage: for a stage's name what is laid over ``options``.
        val_fraction: Share of the images of ``train`` to validate on instead.
        test_fraction: Share of the images of ``train`` to test on instead.
        group_pattern: A regular expression whose first group, found in an image path, names what must stay on
            one side of a split, such as a person: ``'([A-Za-z_]+)_\d+'``. With it, a group that occurs in two of
            training, validation and test is an error, whether files or fractions made the splits.
        seed: Seed of the splits by fractions; see `stratified_split`. Images that are byte-identical copies of each
            other stay in one split, which is logged.
        class_names: Names in the order of their ids, or None for those of all stages, sorted unless the format has an
            order of its own.
        policy: What to do about annotations that are wrong, as keywords of the format's policy.
        cache_dir: Where tables are cached, or None for the user's cache folder.
        num_workers: Processes that read, or None to decide by the amount of work.
        progress: Draw a progress bar.

    Raises:
        ValueError: If the settings contradict each other, or the format or an option is unknown.
        AnnotationError: If an annotation cannot be used, a group lies in two splits, or a fraction leaves a stage
            without images.
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
    group_pattern: str | None = None
    seed: int = 0
    class_names: Sequence[str] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None
    num_workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", str(self.root))  # as it stands in messages and cache keys
        stages = get_args(Stage)
        if not any(listed(names) for names in (self.train, self.val, self.test, self.predict)):
            raise ValueError(f"{self.format} in {self.root}: name what to read, such as train='train.txt'")
        unknown = sorted(set(self.stage_options) - set(stages))
        if unknown:
            raise ValueError(f"stage_options names {unknown}; the stages are {', '.join(stages)}")
        for stage, fraction in self._fractions().items():
            if not 0 <= fraction < 1:
                raise ValueError(f"{stage}_fraction={fraction} must be in [0, 1)")
            if fraction and getattr(self, stage) is not None:
                raise ValueError(
                    f"{stage}={getattr(self, stage)!r} and {stage}_fraction={fraction} contradict each other; "
                    f"give {stage}=None to hold images out of train, or {stage}_fraction=0"
                )
            if fraction and self.train is None:
                raise ValueError(f"{stage}_fraction={fraction} holds images out of train, which is None")
        if sum(self._fractions().values()) >= 1:
            raise ValueError(
                f"val_fraction + test_fraction = {sum(self._fractions().values())} must be below 1"
            )
        if self.group_pattern is not None:
            group_names([], self.group_pattern)

    def _fractions(self) -> dict[str, float]:
        return {"val": self.val_fraction, "test": self.test_fraction}

    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        found: dict[str, AnnotationTable] = {}
        keys: dict[Stage, list[str]] = {stage: [] for stage in get_args(Stage)}
        folder = Folder(self.root)  # its folders are listed once for all lists
        for stage in get_args(Stage):
            options = {**self.options, **self.stage_options.get(stage, {})}
            for name in listed(getattr(self, stage)):
                key = json.dumps([name, options], sort_keys=True, default=repr)
                keys[stage].append(key)
                if key not in found:
                    found[key] = self._read_list(read, folder, name, options)
        if not any(table.class_names for table in found.values()):
            message = "no object in any of the lists, hence no class"
            raise AnnotationError(message, path=self.root, settings={"class_names": ...})
        same = dict(zip(found, with_same_names(list(found.values())), strict=True))
        tables = {stage: [same[key] for key in keys[stage]] for stage in keys}
        tables |= self._held_out(tables["train"])
        if self.group_pattern is not None:
            paths: dict[str, list[str]] = {
                name: [path for table in tables[name] for path in table.image_paths] for name in _SPLITS
            }
            check_groups(paths, self.group_pattern, root=self.root)
        if self.predict is None:
            tables["predict"] = tables["test"]
        return tables

    def _read_list(
        self, read: Callable[..., AnnotationTable], folder: Folder, name: str, options: Mapping[str, Any]
    ) -> AnnotationTable:
        own = ("class_names", "policy", "cache_dir", "num_workers", "progress")
        return read(self.format, folder, name, **{key: getattr(self, key) for key in own}, **options)

    def _held_out(self, train: Sequence[AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        """Return the stages that share the training table, by fractions."""
        shares = {stage: fraction for stage, fraction in self._fractions().items() if fraction}
        if not shares:
            return {}
        (table,) = train
        pattern = self.group_pattern
        parts, copies, is_new = hold_out(
            table,
            {"train": 1 - sum(shares.values()), **shares},
            group_pattern=pattern,
            seed=self.seed,
            cache_dir=self.cache_dir,
        )
        if copies:  # a warning once, not on every rank and in every run
            _logger.log(logging.WARNING if is_new else logging.INFO, "%s: %s", self.root, copies)
        for stage in shares:
            if table.num_images and not len(parts[stage]):
                what = "images" if pattern is None else f"groups of {pattern!r}, which are never cut"
                raise AnnotationError(
                    f"{stage}_fraction={shares[stage]} of {table.num_images} images leaves no image for {stage}: "
                    f"there are too few {what}; raise the fraction, or name a list for {stage}",
                    path=self.root,
                )
        return {stage: [table.select(parts[stage])] for stage in get_args(Stage) if stage in parts}


@dataclass(frozen=True, kw_only=True)
class VocSource(FormatSource):
    """A folder in VOC layout: `FormatSource` with the splits of ``ImageSets/Main`` and the options of the format.

    Args:
        root: The folder.
        train: Split file in ``ImageSets/Main`` (without ``.txt``) to train on, or None without one.
        val: The same for validation, or several.
        test: The same for the test, or several.
        schema: What the points are, as `keypoint_schema` takes it: a known name such as ``face_68``, names with
            flip pairs, or a number, or None for what the files declare.
        one_based: Subtract one from the coordinates.
        image_dir: Folder of the images under ``root``.
        annotation_dir: Folder of the XML files under ``root``.
        **settings: The others of `FormatSource`.

    Raises:
        AnnotationError: If an annotation cannot be used.
    """

    format: str = field(default="voc", init=False)
    train: str | None = "train"
    val: str | Sequence[str] | None = "val"
    test: str | Sequence[str] | None = "test"
    schema: Any = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"

    def _read_list(
        self, read: Callable[..., AnnotationTable], folder: Folder, name: str, options: Mapping[str, Any]
    ) -> AnnotationTable:
        own = {key: getattr(self, key) for key in ("schema", "one_based", "image_dir", "annotation_dir")}
        try:
            return super()._read_list(read, folder, name, {**own, **options})
        except AnnotationError:
            path = Path(self.root, "ImageSets/Main", f"{name}.txt")
            if not path.parent.is_dir() or path.exists():
                raise
            stage = next(stage for stage in get_args(Stage) if name in listed(getattr(self, stage)))
            found = ", ".join(sorted(file.stem for file in path.parent.glob("*.txt"))[:20]) or "none"
            raise AnnotationError(
                f"there is no split file for {stage}={name!r}; give {stage}=None if there is none, or one of those "
                f"found there: {found}",
                path=path,
            ) from None


@dataclass(frozen=True, kw_only=True)
class ShapesSource(FileSource):
    """The embedded data set: scenes of shapes with points and a finish, drawn on first use.

    90, 9 and 1 % of the objects are of three classes; 88, 10 and 2 % have the attribute ``finish`` plain,
    dotted and hollow, whatever their class.

    Args:
        num_images: Images of the splits ``train``, ``val`` and ``test``; one that is not named is not there.
        image_size: Side of the square images in pixels.
        objects_per_image: Fewest and most objects of an image.
        class_shares: Share of each class among the objects.
        finish_shares: Share of each finish among the objects.
        max_rotation: Degrees that an object leans to either side at most.
        seed: Seed of the drawing.
        cache_dir: Where it is kept, or None for the user's cache folder.
        progress: Draw a progress bar.

    Raises:
        ValueError: If ``num_images`` names another split.
    """

    num_images: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_NUM_IMAGES))
    image_size: int = 96
    objects_per_image: Sequence[int] = (2, 6)
    class_shares: Sequence[float] = (0.90, 0.09, 0.01)
    finish_shares: Sequence[float] = (0.88, 0.10, 0.02)
    max_rotation: float = 25.0
    seed: int = 0
    cache_dir: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        unknown = sorted(set(self.num_images) - set(_SPLITS))
        if unknown:
            raise ValueError(f"num_images names {unknown}; the splits are train, val and test")

    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        return self._voc()._read_all(read)

    def _voc(self) -> VocSource:
        root = draw_shapes(**{setting.name: getattr(self, setting.name) for setting in fields(self)})
        stages: dict[str, Any] = {name: name if name in self.num_images else None for name in _SPLITS}
        return VocSource(root, cache_dir=self.cache_dir, progress=self.progress, **stages)
