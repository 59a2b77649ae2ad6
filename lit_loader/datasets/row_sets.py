"""Rows of Hugging Face data sets and of other map-style data sets of mappings, with their images still encoded."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from lit_loader.annotations.cache import image_stamp
from lit_loader.annotations.formats.parallel import iter_chunks
from lit_loader.errors import AnnotationError, SettingError

__all__ = ["Row", "RowSet", "open_rows", "value_at"]

_CHUNK_ROWS: Final = 256
"""Rows of a Hugging Face data set that are in memory at once."""

_ENCODED_TYPES: Final = ("binary", "large_binary", "string", "large_string", "null")
"""Arrow types of encoded images and of paths."""


class Row(NamedTuple):
    """Annotations and image of a row.

    Attributes:
        values: Annotations by column, as plain Python values.
        image: Value of the image column, not decoded.
    """

    values: Mapping[str, Any]
    image: Any


class RowSet(ABC):
    """Rows of one data set.

    Args:
        name: Name of the data set, for messages.
        image: Column of the images.
        columns: Columns of the annotations by the name of the setting: keys, or keys of nested mappings joined by dots.

    Attributes:
        rows: Map-style data set whose rows have the image, not decoded where that is possible.
        class_names_of: Names of the classes of a column of numbers, where the data set declares them.
    """

    def __init__(self, name: str, image: str, columns: Mapping[str, str]) -> None:
        self.name = name
        self.image = image
        self.columns = tuple(dict.fromkeys(columns.values()))
        self._setting_by_column = {image: "image", **{column: setting for setting, column in columns.items()}}
        self.rows: Any = None
        self.class_names_of: dict[str, tuple[str, ...]] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def read(self, numbers: range) -> Iterable[Row]:
        """Return some consecutive rows."""

    def read_encoded(self, numbers: range) -> Iterable[Any]:
        """Return the encoded images and paths of some consecutive rows, or nothing if the images are arrays."""
        return ()

    def identity(self) -> str | None:
        """Return a text that changes with annotations and images, but not with files of paths; None if unknown."""
        return None

    def iterate(self, *, progress: bool, description: str) -> Iterator[Row]:
        """Yield all rows in order, with a progress bar on a terminal."""
        return self._iterate(self.read, progress=progress, description=description)

    def iterate_encoded(self, *, progress: bool, description: str) -> Iterator[Any]:
        """Yield `read_encoded` of all rows in order, with a progress bar on a terminal."""
        return self._iterate(self.read_encoded, progress=progress, description=description)

    def _iterate(self, read: Callable[[range], Iterable[Any]], **bar: Any) -> Iterator[Any]:
        # One process: a data set of the user's may be neither picklable nor safe to fork.
        for pieces in iter_chunks(partial(_pieces, read), range(len(self)), num_workers=0, **bar):
            for items in pieces:
                yield from items

    def _choose_columns(self, available: Sequence[str], names: Iterable[str], *, optional: bool) -> None:
        """Choose the columns to read from those that the data set has: all, or if ``optional`` no annotations."""
        annotations = [column for column in available if self._setting_by_column[column] != "image_id"]
        missing = [column for column in self.columns if column not in available]
        if missing and (annotations or not optional):
            raise self.missing_column(missing[0], names)
        self.columns = tuple(available)

    def missing_column(self, column: str, names: Iterable[str]) -> SettingError:
        """Return the error for a column that the data set does not have."""
        rule = f"is not a column of {self.name}, which has {sorted(names)}"
        return SettingError(self._setting_by_column[column], column, rule, "name one of these")


def open_rows(dataset: Any, *, name: str, image: str, columns: Mapping[str, str], optional: bool) -> RowSet:
    """Return the rows of a data set.

    Args:
        dataset: A Hugging Face ``Dataset``, or a map-style data set of mappings.
        name: Name of the data set, for messages.
        image: Column of the images.
        columns: Columns of the annotations by the name of the setting.
        optional: The data set may have no annotations at all.

    Raises:
        TypeError: The data set is not map-style, or a row is not a mapping.
        SettingError: A column does not exist, or does not have a type that can be read.
    """
    if hasattr(dataset, "iloc"):
        raise TypeError(f"{name}: expected rows that are mappings, got a DataFrame; give dataset.to_dict('records')")
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        remedy = "a Hugging Face Dataset, or any set with __len__ and __getitem__ that returns dicts"
        streaming = "; load a streamed data set without streaming=True" if hasattr(dataset, "__iter__") else ""
        raise TypeError(f"{name}: expected {remedy}, got {type(dataset).__name__}{streaming}")
    # The methods, not the class: this package does not import `datasets`.
    is_arrow = all(hasattr(dataset, method) for method in ("with_format", "select_columns", "cast_column", "features"))
    kind = _ArrowRows if is_arrow else _SequenceRows
    return kind(dataset, name=name, image=image, columns=columns, optional=optional)


def value_at(row: Any, column: str) -> Any:
    """Return the value of a column; in a list of mappings, the list of their values.

    Hugging Face stores a list of mappings as such or, for its older ``Sequence`` features, as a mapping of lists. Both
    give the same list here.

    Raises:
        KeyError: A mapping does not have the key.
    """
    # A flattened data set has dots in its keys.
    return row[column] if column in row else _nested_value(row, column.split("."))


def _nested_value(value: Any, keys: Sequence[str]) -> Any:
    for position, key in enumerate(keys):
        if isinstance(value, Mapping):
            value = value[key]
        elif isinstance(value, list | tuple):
            return [_nested_value(item, keys[position:]) for item in value]
        elif value is None:
            return None
        else:
            raise KeyError(key)
    return value


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, also inside lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _pieces(read: Callable[[range], Iterable[Any]], numbers: range) -> Iterator[Iterable[Any]]:
    # A generator, so that only one piece is in memory.
    for start in range(numbers.start, numbers.stop, _CHUNK_ROWS):
        yield read(range(start, min(start + _CHUNK_ROWS, numbers.stop)))


class _SequenceRows(RowSet):
    """Rows of a list, or of another map-style data set."""

    def __init__(self, dataset: Any, *, name: str, image: str, columns: Mapping[str, str], optional: bool) -> None:
        super().__init__(name, image, columns)
        self.rows = dataset
        if len(dataset) == 0:
            return
        first_row = self._row(0)
        if image not in first_row:
            raise self.missing_column(image, first_row)
        available = []
        for column in self.columns:
            try:
                value_at(first_row, column)
            except KeyError:
                continue
            available.append(column)
        self._choose_columns(available, first_row, optional=optional)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, numbers: range) -> Iterator[Row]:
        # One at a time, because a data set may decode its images.
        return map(self._read, numbers)

    def _read(self, number: int) -> Row:
        row = self._row(number)
        values = {}
        for column in (self.image, *self.columns):
            try:
                values[column] = value_at(row, column)
            except KeyError as error:
                problem = f"row {number} has no {error.args[0]!r} for the column {column!r}"
                raise AnnotationError(
                    problem, path=self.name, remedy="name another column, or give every row the same keys"
                ) from None
        image = values.pop(self.image)
        return Row({column: _plain(value) for column, value in values.items()}, image)

    def _row(self, number: int) -> Mapping[str, Any]:
        row = self.rows[number]
        if not isinstance(row, Mapping):
            rule = f"{self.name}: expected rows that are mappings, got {type(row).__name__} as row {number}"
            raise TypeError(f"{rule}; join data sets by MixedSource, and use DatasetsDataModule for other samples")
        return row


class _ArrowRows(RowSet):
    """Rows of a Hugging Face data set, read as Arrow batches: images are not decoded."""

    def __init__(self, dataset: Any, *, name: str, image: str, columns: Mapping[str, str], optional: bool) -> None:
        super().__init__(name, image, columns)
        if (dataset.format or {}).get("type") == "custom":
            remedy = "pass dataset.with_format(None), and the transform to the data module"
            raise ValueError(f"{name} has a transform of its own, which reading of columns would skip; {remedy}")
        self._features = dataset.features
        names = list(dataset.column_names)
        if image not in names:
            raise self.missing_column(image, names)
        top_names = []
        available = []
        for column in self.columns:
            top_name = column if column in names else column.partition(".")[0]
            feature = self._feature(column, top_name)
            if feature is not None:
                available.append(column)
                top_names.append(top_name)
                if declared_names := getattr(feature, "names", None):
                    self.class_names_of[column] = tuple(declared_names)
        self._choose_columns(available, names, optional=optional)
        self._dataset = dataset.with_format(None)
        self._annotations = dataset.select_columns(list(dict.fromkeys(top_names))).with_format("arrow")
        # Without columns Hugging Face forgets the number of rows.
        self._has_annotations = bool(top_names)
        self._num_rows = len(dataset)
        self.rows = self._undecoded(dataset)

    def __len__(self) -> int:
        return self._num_rows

    def read(self, numbers: range) -> list[Row]:
        batch: list[Any] = [{}] * len(numbers)
        if self._has_annotations:
            batch = self._annotations[numbers.start : numbers.stop].to_pylist()
        values = [{column: value_at(row, column) for column in self.columns} for row in batch]
        images = self.read_encoded(numbers) or [self.rows[number][self.image] for number in numbers]
        return list(map(Row, values, images))

    def identity(self) -> str:
        from datasets.fingerprint import Hasher  # type: ignore[import-untyped]

        # The hash covers mapped files by their names, the selected rows, and the content of data in memory.
        stamps = [image_stamp(*os.path.split(file["filename"])) for file in self._dataset.cache_files]
        return f"{Hasher.hash(self._dataset)} {stamps}"

    def _feature(self, column: str, top_name: str) -> Any:
        """Return the feature of a column's values, or None if the data set has no such column."""
        feature = self._features.get(top_name)
        keys = [] if column == top_name else column.split(".")[1:]
        for key in keys:
            while not isinstance(feature, Mapping) and hasattr(feature, "feature"):
                feature = feature.feature
            feature = feature.get(key) if isinstance(feature, Mapping) else None
        while not isinstance(feature, Mapping) and hasattr(feature, "feature"):
            feature = feature.feature
        return feature

    def _undecoded(self, dataset: Any) -> Any:
        """Return the data set with its images alone, in a format that leaves them encoded."""
        images = dataset.select_columns([self.image])
        feature = self._features[self.image]
        # Set by Image features.
        if hasattr(feature, "decode"):
            if getattr(feature, "mode", None) not in (None, "RGB"):
                rule = f"is a column of images in mode {feature.mode!r}, and images are read as RGB"
                raise SettingError("image", self.image, rule, "cast the column to Image(mode=None)")
            images = images.cast_column(self.image, dataclasses.replace(feature, decode=False))
        self._arrow_images = images.with_format("arrow")
        arrow_type = self._arrow_images.features.arrow_schema.field(self.image).type
        kind = str(arrow_type)
        self._is_encoded = (kind.startswith("struct") and bool(_image_fields(arrow_type))) or kind in _ENCODED_TYPES
        if self._is_encoded:
            return images.with_format(None)
        value_feature = feature
        while hasattr(value_feature, "feature"):
            value_feature = value_feature.feature
        if getattr(value_feature, "dtype", None) != "uint8":
            rule = f"has {feature} instead of images, encoded images, paths or uint8 arrays"
            raise SettingError("image", self.image, rule, "name the column of the images")
        return images.with_format("numpy", dtype=np.uint8)

    def read_encoded(self, numbers: range) -> list[Any]:
        if not self._is_encoded:
            return []
        images: list[Any] = []
        for chunk in self._arrow_images[numbers.start : numbers.stop].column(self.image).chunks:
            images += _encoded_images(chunk)
        return images


def _encoded_images(chunk: Any) -> list[Any]:
    """Return the images of an Arrow array; their bytes are views of its buffers, which may be mapped files."""
    kind = str(chunk.type)
    # The type of a column in which every value is missing.
    if kind == "null":
        return [None] * len(chunk)
    if kind.startswith("struct"):
        # field() keeps the offset of a slice, but not the missing rows.
        parts = {name: _encoded_images(chunk.field(name)) for name in _image_fields(chunk.type)}
        images = [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
        is_valid = chunk.is_valid().to_pylist()
        return [image if valid else None for image, valid in zip(images, is_valid, strict=True)]
    if kind in ("string", "large_string"):
        return list(chunk.to_pylist())
    # Scalars of Arrow would copy the bytes, and so read a mapped file.
    _, offsets_buffer, data = chunk.buffers()
    offset_type = np.int64 if kind.startswith("large") else np.int32
    offsets = np.frombuffer(offsets_buffer, offset_type, len(chunk) + 1, chunk.offset * np.dtype(offset_type).itemsize)
    bounds = pairwise(offsets.tolist())
    view = memoryview(data or b"")
    return [
        view[start:stop] if valid else None
        for (start, stop), valid in zip(bounds, chunk.is_valid().to_pylist(), strict=True)
    ]


def _image_fields(struct: Any) -> list[str]:
    """Return the fields of an Arrow struct that make it an image."""
    return [name for name in ("bytes", "path") if struct.get_field_index(name) >= 0]
