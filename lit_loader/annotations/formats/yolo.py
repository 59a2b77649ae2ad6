"""YOLO (darknet, ultralytics): a txt file an image, a line an object, in fractions of the image.

NOTE [Where the files of a set are]
    The data file lies in the root or below it. What it names (a folder of images, a list of them, or several of these)
    and what a list names is looked for relative to the file that names it, then relative to the root, then in both
    without its first folder: darknet's files name the folder that they lie in (``data/train.txt``). A leading ``../``
    of the data file is taken away if the rest exists, as ultralytics does for sets of Roboflow. ``path`` is not
    followed, because it is that of another machine.

    The label file of ``a/images/b/c.jpg`` is ``a/labels/b/c.txt``: the last ``images`` of the path counts. If there is
    none, it is the file beside the image.
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

# Texts stay texts: with other loaders the class `no` is false, and 007 is 7. Compiled, it is ten times as fast.
YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Set(NamedTuple):
    """What holds for every row of a set.

    Attributes:
        file: Lists the names of classes, or "".
        class_names: In the order of their ids, or none.
        keypoints: The points of an object, or None.
        lengths: How many numbers a row with a box may have.
        polygons: Whether rows may be polygons; "maybe" if nothing says that they are no points.
    """

    file: str
    class_names: tuple[str, ...]
    keypoints: KeypointSchema | None
    lengths: tuple[int, ...]
    polygons: Literal["yes", "no", "maybe"]


class _Unit(NamedTuple):
    """An image, or a file that is not read.

    Attributes:
        of_set: What holds for its rows.
        path: The image.
        label: Its label file, or "" without one.
        source: The list, or the folder, that names it.
        line: In the list, or None.
        kind: What is wrong with it, or "".
        message: The same in words.
    """

    of_set: _Set
    path: str
    label: str
    source: str
    line: int | None = None
    kind: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class YoloReader(Reader):
    """Reads a YOLO data set: detection, segmentation and pose.

    NAME is a split: of the data file, else the folder ``images/NAME`` or ``NAME/images``, the folder NAME, or the list
    ``NAME.txt`` or NAME, whichever is first; "." is the folder ``images``, else the root. In lists and folders the
    image decides: one without a label file is a problem of the kind ``missing_annotation`` (``"empty"`` makes it an
    image without objects, as ultralytics does), one with an empty label file has no objects. A label file whose image
    is not in the folder is reported.

    A row is ``class cx cy w h``; the class and a polygon, ``x1 y1 x2 y2 x3 y3 ...``, around which the box is put; or a
    box and points, each ``x y`` or ``x y visibility`` (0 absent, 1 hidden, 2 visible). A point of two numbers is
    absent if one of them is negative, and visible otherwise, 0 0 too, as in ultralytics.

    A row of points can have as many numbers as a polygon, so the data set must say which it holds: by ``kpt_shape`` in
    its data file or by ``task`` or ``schema``. A data.yaml without ``kpt_shape`` says that there are no points.

    Args:
        data_file: The YAML file or darknet's ``.data``, relative to the root, or None for data.yaml, data.yml,
            dataset.yaml or obj.data in the root, if there is one.
        class_file: A file with a class name a line, or None for the data file's names, else classes.txt, obj.names or
            _darknet.labels in the root or beside the labels. Without any, ``class_names`` are the names.
        task: What rows hold: ``"detect"`` boxes, ``"segment"`` polygons and boxes, ``"pose"`` boxes with points, or
            None for what the data file says.
        schema: The points, as `keypoint_schema` takes them, or None for those of the data file.
        image_dir: The part of an image's path that ``label_dir`` replaces.
        label_dir: The part of the label file's path.

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
        labels_of = partial(label_paths, image_dir=self.image_dir, label_dir=self.label_dir)
        tops = [posixpath.dirname(labels_of(f"{source}/x")[0]) for source in sources]
        of_set = self._describe(data, [".", *tops])
        units: list[_Unit] = []
        images: dict[str, None] = {}
        for source in sources:
            for line, path in data.images(source):
                places = labels_of(path)
                label, kind, message = next(filter(folder.is_file, places), ""), "", ""
                if path in images:
                    kind, message = "duplicate_id", f"image {shorten(repr(path))} is named again"
                elif not label and folder.is_file(path):
                    kind = "missing_annotation"
                    message = f"image {shorten(repr(path))} has no label file {shorten(repr(places[0]))}"
                units.append(_Unit(of_set, path, label, source, line, kind, message))
                images[path] = None
        labels = dict.fromkeys(unit.label for unit in units)
        folders = dict.fromkeys(each for each in (*sources, *tops) if folder.is_folder(each))
        if not units and folders:
            raise AnnotationError(f"there is no image in {', '.join(folders)}", path=folder.root)
        read = {*images, *labels, *sources, file, of_set.file}
        for path in dict.fromkeys(path for each in folders for path in folder.below(each)):
            base, ending = posixpath.splitext(posixpath.basename(path))
            if path not in read and ending != ".cache" and base + ending not in _CLASS_FILES:
                kind = f"files *{shorten(ending)}"
                units.append(_Unit(of_set, "", "", path, None, kind, "belongs to no image"))
        for key in sorted(data.entries.keys() - {*READ_KEYS, *_SPLITS, name}):
            kind = f"{shorten(key)} of the data file"
            units.append(_Unit(of_set, "", "", file, None, kind, "is not read"))
        files = dict.fromkeys([file, of_set.file, *filter(folder.is_file, sources), *labels])
        return Inputs(files=[each for each in files if each], units=units, split=split, listed=list(images))

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add an image and its objects."""
        of_set = unit.of_set
        if not rows.declared:  # once for all images: there may be more names than rows
            rows.normalized, rows.file = True, of_set.file
            rows.declare(class_names=of_set.class_names, keypoints=of_set.keypoints)
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
        names = of_set.class_names or tuple(rows.given_classes or ())
        for line, text in lines:
            if fields := text.split():
                try:
                    found = _object(numbers(fields), of_set, names)
                except AnnotationError as error:
                    rows.malformed(error.message, line=line)
                    continue
                rows.object(image, line=line, **found)

    def _sources(self, data: _DataFile, name: str) -> tuple[list[str], str | None]:
        """Return the folders and lists of images that a name means, and the split."""
        for key in (name, _SPLITS.get(name, "")):
            if key not in READ_KEYS and (given := data.entries.get(key)):
                paths = given if isinstance(given, list) else [given]
                return [data.find(path, key) for path in paths], name
        name, top = posixpath.normpath(check_relative(name)), self.image_dir
        places = [top, "."] if name == "." else [f"{top}/{name}", f"{name}/{top}", name, f"{name}.txt"]
        for place in map(posixpath.normpath, places):
            if data.exists(place):
                return [place], None if name in (".", place) else name
        listed = ", ".join(key for key in _SPLITS if key in data.entries) or "none"
        message = f"there is no split {name!r}: there is none of {places}, and the splits of the data file"
        raise data.wrong(f"{message} are: {listed}" if data.file else f"{message}, which data_file names")

    def _describe(self, data: _DataFile, tops: Sequence[str]) -> _Set:
        """Return what rows hold.

        Raises:
            AnnotationError: If the data file contradicts itself.
        """
        entries, given = data.entries, data.entries.get("names")
        class_file = self.class_file or (data.find(given, "names") if isinstance(given, str) else "")
        if not class_file and not given:
            places = (posixpath.normpath(f"{top}/{file}") for top in tops for file in _CLASS_FILES)
            class_file = next(filter(data.exists, places), "")
        if class_file:
            lines = read_lines(data.folder.root, class_file)
            given = "\n".join(text.strip() for _, text in lines).rstrip().split("\n")
        elif isinstance(given, dict):
            given = [given.get(str(number), "") for number in range(len(given))]
        names = tuple(given or ())
        if not all(isinstance(each, str) and each for each in names) or len(set(names)) < len(names):
            raise data.wrong("names of classes must be different, none empty, with ids from 0 on", class_file)
        if names and entries.get("nc", entries.get("classes", str(len(names)))) != str(len(names)):
            raise data.wrong(f"it has {len(names)} names of classes, and another number of them; correct one")
        schema = self.given_keypoints()
        size = 0
        if self.task not in ("detect", "segment") and "kpt_shape" in entries:
            try:
                schema, size = _read_schema(entries, schema)
            except (TypeError, ValueError) as error:
                raise data.wrong(f"its points contradict each other: {shorten(str(error))}") from None
        if self.task == "pose" and schema is None:
            raise data.wrong("task='pose' needs kpt_shape in the data file, or `schema`")
        is_sure = self.task == "segment" or (data.file and not data.file.endswith(".data"))
        polygons: Literal["yes", "no", "maybe"] = "yes" if is_sure else "maybe"
        if self.task == "detect" or schema is not None:
            polygons = "no"
        num_points, sizes = (0, (0,)) if schema is None else (len(schema.names), (size,) if size else (2, 3))
        lengths = tuple(5 + num_points * each for each in sizes)
        return _Set(class_file or data.file, names, schema, lengths, polygons)


@dataclass(frozen=True)
class _DataFile:
    """A data file, which may be none, and what is found by it."""

    folder: Folder
    file: str
    entries: Mapping[str, Any]

    def exists(self, path: str) -> bool:
        return self.folder.is_folder(path) or self.folder.is_file(path)

    def wrong(self, message: str, file: str = "") -> AnnotationError:
        return AnnotationError(message, path=self.folder.root / (file or self.file))

    def find(self, text: Any, key: str) -> str:
        """Return the folder or file that the data file names."""
        if isinstance(text, str):
            place = next(filter(self.exists, self.places(self.file, text.removeprefix("../"))), "")
            if place:
                return place
        raise self.wrong(f"{key} names {shorten(repr(text))}, which is no folder and no file here")

    def places(self, source: str, text: str, line: int | None = None) -> list[str]:
        """Return where a path that a file names may be; see NOTE [Where the files of a set are]."""
        path = join_path(".", text, source=self.folder.root / source, line=line)
        tops = dict.fromkeys((posixpath.dirname(source) or ".", "."))
        return [join_path(top, each) for each in (path, path.partition("/")[2]) if each for top in tops]

    def images(self, source: str) -> Iterator[tuple[int | None, str]]:
        """Yield the images of a folder or a list, with their lines."""
        if self.folder.is_folder(source):
            yield from ((None, path) for path in self.folder.below(source) if is_image_name(path))
            return
        last = 0  # where the image before was: the likeliest place of one that is missing
        for line, text in read_lines(self.folder.root, source):
            if text := text.strip():
                places = self.places(source, text, line)
                last = next((i for i, place in enumerate(places) if self.folder.is_file(place)), last)
                yield line, places[min(last, len(places) - 1)]


def label_paths(image: str, image_dir: str = "images", label_dir: str = "labels") -> list[str]:
    """Return where an image's label file may be; see NOTE [Where the files of a set are]."""
    stem = posixpath.splitext(image)[0]
    before, part, after = f"/{stem}".rpartition(f"/{image_dir}/")
    return [f"{before}/{label_dir}/{after}.txt"[1:], f"{stem}.txt"] if part else [f"{stem}.txt"]


def read_data_file(folder: Folder, file: str) -> dict[str, Any]:
    """Return what a data file says: texts, and lists and mappings of these.

    Raises:
        AnnotationError: If it is neither YAML nor, with the ending ``.data``, lines ``key = value``; or has aliases or
            a key twice, or is larger or nested deeper than any data file.
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
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:  # a small file could be a huge value
                message = f"holds an alias (*), or more than {_MAX_DEPTH} lists in each other; write it out"
                raise AnnotationError(message, path=folder.root / file, line=event.start_mark.line + 1)
        entries = yaml.load(text, Loader=YAML_LOADER)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise AnnotationError(f"is no YAML: {shorten(str(error))}", path=folder.root / file) from None
    if nodes != _num_nodes(entries):
        raise AnnotationError("holds a key twice; unite what it has", path=folder.root / file)
    if not isinstance(entries, dict):
        raise AnnotationError("holds no keys; a data file has train, val and names", path=folder.root / file)
    return {key: value for key, value in entries.items() if value not in ("", "null", "~")}


def _num_nodes(value: Any) -> int:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_num_nodes, parts))


def _object(values: list[float], of_set: _Set, names: Sequence[str]) -> dict[str, Any]:
    """Return what a row says, as `Rows.object` takes it.

    Raises:
        AnnotationError: If it is not a row of the set.
    """
    count, number, polygons = len(values), values[0], of_set.polygons
    if not (number.is_integer() and 0 <= number < len(names)):
        message = f"class {number:g} has no name: {of_set.file or 'class_names'} has {len(names)}, from 0 on"
        raise AnnotationError(f"{message}; name it there, or pass class_names")
    class_name = names[int(number)]
    if polygons != "no" and count > 6 and count % 2:
        if polygons == "yes":
            return {"class_name": class_name, "box": None, "polygons": [values[1:]]}
        kinds = "a polygon, a rotated box (YOLO-OBB) or points" if count == 9 else "a polygon or points"
        raise AnnotationError(f"{count} numbers are {kinds}: choose the task 'segment' or 'pose'")
    if count not in of_set.lengths:
        lengths = [*of_set.lengths, *(() if polygons == "no" else ("7, 9, 11, ... for a polygon",))]
        message = f"{count} numbers, where a row has {' or '.join(map(str, lengths))}"
        is_prediction = count - 1 in of_set.lengths or (polygons != "no" and count > 6)
        remedy = "remove the confidence of a prediction at its end" if is_prediction else "see `task`"
        if count == 9 and polygons == "no" and of_set.keypoints is None:
            remedy = (
                "a rotated box (YOLO-OBB) is read with task='segment', as its polygon and the box around it"
            )
        raise AnnotationError(f"{message}; {remedy}")
    x, y, width, height = values[1:5]
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if of_set.keypoints is None:
        return {"class_name": class_name, "box": box}
    points = np.array(values[5:]).reshape(len(of_set.keypoints.names), -1)
    seen = points[:, 2] if points.shape[1] == 3 else np.where((points < 0).any(axis=1), 0, 2)
    if not np.isin(seen, (0, 1, 2)).all():
        raise AnnotationError(f"visibility {shorten(str(seen.tolist()))} must be 0, 1 or 2")
    return {"class_name": class_name, "box": box, "points": points[:, :2], "visibility": seen}


def _read_schema(entries: Mapping[str, Any], schema: KeypointSchema | None) -> tuple[KeypointSchema, int]:
    """Return the points that a data file describes, or those given, and how many numbers each has.

    Raises:
        ValueError: If what it says is contradictory; or a TypeError.
    """
    count, size = (int(number) for number in entries["kpt_shape"])
    given = entries.get("kpt_names", [])
    lists = list(given.values()) if isinstance(given, dict) else [given] if given else []
    names: Any = lists[0] if lists else range(count) if schema is None else schema.names
    if not 0 < count <= MAX_POINTS or size not in (2, 3) or len(names) != count:
        raise ValueError(f"kpt_shape={[count, size]} with {len(names)} names; [points, 2 or 3] expected")
    if schema is not None:
        return schema, size
    if any(other != names for other in lists):
        raise ValueError("classes have points of other names; pass `schema`")
    flips = [int(place) for place in entries.get("flip_idx", range(count))]
    if len(flips) != count or [flips[i] for i in flips if 0 <= i < count] != list(range(count)):
        raise ValueError(f"flip_idx={flips} does not exchange pairs of {count} points")
    scale: Any = entries.get("normalization_pair")
    return KeypointSchema(
        names=names if lists else keypoint_schema(count).names,
        flip_pairs=tuple((i, j) for i, j in enumerate(flips) if i < j),
        normalization_pair=None if scale is None else tuple(map(int, scale)),  # type: ignore[arg-type] # checked there
    ), size
