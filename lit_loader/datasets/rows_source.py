"""A source of Hugging Face data sets, and of any map-style data sets whose rows are mappings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.cache import cache_key, image_stamp, keep, load_unchanged
from lit_loader.annotations.formats.folder import Folder
from lit_loader.annotations.formats.policy import ReadPolicy
from lit_loader.annotations.formats.rules import build_table
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.merge import with_same_names
from lit_loader.datasets.held_out import check_fractions, held_out
from lit_loader.datasets.row_builder import BOX_FORMATS, BoxFormat, RowBuilder, RowColumns
from lit_loader.datasets.row_sets import open_rows
from lit_loader.datasets.sources import FileSource, Stage, StageTables
from lit_loader.errors import AnnotationError, ImageError, SettingError
from lit_loader.foundation.files import cache_folder
from lit_loader.images import ImageReading
from lit_loader.images.row_images import RowImage, RowImages, RowReading, content_of, header_of, unpacked

__all__ = ["RowsSource"]

_VERSION: Final = 2
"""Increased when the same rows give another table, so that tables cached before are ignored."""

_STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
_OTHER_NAMES: Final = {"validation": "val"}


# Rows may be arrays, which have no single answer to an equality, and would fill pages of text.
@dataclass(frozen=True, kw_only=True, eq=False)
class RowsSource(FileSource):
    """Rows of a Hugging Face ``Dataset``, or of any map-style data set whose rows are mappings.

    Images may be encoded (bytes, or ``{"bytes": ..., "path": ...}``), paths, Pillow images, uint8 arrays ``(H, W)`` or
    ``(H, W, C)``, or uint8 tensors ``(H, W)`` or ``(C, H, W)``. Encoded images are read like files, with the same
    limits. Pixels of Pillow images must be loaded, and EXIF counts only as read from the image's file. A column of
    annotations is a key, or keys of nested mappings joined by dots: ``objects.bbox`` is the list of boxes of
    ``{"objects": {"bbox": [...]}}`` and of ``{"objects": [{"bbox": ...}, ...]}``.

    The table of annotations is built once, from all rows but without decoding an image, and cached. A Hugging Face data
    set is read as Arrow batches, and recognized at the next start by its hash (``datasets.fingerprint.Hasher``) and the
    size and time of its files; its format is ignored and a transform (``set_transform``) refused. Any other data set
    gives each row once at each start, in ``dataset[i]``. Rows must not change afterwards.

    The path of an image, such as ``/rows/DIGEST/train/000012``, is only a name: row 12 (from 0) of the training set.

    Runs in: any process and thread. A Hugging Face data set from a file is pickled as its file name, so that spawned
    workers map it; a spawned worker gets a copy of its stage's list. Threads may share a Hugging Face
    data set and a list; another data set must allow calls of ``__getitem__`` from several threads at once.

    Args:
        dataset: A mapping of stages to data sets, such as a ``DatasetDict`` (``validation`` means ``val``), or one data
            set to train on.
        train: Data set to train on, instead of ``dataset``; or None.
        val: The same for validation.
        test: The same for testing.
        predict: The same for prediction, or None for the rows of ``test``. It has all columns of annotations, or none.
        image: Column of the images, a key of the row itself.
        boxes: Column of an image's boxes, or None: then the label belongs to the whole image, or objects have only
            points.
        box_format: ``"xyxy"``, ``"xywh"`` (left upper corner and size, as in COCO) or ``"cxcywh"`` (centre and size).
        normalized: True if boxes and points are fractions of the image's width and height.
        labels: Column of the labels of an image's objects, or of the label or labels of the image: names, or numbers
            with the names of a ``ClassLabel`` feature or else of ``class_names``. For a whole image, None
            and -1 mean no label. None gives all objects the class ``class_names[0]``.
        keypoints: Column of the points of an image's objects, each as x, y or x, y, visibility (0 absent, 1 hidden, 2
            visible), flat or nested; requires ``schema``.
        schema: Schema of the points: a known name such as ``face_68``, a mapping of names and flip pairs, or a number.
        crowd: Column of flags of objects that are crowd regions.
        image_id: Column of the image's id, a number or a text. Numbers identify images in COCO results.
        root: Folder that paths in the image column are relative to, and must not leave. Without it paths are refused.
        class_names: Names of the classes in the order of their ids, or None for those that the data declares, else
            those that occur, sorted.
        policy: How to handle invalid values, as keywords of `ReadPolicy`.
        val_fraction: Fraction of the rows of ``train`` to use for validation instead.
        test_fraction: Fraction of the rows of ``train`` to use for testing instead.
        seed: Seed of the splits by fractions. Copies of an image stay in one split, which is logged.
        cache_dir: Folder of the cached tables, or None for the user's cache folder.
        progress: Show a progress bar.

    Raises:
        TypeError: A data set is not map-style, or a row is not a mapping.
        ValueError: Settings contradict each other, or a column does not exist.
        AnnotationError: A row cannot be used; names row and column.
    """

    dataset: Any = field(default=None, kw_only=False, repr=False)
    train: Any = field(default=None, repr=False)
    val: Any = field(default=None, repr=False)
    test: Any = field(default=None, repr=False)
    predict: Any = field(default=None, repr=False)
    image: str = "image"
    boxes: str | None = None
    box_format: BoxFormat = "xyxy"
    normalized: bool = False
    labels: str | None = None
    keypoints: str | None = None
    schema: Any = None
    crowd: str | None = None
    image_id: str | None = None
    root: str | Path | None = None
    class_names: Sequence[str] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    seed: int = 0
    cache_dir: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if self.box_format not in BOX_FORMATS:
            raise ValueError(f"box_format={self.box_format!r} is not one of {list(BOX_FORMATS)}")
        if (self.keypoints is None) != (self.schema is None):
            rule = "names the points of the column keypoints=; give both or none"
            raise SettingError("schema", self.schema, rule)
        if self.crowd is not None and self.boxes is None:
            raise SettingError("crowd", self.crowd, "is a column of flags of boxes; give boxes= as well")
        has_objects = self.boxes is not None or self.keypoints is not None
        if self.labels is None and has_objects and len(self.class_names or ()) != 1:
            rule = "leaves the objects without a class; name the column of their labels"
            raise SettingError("labels", None, rule, settings={"class_names": ["face"]})
        # Both raise an error for wrong values.
        ReadPolicy(**self.policy)
        self._schema()
        check_fractions(self._fractions(), self._datasets())

    def prepare(self) -> None:
        """Read all rows at the first call; rows do not change."""
        if "_tables" not in self.__dict__:
            super().prepare()

    def reopen(self) -> None:
        """Read all rows at the first call; the tables that `prepare` cached are opened."""
        self.prepare()

    def read(self, *, trust_cache: bool) -> tuple[Any, StageTables]:
        """Read the rows of all stages, give their tables the same class ids, and hold images out."""
        columns = self._columns()
        sets: dict[int, _RowTable] = {}
        datasets = self._datasets()
        for stage, dataset in datasets.items():
            # A data set of several stages is read once.
            if dataset is not None and id(dataset) not in sets:
                sets[id(dataset)] = _RowTable(self, columns, dataset, stage, optional=stage == "predict")
        digests = [row_table.digest() for row_table in sets.values()]
        content = hashlib.blake2b(json.dumps([digests, self._settings()]).encode(), digest_size=8).hexdigest()
        # No folder, but a name that no other rows have: caches of copies and of decoded images are looked up by it.
        root = Path("/rows", content).absolute()
        read_tables = [row_table.table(root) for row_table in sets.values()]
        named_tables = dict(zip(sets, self._with_same_classes(read_tables), strict=True))
        tables: StageTables = {
            stage: [] if dataset is None else [named_tables[id(dataset)]] for stage, dataset in datasets.items()
        }
        folders = [
            f"{table.root}/{row_table.name}" for table, row_table in zip(read_tables, sets.values(), strict=True)
        ]
        images = dict(zip(folders, (row_table.images for row_table in sets.values()), strict=True))
        if any(self._fractions().values()):
            settings: dict[str, Any] = {"origin": "train", "seed": self.seed, "cache_dir": self.cache_dir}
            traits = RowReading(images=images).copy_traits
            tables |= held_out(tables["train"][0], self._fractions(), traits=traits, **settings)
        # After the split, because test images may be held out from training.
        if datasets["predict"] is None:
            tables["predict"] = tables["test"]
        # The class is frozen, so its state is set directly.
        self.__dict__["_images"] = images
        return content, tables

    def _with_same_classes(self, tables: list[AnnotationTable]) -> list[AnnotationTable]:
        has_annotations = any(column is not None for column in (self.boxes, self.labels, self.keypoints))
        if has_annotations and not any(table.class_names for table in tables):
            message = "no row has an object, so the classes are unknown"
            raise AnnotationError(message, settings={"class_names": ...})
        return with_same_names(tables)

    def image_reading(self, reading: ImageReading) -> ImageReading:
        """Return a reading of the rows' images, with the settings of ``reading``."""
        self.prepare()
        return RowReading.extending(reading, self.__dict__["_images"])

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_images", None)
        return state

    def _datasets(self) -> dict[Stage, Any]:
        """Return the data set of each stage, or None.

        Raises:
            ValueError: A stage is set twice, is unknown, or none is set.
        """
        datasets: dict[Stage, Any] = {stage: getattr(self, stage) for stage in _STAGES}
        if self.dataset is not None:
            named_datasets = self.dataset if isinstance(self.dataset, Mapping) else {"train": self.dataset}
            for name, dataset in named_datasets.items():
                stage = _OTHER_NAMES.get(name, name)
                if stage not in datasets:
                    names = ", ".join((*_STAGES, *_OTHER_NAMES))
                    remedy = f"give single data sets, such as train=dataset[{name!r}]"
                    raise ValueError(f"dataset has {name!r}, which is none of {names}; {remedy}")
                if datasets[stage] is not None:
                    raise ValueError(f"dataset has {name!r}, and {stage}= is given as well; give one of them")
                datasets[stage] = dataset
        if all(dataset is None for dataset in datasets.values()):
            raise ValueError("no stage has a data set; give one, such as train=load_dataset(..., split='train')")
        return datasets

    def _fractions(self) -> dict[Stage, float]:
        return {"val": self.val_fraction, "test": self.test_fraction}

    def _columns(self) -> RowColumns:
        return RowColumns(**{column.name: getattr(self, column.name) for column in fields(RowColumns)})

    def _schema(self) -> KeypointSchema | None:
        return None if self.schema is None else keypoint_schema(self.schema)

    def _settings(self) -> dict[str, Any]:
        """Return every setting that changes a table, as plain values."""
        schema = self._schema()
        return {
            "columns": asdict(self._columns()),
            "schema": None if schema is None else asdict(schema),
            "class_names": None if self.class_names is None else list(self.class_names),
            "policy": asdict(ReadPolicy(**self.policy)),
            "root": None if self.root is None else str(Path(self.root).absolute()),
        }


class _RowTable:
    """Table of one data set.

    Args:
        source: Settings.
        columns: Columns of the data set.
        dataset: The data set.
        name: Name of the data set.
        optional: The data set may have no annotations at all.

    Attributes:
        name: Name of the data set.
        images: Images of the rows.
    """

    def __init__(self, source: RowsSource, columns: RowColumns, dataset: Any, name: str, *, optional: bool) -> None:
        self.name = name
        self._source = source
        self._columns = columns
        self._schema = None if source.schema is None else keypoint_schema(source.schema)
        self._rows = open_rows(
            dataset, name=name, image=columns.image, columns=columns.annotations(), optional=optional
        )
        self._folder = None if source.root is None else Path(source.root).absolute()
        self.images = RowImages(name, self._rows.rows, columns.image, self._folder)
        # Rows of a set that has to be read to be identified.
        self._builder: RowBuilder | None = None

    def digest(self) -> str:
        """Return a digest of all annotations and images."""
        identity = self._rows.identity()
        digest = hashlib.blake2b(f"{self.name} {len(self._rows)} {self._rows.columns} {identity}".encode())
        if identity is None:
            copy_keys = self._read(digest)
        else:
            bar: dict[str, Any] = {"progress": self._source.progress, "description": f"Comparing rows of {self.name}"}
            images = map(self._unpacked, self._rows.iterate_encoded(**bar))
            copy_keys = [self._update(digest, image, has_identity=True) for image in images]
        self.images.copy_keys = copy_keys or None
        return digest.hexdigest()

    def table(self, root: Path) -> AnnotationTable:
        """Return the table, from the cache if possible."""
        source = self._source
        folder = cache_folder(source.cache_dir)
        make_key = partial(cache_key, reader="rows", version=_VERSION, root=root)
        # The root is a digest of the rows and the settings of all sets.
        key = make_key(settings={"name": self.name})
        request = make_key(settings={"request": self.name})
        table = load_unchanged(folder=folder, key=key, request=request, root=root)
        if table is not None:
            return table
        if self._builder is None:
            self._read()
        assert self._builder is not None
        builder = self._builder
        # The rows take more memory than their table.
        self._builder = None
        table = build_table(
            builder,
            Folder(root),
            class_names=source.class_names,
            keypoints=self._schema,
            progress=source.progress,
            are_files=False,
        )
        return keep(table, folder=folder, key=key, request=request)

    def _read(self, digest: Any = None) -> list[bytes | int]:
        """Read all rows into a builder, and return the copy keys of their images.

        Args:
            digest: Digest to update with annotations and images, or None if they are known.
        """
        source = self._source
        columns = self._columns
        builder = RowBuilder(
            self.name,
            columns,
            policy=ReadPolicy(**source.policy),
            class_names=source.class_names,
            label_names=self._rows.class_names_of.get(columns.labels or "", ()),
            schema=self._schema,
        )
        copy_keys = []
        rows = self._rows.iterate(progress=source.progress, description=f"Reading rows of {self.name}")
        for number, row in enumerate(rows):
            image = self._unpacked(row.image)
            if digest is not None:
                copy_keys.append(self._update(digest, image, has_identity=False))
                digest.update(repr(row.values).encode("utf-8", "backslashreplace"))
            size = self._size(builder, number, image)
            if size is not None:
                builder.add(number, row.values, size)
        self._builder = builder
        return copy_keys

    def _unpacked(self, value: Any) -> RowImage | ImageError:
        try:
            return unpacked(value, self._folder)
        except ImageError as error:
            return error

    def _size(self, builder: RowBuilder, number: int, image: RowImage | ImageError) -> tuple[int, int] | None:
        """Return width and height of an image, 0 if unknown, or None if the policy drops the row."""
        kind: Literal["missing_image", "unreadable_image"] = "missing_image"
        if isinstance(image, ImageError):
            message = str(image)
        else:
            header = header_of(image)
            if not isinstance(header, str):
                return header[:2]
            message = header
            if not isinstance(image, Path) or image_stamp(image.parent, image.name) != -1:
                kind = "unreadable_image"
                message = f"the size of the image cannot be read: {header}"
        action = getattr(builder.policy, kind)
        builder.problem(kind, action, message, line=-1 - number)
        return None if action == "drop" else (0, 0)

    def _update(self, digest: Any, image: RowImage | ImageError, *, has_identity: bool) -> bytes | int:
        """Update a digest with an image, and return a value that is equal for copies of it.

        Args:
            digest: Digest of the rows.
            image: The image, or the reason why there is none.
            has_identity: The digest covers all images but files.
        """
        if isinstance(image, ImageError):
            # The table depends on the reason, which the policy decides on.
            digest.update(str(image).encode("utf-8", "backslashreplace"))
            return 0
        if isinstance(image, Path):
            stamp = image_stamp(image.parent, image.name)
            digest.update(f"{image} {stamp}".encode("utf-8", "surrogateescape"))
            return 0 if stamp == -1 else image.stat().st_size
        if isinstance(image, bytes | memoryview):
            if not has_identity:
                digest.update(content_of(image))
            return len(image)
        content = content_of(image)
        digest.update(content)
        return content
