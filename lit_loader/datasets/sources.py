"""Sources: where a data set lies and which of its splits serve training, validation, test and prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.merge import with_same_names
from lit_loader.datasets.shapes import DEFAULT_NUM_IMAGES, shapes_root
from lit_loader.errors import AnnotationError
from lit_loader.formats import read_annotations
from lit_loader.formats.folder import Folder

__all__ = ["FileSource", "Names", "ShapesSource", "Stage", "TableSource", "VocSource", "listed"]

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

    def reopen(self) -> None:  # noqa: B027 # a source that keeps nothing has nothing to do
        """Take over what `prepare` has just done in another process of this machine; by default nothing is kept."""

    def fingerprint(self) -> Any:
        """Return something that differs when `prepare` or `reopen` has found other tables; by default always None."""
        return None


class FileSource(TableSource):
    """A source that reads annotation files: at the first call of `tables`, and again in `prepare`.

    Owns: The tables of all stages, once read. A copy for another process has none, and reads them through the cache.
    """

    _keys: list[Any]
    _tables: dict[Stage, list[AnnotationTable]]

    def prepare(self) -> None:
        """Read everything, so that other processes find the tables in the cache."""
        self._read(trust_cache=False)

    def reopen(self) -> None:
        """Open the tables that `prepare` has put into the cache, with no look at the files that they are made of."""
        self._read(trust_cache=True)

    def fingerprint(self) -> Any:
        """Return the keys of the tables in the cache."""
        return self.__dict__.get("_keys")

    def tables(self, stage: Stage) -> list[AnnotationTable]:
        """Return the stage's tables."""
        if "_tables" not in self.__dict__:
            self._read(trust_cache=False)
        return list(self._tables[stage])

    @abstractmethod
    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        """Return the tables of all stages, read by ``read``, which takes what `read_annotations` takes."""

    def _read(self, *, trust_cache: bool) -> None:
        keys: list[Any] = []

        def read(*arguments: Any, **options: Any) -> AnnotationTable:
            table = read_annotations(*arguments, trust_cache=trust_cache, **options)
            keys.append(table.cache_key or object())  # one that is not in the cache may be another each time
            return table

        tables = self._read_all(read)
        if keys != self.fingerprint():  # else those that are there are as good
            self.__dict__.update(_keys=keys, _tables=tables)  # a subclass may be a frozen dataclass

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_keys", "_tables")}


@dataclass(frozen=True, kw_only=True)
class VocSource(FileSource):
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

    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        predict = self.test if self.predict is None else self.predict
        splits: dict[Stage, Names] = {
            "train": self.train,
            "val": self.val,
            "test": self.test,
            "predict": predict,
        }
        found: dict[str, AnnotationTable] = {}
        folder = Folder(self.root)  # its folders are listed once for all splits
        for stage, names in splits.items():
            for split in listed(names):
                if split not in found:
                    try:
                        found[split] = self._read_split(read, folder, split)
                    except AnnotationError:
                        self._check_split_file(split, stage)
                        raise
        if found and not any(table.class_names for table in found.values()):
            raise AnnotationError(
                f"no object in any of the splits {list(found)}, hence no class; give class_names=[...]",
                path=self.root,
            )
        tables = dict(zip(found, with_same_names(list(found.values())), strict=True))
        return {stage: [tables[split] for split in listed(names)] for stage, names in splits.items()}

    def _check_split_file(self, split: str, stage: Stage) -> None:
        path = Path(self.root, _SPLIT_DIR, f"{split}.txt")
        if path.parent.is_dir() and not path.exists():
            found = ", ".join(sorted(file.stem for file in path.parent.glob("*.txt"))[:20]) or "none"
            raise AnnotationError(
                f"there is no split file for {stage}={split!r}; give {stage}=None if there is none, or one of "
                f"those found there: {found}",
                path=path,
            )

    def _read_split(
        self, read: Callable[..., AnnotationTable], folder: Folder, split: str
    ) -> AnnotationTable:
        return read(
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
        unknown = sorted(set(self.num_images) - {"train", "val", "test"})
        if unknown:
            raise ValueError(f"num_images names {unknown}; the splits are train, val and test")

    def _read_all(self, read: Callable[..., AnnotationTable]) -> dict[Stage, list[AnnotationTable]]:
        return self._voc()._read_all(read)

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
