"""YOLO (darknet, ultralytics): one text file per image, one line per object, in fractions of the image.

NOTE [Where the files of a set are]
    The data file is in the root or in a folder under it. It names folders or lists of images. Its paths and those in
    lists are looked up relative to the file that contains them, then relative to the root, then in both without their
    first folder: darknet's files include the name of their own folder (``data/train.txt``). A leading ``../`` in the
    data file is removed if the remaining path exists, as ultralytics does for Roboflow's sets. The key ``path`` is
    ignored, because it describes the machine on which the set was made.

    The label file of ``a/images/b/c.jpg`` is ``a/labels/b/c.txt``: the last ``images`` in the path is replaced. In a
    path without ``images`` the label file is next to the image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import yaml

from lit_loader.annotations.formats.coco import MAX_POINTS
from lit_loader.annotations.formats.folder import Folder, is_image_name, join_path
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import numbers, read_bytes, read_lines
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = [
    "MAX_DATA_BYTES",
    "READ_KEYS",
    "Task",
    "YAML_LOADER",
    "YoloReader",
    "label_paths",
    "read_data_file",
]

Task = Literal["detect", "segment", "pose"]

MAX_DATA_BYTES: Final = 2**20
READ_KEYS: Final = ("names", "nc", "classes", "kpt_shape", "flip_idx", "kpt_names", "normalization_pair")
_DATA_FILES: Final = ("data.yaml", "data.yml", "dataset.yaml", "obj.data")
_CLASS_FILES: Final = ("classes.txt", "obj.names", "_darknet.labels")
_SPLITS: Final = {"train": "train", "val": "valid", "valid": "val", "test": "test"}
_MAX_DEPTH: Final = 8

# The base loader keeps text as text: others read the class `no` as False and 007 as 7. The C version is ten times
# as fast.
YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _RowFormat(NamedTuple):
    """Properties that all rows of a set share.

    Attributes:
        file: File that lists the class names, or "".
        class_names: Class names in the order of their ids; may be empty.
        keypoints: Points of an object, or None.
        lengths: Possible counts of numbers in a row with a box.
        polygons: Whether rows may be polygons; "maybe" if such a row could also hold points.
    """

    file: str
    class_names: tuple[str, ...]
    keypoints: KeypointSchema | None
    lengths: tuple[int, ...]
    polygons: Literal["yes", "no", "maybe"]


class _Unit(NamedTuple):
    """An image, or a file or key that is only reported.

    Attributes:
        row_format: Format of its rows.
        path: Path of the image.
        label: Label file, or "" without one.
        source: List or folder that contains the image.
        line: Line in the list, or None.
        kind: Kind of problem, or "".
        message: Description of the problem.
    """

    row_format: _RowFormat
    path: str
    label: str
    source: str
    line: int | None = None
    kind: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class YoloReader(Reader):
    """Reads a YOLO data set: detection, segmentation and pose.

    NAME is a split of the data file; or the first that exists of the folders ``images/NAME``, ``NAME/images`` and NAME
    and the lists ``NAME.txt`` and NAME. "." means the folder ``images``, or the root without one. The set consists of
    the images in the list or folder. An image without a label file is a ``missing_annotation`` (``"empty"`` makes it
    an image without objects, as ultralytics does); one with an empty label file has no objects. A label file whose
    image is not in the folder is reported.

    A row is ``class cx cy w h``; or the class and a polygon, ``x1 y1 x2 y2 x3 y3 ...``, whose tight box is the
    object's; or a box and points, each ``x y`` or ``x y visibility`` (0 absent, 1 hidden, 2 visible). As in
    ultralytics, a point of two numbers is absent if one is negative and visible otherwise, also at 0 0.

    A row of points can have as many numbers as a polygon, so the data set must declare its kind: by ``kpt_shape`` in
    its data file, or by ``task`` or ``schema``. A data.yaml without ``kpt_shape`` declares that there are no points.

    Args:
        data_file: YAML file or darknet's ``.data``, relative to the root. None takes data.yaml, data.yml, dataset.yaml
            or obj.data in the root, if there is one.
        class_file: File with one class name per line. None takes the data file's names, or else classes.txt, obj.names
            or _darknet.labels in the root or next to the labels. Without any of these, pass ``class_names``.
        task: Content of the rows: ``"detect"`` boxes, ``"segment"`` polygons and boxes, ``"pose"`` boxes with points,
            or None to follow the data file.
        schema: Keypoint schema, as `keypoint_schema` takes it, or None for the points of the data file.
        image_dir: Folder name in an image's path that ``label_dir`` replaces.
        label_dir: Folder name in the label file's path.

    Source:
        https://docs.ultralytics.com/datasets and https://github.com/AlexeyAB/darknet.
    """

    format: ClassVar[str] = "yolo"
    description: ClassVar[str] = "YOLO txt and data.yaml; NAME: a split, a folder of images, or a list"

    data_file: str | None = None
    class_file: str | None = None
    task: Task | None = None
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    image_dir: str = "images"
    label_dir: str = "labels"

    def __post_init__(self) -> None:
        if self.schema is not None and self.task in ("detect", "segment"):
            raise ValueError(f"schema={self.schema!r} names points, task={self.task!r} has none; drop one")
        super().__post_init__()

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the label files of a split's images.

        Raises:
            AnnotationError: If there is no such split, it has no image, or the data file contradicts itself.
            UnsafePathError: If a path in a file leads out of the root.
        """
        file = self.data_file or next(filter(folder.is_file, _DATA_FILES), "")
        data = _DataFile(folder, file, read_data_file(folder, file) if file else {})
        sources, split = self._sources(data, name)
        find_labels = partial(label_paths, image_dir=self.image_dir, label_dir=self.label_dir)
        label_folders = [posixpath.dirname(find_labels(f"{source}/x")[0]) for source in sources]
        row_format = self._row_format(data, [".", *label_folders])
        units: list[_Unit] = []
        images: dict[str, None] = {}
        for source in sources:
            for line, path in data.images(source):
                candidates = find_labels(path)
                label = next(filter(folder.is_file, candidates), "")
                kind = ""
                message = ""
                if path in images:
                    kind = "duplicate_id"
                    message = f"image {shorten(repr(path))} is listed more than once"
                elif not label and folder.is_file(path):
                    kind = "missing_annotation"
                    message = f"image {shorten(repr(path))} has no label file {shorten(repr(candidates[0]))}"
                units.append(_Unit(row_format, path, label, source, line, kind, message))
                images[path] = None
        labels = dict.fromkeys(unit.label for unit in units)
        folders = dict.fromkeys(path for path in (*sources, *label_folders) if folder.is_folder(path))
        if not units and folders:
            raise AnnotationError(f"there is no image in {', '.join(folders)}", path=folder.root)
        files_read = {*images, *labels, *sources, file, row_format.file}
        for path in dict.fromkeys(path for top in folders for path in folder.below(top)):
            base, ending = posixpath.splitext(posixpath.basename(path))
            # ultralytics writes its label cache into the set.
            if path not in files_read and ending != ".cache" and base + ending not in _CLASS_FILES:
                kind = f"files *{shorten(ending)}"
                units.append(_Unit(row_format, "", "", path, None, kind, "belongs to no image"))
        for key in sorted(data.entries.keys() - {*READ_KEYS, *_SPLITS, name}):
            kind = f"{shorten(key)} of the data file"
            units.append(_Unit(row_format, "", "", file, None, kind, "is not read"))
        files = dict.fromkeys([file, row_format.file, *filter(folder.is_file, sources), *labels])
        return Inputs(files=list(filter(None, files)), units=units, split=split, listed=list(images))

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add an image and its objects."""
        row_format = unit.row_format
        if not rows.declared:  # once for all images: there may be more names than rows
            rows.normalized = True
            rows.file = row_format.file
            rows.declare(class_names=row_format.class_names, keypoints=row_format.keypoints)
        # `rows.file` is where problems are reported: an image's in the list or folder, an object's in the label file.
        rows.file = unit.source
        if unit.kind:
            action = getattr(rows.policy, unit.kind, "not read")
            rows.problem(unit.kind, action, unit.message, line=unit.line)
            if action != "empty":
                return
        rows.file = unit.label or unit.source
        lines = list(read_lines(rows.root, unit.label)) if unit.label else []
        rows.file = unit.source
        image = rows.image(unit.path, line=unit.line)
        rows.file = unit.label or unit.source
        names = row_format.class_names or tuple(rows.given_classes or ())
        for line, text in lines:
            if fields := text.split():
                try:
                    arguments = _object_arguments(numbers(fields), row_format, names)
                except AnnotationError as error:
                    rows.malformed(error.message, line=line)
                    continue
                rows.object(image, line=line, **arguments)

    def _sources(self, data: _DataFile, name: str) -> tuple[list[str], str | None]:
        """Return the folders and lists of images that a name means, and the split."""
        for key in (name, _SPLITS.get(name, "")):
            if key not in READ_KEYS and (entry := data.entries.get(key)):
                paths = entry if isinstance(entry, list) else [entry]
                return [data.find(path, key) for path in paths], name
        name = posixpath.normpath(check_relative(name))
        top = self.image_dir
        candidates = [top, "."] if name == "." else [f"{top}/{name}", f"{name}/{top}", name, f"{name}.txt"]
        for path in map(posixpath.normpath, candidates):
            if data.exists(path):
                return [path], None if name in (".", path) else name
        listed = ", ".join(key for key in _SPLITS if key in data.entries) or "none"
        message = f"there is no split {name!r}: none of {candidates} exists, and the splits of the data file"
        raise data.error(f"{message} are: {listed}" if data.file else f"{message}, which data_file names")

    def _row_format(self, data: _DataFile, label_folders: Sequence[str]) -> _RowFormat:
        """Return the format of all rows.

        Raises:
            AnnotationError: If the data file contradicts itself.
        """
        class_file, names = self._class_names(data, label_folders)
        schema = self.given_keypoints()
        point_size = 0  # unknown
        if self.task not in ("detect", "segment") and "kpt_shape" in data.entries:
            try:
                schema, point_size = _read_schema(data.entries, schema)
            except (TypeError, ValueError) as error:
                raise data.error(f"its points contradict each other: {shorten(str(error))}") from None
        if self.task == "pose" and schema is None:
            raise data.error("task='pose' needs kpt_shape in the data file, or `schema`")
        polygons: Literal["yes", "no", "maybe"] = "maybe"
        if self.task == "detect" or schema is not None:
            polygons = "no"
        elif self.task == "segment" or (data.file and not data.file.endswith(".data")):
            polygons = "yes"  # a YAML file without kpt_shape declares no points; darknet's file has no such key
        num_points = 0 if schema is None else len(schema.names)
        point_sizes = (point_size,) if point_size else (2, 3)
        lengths = tuple(5 + num_points * size for size in point_sizes) if num_points else (5,)
        return _RowFormat(class_file or data.file, names, schema, lengths, polygons)

    def _class_names(self, data: _DataFile, label_folders: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Return the file that lists the class names, or "", and the names."""
        entry = data.entries.get("names")
        class_file = self.class_file or (data.find(entry, "names") if isinstance(entry, str) else "")
        if not class_file and not entry:
            candidates = (posixpath.normpath(f"{top}/{file}") for top in label_folders for file in _CLASS_FILES)
            class_file = next(filter(data.exists, candidates), "")
        if class_file:
            lines = read_lines(data.folder.root, class_file)
            entry = "\n".join(text.strip() for _, text in lines).rstrip().split("\n")
        elif isinstance(entry, dict):
            entry = [entry.get(str(number), "") for number in range(len(entry))]
        names = tuple(entry or ())
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise data.error("names of classes must be different, none empty, with ids from 0 on", class_file)
        num_classes = data.entries.get("nc", data.entries.get("classes", str(len(names))))
        if names and num_classes != str(len(names)):
            message = f"it has {len(names)} names of classes, and another number of them; correct one"
            raise data.error(message)
        return class_file, names


@dataclass(frozen=True)
class _DataFile:
    """The data file of a set, or an empty one, and path lookup relative to it."""

    folder: Folder
    file: str
    entries: Mapping[str, Any]

    def exists(self, path: str) -> bool:
        return self.folder.is_folder(path) or self.folder.is_file(path)

    def error(self, message: str, file: str = "") -> AnnotationError:
        return AnnotationError(message, path=self.folder.root / (file or self.file))

    def find(self, text: Any, key: str) -> str:
        """Return the folder or file that an entry of the data file names."""
        if isinstance(text, str):
            path = next(filter(self.exists, self.candidates(self.file, text.removeprefix("../"))), "")
            if path:
                return path
        raise self.error(f"{key} names {shorten(repr(text))}, which is neither a folder nor a file here")

    def candidates(self, source: str, text: str, line: int | None = None) -> list[str]:
        """Return the possible locations of a path in a file; see NOTE [Where the files of a set are]."""
        path = join_path(".", text, source=self.folder.root / source, line=line)
        tops = dict.fromkeys((posixpath.dirname(source) or ".", "."))
        return [join_path(top, part) for part in (path, path.partition("/")[2]) if part for top in tops]

    def images(self, source: str) -> Iterator[tuple[int | None, str]]:
        """Yield the images of a folder or a list, with their lines."""
        if self.folder.is_folder(source):
            yield from ((None, path) for path in self.folder.below(source) if is_image_name(path))
            return
        # A missing image most likely belongs where the image in the previous line was.
        last = 0
        for line, text in read_lines(self.folder.root, source):
            if text := text.strip():
                paths = self.candidates(source, text, line)
                last = next((i for i, path in enumerate(paths) if self.folder.is_file(path)), last)
                yield line, paths[min(last, len(paths) - 1)]


def label_paths(image: str, image_dir: str = "images", label_dir: str = "labels") -> list[str]:
    """Return the possible label files of an image; see NOTE [Where the files of a set are]."""
    stem = posixpath.splitext(image)[0]
    parent, separator, name = f"/{stem}".rpartition(f"/{image_dir}/")
    return [f"{parent}/{label_dir}/{name}.txt"[1:], f"{stem}.txt"] if separator else [f"{stem}.txt"]


def read_data_file(folder: Folder, file: str) -> dict[str, Any]:
    """Read a data file: texts, and lists and mappings of texts.

    Raises:
        AnnotationError: If it is neither YAML nor, with the ending ``.data``, lines ``key = value``; or it has aliases
            or a repeated key, or is larger or nested deeper than any data file.
    """
    if file.endswith(".data"):
        lines = read_lines(folder.root, file)
        pairs = (text.partition("#")[0].partition("=") for _, text in lines)
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
    try:
        text = read_bytes(folder.root, file, max_bytes=MAX_DATA_BYTES).decode()
        depth = nodes = 0
        for event in yaml.parse(text, Loader=YAML_LOADER):
            nodes += isinstance(event, yaml.NodeEvent)
            is_end = isinstance(event, yaml.CollectionEndEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - is_end
            # With aliases, a small file can expand to a huge value.
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                message = f"holds an alias (*), or more than {_MAX_DEPTH} nested lists; write it out"
                raise AnnotationError(message, path=folder.root / file, line=event.start_mark.line + 1)
        entries = yaml.load(text, Loader=YAML_LOADER)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise AnnotationError(f"is not valid YAML: {shorten(str(error))}", path=folder.root / file) from None
    # PyYAML keeps only the last value of a repeated key, so the loaded value has fewer nodes than the file.
    if nodes != _num_nodes(entries):
        raise AnnotationError("has a repeated key; merge its values", path=folder.root / file)
    if not isinstance(entries, dict):
        raise AnnotationError("holds no keys; a data file has train, val and names", path=folder.root / file)
    return {key: value for key, value in entries.items() if value not in ("", "null", "~")}


def _num_nodes(value: Any) -> int:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_num_nodes, parts))


def _object_arguments(values: list[float], row_format: _RowFormat, names: Sequence[str]) -> dict[str, Any]:
    """Convert a row to arguments of `Rows.object`.

    Raises:
        AnnotationError: If it is not a row of this format.
    """
    count = len(values)
    class_id = values[0]
    polygons = row_format.polygons
    if not (class_id.is_integer() and 0 <= class_id < len(names)):
        message = f"class {class_id:g} has no name: {row_format.file or 'class_names'} has {len(names)}, from 0 on"
        raise AnnotationError(f"{message}; name it there, or pass class_names")
    class_name = names[int(class_id)]
    if polygons != "no" and count > 6 and count % 2:
        if polygons == "yes":
            return {"class_name": class_name, "box": None, "polygons": [values[1:]]}
        kinds = "a polygon, a rotated box (YOLO-OBB) or points" if count == 9 else "a polygon or points"
        raise AnnotationError(f"{count} numbers are {kinds}: choose the task 'segment' or 'pose'")
    if count not in row_format.lengths:
        lengths = [*row_format.lengths, *(() if polygons == "no" else ("7, 9, 11, ... for a polygon",))]
        message = f"{count} numbers, where a row has {' or '.join(map(str, lengths))}"
        # Rows that ultralytics predicts end with a confidence.
        is_prediction = count - 1 in row_format.lengths or (polygons != "no" and count > 6)
        remedy = "remove the confidence of a prediction at its end" if is_prediction else "see `task`"
        if count == 9 and polygons == "no" and row_format.keypoints is None:
            remedy = "a rotated box (YOLO-OBB) is read with task='segment', as its polygon and the box around it"
        raise AnnotationError(f"{message}; {remedy}")
    x, y, width, height = values[1:5]
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if row_format.keypoints is None:
        return {"class_name": class_name, "box": box}
    points = np.array(values[5:]).reshape(len(row_format.keypoints.names), -1)
    visibility = points[:, 2] if points.shape[1] == 3 else np.where((points < 0).any(axis=1), 0, 2)
    if not np.isin(visibility, (0, 1, 2)).all():
        raise AnnotationError(f"visibility {shorten(str(visibility.tolist()))} must be 0, 1 or 2")
    return {"class_name": class_name, "box": box, "points": points[:, :2], "visibility": visibility}


def _read_schema(entries: Mapping[str, Any], schema: KeypointSchema | None) -> tuple[KeypointSchema, int]:
    """Return ``schema``, or the points that a data file describes if it is None, and the count of numbers per point.

    Raises:
        TypeError: If an entry is not of the expected type.
        ValueError: If the entries contradict each other or the schema.
    """
    num_points, point_size = (int(number) for number in entries["kpt_shape"])
    entry = entries.get("kpt_names", [])
    name_lists = list(entry.values()) if isinstance(entry, dict) else [entry] if entry else []
    names: Any = name_lists[0] if name_lists else range(num_points) if schema is None else schema.names
    if not 0 < num_points <= MAX_POINTS or point_size not in (2, 3) or len(names) != num_points:
        shape = [num_points, point_size]
        raise ValueError(f"kpt_shape={shape} with {len(names)} names; [points, 2 or 3] expected")
    if schema is not None:
        return schema, point_size
    if any(class_names != names for class_names in name_lists):
        raise ValueError("classes have points of other names; pass `schema`")
    flips = [int(index) for index in entries.get("flip_idx", range(num_points))]
    if len(flips) != num_points or [flips[i] for i in flips if 0 <= i < num_points] != list(range(num_points)):
        raise ValueError(f"flip_idx={flips} does not exchange pairs of {num_points} points")
    pair: Any = entries.get("normalization_pair")
    return KeypointSchema(
        names=names if name_lists else keypoint_schema(num_points).names,
        flip_pairs=tuple((i, j) for i, j in enumerate(flips) if i < j),
        normalization_pair=None if pair is None else tuple(map(int, pair)),  # type: ignore[arg-type] # checked there
    ), point_size
