"""Sources: where a data set lies and which of its splits serve training, validation, test and prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.merge import with_same_names
from lit_loader.datasets.shapes import DEFAULT_NUM_IMAGES, shapes_root
from lit_loader.errors import AnnotationError
from lit_loader.formats import read_annotations
from lit_loader.formats.folder import Folder

__all__ = ["Names", "ShapesSource", "Stage", "TableSource", "VocSource", "listed"]

Stage: TypeAlias = Literal["train", "val", "test", "predict"]
Names: TypeAlias = str | Sequence[str] | None

_SPLIT_DIR = "ImageSets/Main"


class TableSource(ABC):
    """Gives the annotation tables of every stage, all with the same classes."""

    @abstractmethod
    def prepare(self) -> None:
        """Do once on a machine what the tables need: draw, unpack, index. Safe to call again."""

    @abstractmethod
    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the tables of a stage: one, several (a list of validation sets), or none."""


@dataclass(frozen=True, kw_only=True)
class VocSource(TableSource):
    """A folder in VOC layout.

    Args:
        root: The folder.
        train: Split file in ``ImageSets/Main`` (without ``.txt``) to train on, or None without one.
        val: The same for validation, or several.
        test: The same for the test, or several.
        predict: The same for prediction, or None for the ones of ``test``.
        class_names: Names in the order of their ids, or None for all that occur in the splits named here, sorted.
        schema: What the points are, as `keypoint_schema` takes it: a known name such as ``face_68``, names with
            flip pairs, or a number, or None for what the files declare.
        one_based: Subtract one from the coordinates.
        image_dir: Folder of the images under ``root``.
        annotation_dir: Folder of the XML files under ``root``.
        policy: What to do about annotations that are wrong, as keywords of `ReadPolicy`.
        cache_dir: Where tables are cached, or None for the user's cache folder.
        num_workers: Processes that parse, or None to decide by the number of files.
        progress: Draw a progress bar.

    Raises:
        AnnotationError: If an annotation cannot be used.
    """

    root: str
    train: str | None = "train"
    val: str | Sequence[str] | None = "val"
    test: str | Sequence[str] | None = "test"
    predict: str | Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    schema: Any = None
    one_based: bool = False
    image_dir: str = "JPEGImages"
    annotation_dir: str = "Annotations"
    policy: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str | None = None
    num_workers: int | None = None
    progress: bool = True

    def prepare(self) -> None:
        """Index every split, so that other processes find the tables in the cache."""
        self._read_all(list(self._splits()))

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the stage's tables."""
        # Names that are given are known without the other stages' splits.
        splits = self._splits()
        read = self._read_all([stage] if self.class_names is not None else list(splits))
        if self.class_names is not None and not all(map(_is_plain, read.values())):
            read = self._read_all(list(splits))  # for the values of their attributes
        if read and not any(table.class_names for table in read.values()):
            raise AnnotationError(
                f"no object in any of the splits {list(read)}, hence no class; give class_names=[...]",
                path=self.root,
            )
        tables = dict(zip(read, with_same_names(list(read.values())), strict=True))
        return [tables[split] for split in listed(splits[stage])]

    def _splits(self) -> dict[Stage, Names]:
        predict = self.test if self.predict is None else self.predict
        return {"train": self.train, "val": self.val, "test": self.test, "predict": predict}

    def _read_all(self, stages: Sequence[Stage]) -> dict[str, AnnotationTable]:
        """Read each split of some stages once; names not given are those of each split alone."""
        read: dict[str, AnnotationTable] = {}
        folder = Folder(self.root)  # its folders are listed once for all splits
        for stage in stages:
            for split in listed(self._splits()[stage]):
                if split not in read:
                    self._check_split_file(split, stage)
                    read[split] = self._read(folder, split)
        return read

    def _check_split_file(self, split: str, stage: Stage) -> None:
        path = Path(self.root, _SPLIT_DIR, f"{split}.txt")
        if path.parent.is_dir() and not path.exists():
            found = ", ".join(sorted(file.stem for file in path.parent.glob("*.txt"))[:20]) or "none"
            raise AnnotationError(
                f"there is no split file for {stage}={split!r}; give {stage}=None if there is none, or one of "
                f"those found there: {found}",
                path=path,
            )

    def _read(self, folder: Folder, split: str) -> AnnotationTable:
        return read_annotations(
            "voc",
            folder,
            split,
            class_names=self.class_names,
            schema=self.schema,
            one_based=self.one_based,
            image_dir=self.image_dir,
            annotation_dir=self.annotation_dir,
            split_dir=_SPLIT_DIR,
            policy=self.policy,
            cache_dir=self.cache_dir,
            num_workers=self.num_workers,
            progress=self.progress,
        )


@dataclass(frozen=True, kw_only=True)
class ShapesSource(TableSource):
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
        unknown = sorted(set(self.num_images) - {"train", "val", "test"})
        if unknown:
            raise ValueError(f"num_images names {unknown}; the splits are train, val and test")

    def prepare(self) -> None:
        """Draw the scenes if they are not there yet."""
        self._voc().prepare()

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the stage's table."""
        return self._voc().tables(stage)

    def _voc(self) -> VocSource:
        fewest, most = self.objects_per_image
        root = shapes_root(
            self.cache_dir,
            num_images=self.num_images,
            image_size=self.image_size,
            objects_per_image=(fewest, most),
            class_shares=self.class_shares,
            finish_shares=self.finish_shares,
            max_rotation=self.max_rotation,
            seed=self.seed,
            progress=self.progress,
        )
        train, val, test = (name if name in self.num_images else None for name in ("train", "val", "test"))
        return VocSource(
            root=str(root),
            train=train,
            val=val,
            test=test,
            cache_dir=self.cache_dir,
            progress=self.progress,
        )


def listed(names: Names) -> list[str]:
    """Return what a stage is given as a list: one name, several, or none."""
    if names is None:
        return []
    return [names] if isinstance(names, str) else list(names)


def _is_plain(table: AnnotationTable) -> bool:
    """Whether nothing but the classes of a table has names that splits could disagree about."""
    return not table.attributes and table.keypoints is None
