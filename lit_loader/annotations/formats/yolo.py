"""YOLO (darknet, ultralytics): one text file per image, one line per object, in fractions of the image.

NOTE [Where the files of a set are]
    The data file is in the root or in a folder under it. It names folders or lists of images. Its paths and those in
    lists are looked up relative to the file that contains them, then relative to the root, then in both without their
    first folder: darknet's files include the name of their own folder (``data/train.txt``). A leading ``../`` in the
    data file is removed if the remaining path exists, as ultralytics does for Roboflow's sets. The key ``path``
    describes the machine on which the set was made, so only its last part counts, if the root has such a folder.

    The label file of ``a/images/b/c.jpg`` is ``a/labels/b/c.txt``: the last ``images`` in the path is replaced. In a
    path without ``images`` the label file is next to the image.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from lit_loader.annotations.formats.declared import skeleton_edges
from lit_loader.annotations.formats.folder import Folder, is_image_name, join_path
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import MAX_NAME_CHARS, MAX_POINTS, Rows, as_array
from lit_loader.annotations.formats.text_file import numbers, read_bytes, read_lines
from lit_loader.annotations.formats.writer import Writer, corner_losses, in_chunks, lost, write_file
from lit_loader.annotations.keypoints import KeypointSchema, keypoint_schema, known_by_names
from lit_loader.annotations.paths import check_relative
from lit_loader.annotations.problems import shorten
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError

__all__ = ["Task", "YoloReader", "YoloWriter"]

Task = Literal["detect", "segment", "pose", "obb"]
_NUM_OBB: Final = 9  # numbers in a row of YOLO-OBB: the class and four corners
_Floats = npt.NDArray[np.float64]

_MAX_DATA_BYTES: Final = 2**20
_POINT_KEYS: Final = ("kpt_shape", "flip_idx", "kpt_names", "normalization_pair", "sigmas", "skeleton")
_READ_KEYS: Final = ("names", "nc", "classes", *_POINT_KEYS)
_DATA_FILES: Final = ("data.yaml", "data.yml", "dataset.yaml", "obj.data")
_CLASS_FILES: Final = ("classes.txt", "obj.names", "_darknet.labels")
_SPLITS: Final = {"train": "train", "val": "valid", "valid": "val", "test": "test"}
_MAX_DEPTH: Final = 8

# The base loader keeps text as text: others read the class `no` as False and 007 as 7. The C version is ten times
# as fast.
_YAML_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


_FOUR_POINTS: Final = (
    "all rows of the set are a class and 8 numbers, which are polygons of 4 points or oriented boxes (YOLO-OBB); they "
    "are read as polygons: pass task=obb for oriented boxes, or task=segment to confirm polygons"
)


@dataclass(frozen=True)
class _RowFormat:
    """Properties that all rows of a set share.

    Attributes:
        file: File that lists the class names, or "".
        class_names: Class names in the order of their ids; may be empty.
        keypoints: Points of an object, or None.
        lengths: Possible counts of numbers in a row with a box.
        polygons: Whether rows may be polygons; "maybe" if such a row could also hold points.
        task: Task that the caller chose, or None.
    """

    file: str
    class_names: tuple[str, ...]
    keypoints: KeypointSchema | None
    lengths: tuple[int, ...]
    polygons: Literal["yes", "no", "maybe"]
    task: Task | None


class _Unit(NamedTuple):
    """An image, or a file or key that is only reported.

    Attributes:
        row_format: Format of its rows.
        path: Path of the image.
        label: Label file, or "" without one.
        source: List or folder that contains the image.
        line: Line in the list, or None.
        problem: Kind and description of a problem, or two empty texts.
    """

    row_format: _RowFormat
    path: str
    label: str
    source: str
    line: int | None = None
    problem: tuple[str, str] = ("", "")


@dataclass(frozen=True, kw_only=True)
class YoloReader(Reader):
    """Reads a YOLO data set: detection, segmentation, pose and oriented boxes.

    NAME is a split of the data file; or the first that exists of the folders ``images/NAME``, ``NAME/images`` and NAME
    and the lists ``NAME.txt`` and NAME. "." means the folder ``images``, or the root without one. The set consists of
    the images in the list or folder. An image without a label file is a ``missing_annotation`` (``"empty"`` makes it
    an image without objects, as ultralytics does); one with an empty label file has no objects. A label file whose
    image is not in the folder is reported.

    A row is ``class cx cy w h``; or the class and a polygon, ``x1 y1 x2 y2 x3 y3 ...``, whose tight box is the
    object's; or a box and points, each ``x y`` or ``x y visibility`` (0 absent, 1 hidden, 2 visible). As in
    ultralytics, a point of two numbers is absent if one is negative and visible otherwise, also at 0 0.

    With ``task="obb"`` a row is the class and the four corners of an oriented box, ``x1 y1 x2 y2 x3 y3 x4 y4``
    (YOLO-OBB). A polygon of four points is the same row, and no file tells the two apart: without ``task`` such rows
    are read as polygons, and a set of nothing else is reported as ``four_points``.

    A row of points can have as many numbers as a polygon, so the data set must declare its kind: by ``kpt_shape`` in
    its data file, or by ``task`` or ``schema``. A data.yaml without ``kpt_shape`` declares no points.

    Args:
        data_file: YAML file or darknet's ``.data``, relative to the root. None takes data.yaml, data.yml, dataset.yaml
            or obj.data in the root, if there is one.
        class_file: File with one class name per line. None takes the data file's names, or else classes.txt, obj.names
            or _darknet.labels in the root or next to the labels. Without any of these, pass ``class_names``.
        task: Content of the rows: ``"detect"`` boxes, ``"segment"`` polygons and boxes, ``"pose"`` boxes with points,
            ``"obb"`` oriented boxes, or None to follow the data file.
        schema: Keypoint schema, as `keypoint_schema` takes it, or None for the points of the data file.
        image_dir: Folder name in an image's path that ``label_dir`` replaces.
        label_dir: Folder name in the label file's path.

    Source:
        https://docs.ultralytics.com/datasets and https://github.com/AlexeyAB/darknet.
    """

    format: ClassVar[str] = "yolo"
    description: ClassVar[str] = (
        "YOLO txt and data.yaml, task=obb for YOLO-OBB; NAME: a split, a folder of images, or a list"
    )
    version: ClassVar[int] = 2

    data_file: str | None = None
    class_file: str | None = None
    task: Task | None = None
    schema: str | KeypointSchema | Mapping[str, Any] | int | None = None
    image_dir: str = "images"
    label_dir: str = "labels"

    def __post_init__(self) -> None:
        if self.schema is not None and self.task in ("detect", "segment", "obb"):
            raise ValueError(f"schema={self.schema!r} names points, task={self.task!r} has none; drop one")
        super().__post_init__()

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the label files of a split's images.

        Raises:
            AnnotationError: If the split does not exist or has no image, or the data file contradicts itself.
            UnsafePathError: If a path in a file leads out of the root.
        """
        file = self.data_file or next(filter(folder.is_file, _DATA_FILES), "")
        data = _DataFile(folder, file, _read_data_file(folder, file) if file else {})
        sources, split = self._sources(data, name)
        find_labels = partial(_label_paths, image_dir=self.image_dir, label_dir=self.label_dir)
        # Names of classes may be next to the labels.
        label_folders = [posixpath.dirname(find_labels(f"{source}/x")[0]) for source in sources]
        row_format = self._row_format(data, [".", *label_folders])
        units: list[_Unit] = []
        if self.schema is None and row_format.keypoints is not None:
            try:
                row_format = replace(row_format, keypoints=_with_skeleton(row_format.keypoints, data.entries))
            except (TypeError, ValueError) as error:
                # Only drawings need it, so the points are read all the same.
                problem = "bad_skeleton", f"the points are read without their skeleton: {error}"
                units.append(_Unit(row_format, "", "", file, problem=problem))
        # A dict keeps the order of the list, and finds duplicates.
        images: dict[str, None] = {}
        for source in sources:
            for line, path in data.images(source):
                candidates = find_labels(path)
                label = next(filter(folder.is_file, candidates), "")
                problem = ("", "")
                if path in images:
                    problem = "duplicate_id", f"image {shorten(repr(path))} is listed more than once"
                elif not label and folder.is_file(path):
                    label_name = shorten(repr(candidates[0]))
                    problem = "missing_annotation", f"image {shorten(repr(path))} has no label file {label_name}"
                units.append(_Unit(row_format, path, label, source, line, problem))
                images[path] = None
        labels = dict.fromkeys(unit.label for unit in units)
        folders = dict.fromkeys(path for path in (*sources, *label_folders) if folder.is_folder(path))
        if not units and folders:
            raise AnnotationError(f"found no image in {', '.join(folders)}", path=folder.root)
        # Everything that the set uses; other files in its folders are reported, because they may be misplaced.
        files_read = {*images, *labels, *sources, file, row_format.file}
        for path in dict.fromkeys(path for top in folders for path in folder.below(top)):
            if path in files_read:
                continue
            base, ending = posixpath.splitext(posixpath.basename(path))
            # ultralytics writes its label cache into the set.
            if ending != ".cache" and base + ending not in _CLASS_FILES:
                problem = f"files *{shorten(ending)}", "belongs to no image"
                units.append(_Unit(row_format, "", "", path, problem=problem))
        for key in sorted(data.entries.keys() - {*_READ_KEYS, *_SPLITS, name}):
            problem = f"{shorten(key)} of the data file", f"key {shorten(repr(key))} is not read"
            units.append(_Unit(row_format, "", "", file, problem=problem))
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
        kind, message = unit.problem
        if kind:
            # Other kinds outside the policy are only counted.
            action = "ignore" if kind == "bad_skeleton" else getattr(rows.policy, kind, "not read")
            rows.problem(kind, action, message, line=unit.line)
            if action != "empty":
                return
        # A label file that cannot be read drops its image, so it is read before the image is added.
        rows.file = unit.label or unit.source
        lines = list(read_lines(rows.root, unit.label)) if unit.label else []
        rows.file = unit.source
        image = rows.image(unit.path, line=unit.line)
        rows.file = unit.label or unit.source
        names = row_format.class_names or tuple(rows.given_classes or ())
        for line, text in lines:
            try:
                if fields := text.split():
                    rows.object(image, line=line, **_object_arguments(numbers(fields), row_format, names))
            except AnnotationError as error:
                if error is rows.raised:
                    raise
                rows.malformed(error.message, line=line)

    def finish(self, rows: Rows) -> None:
        """Report a set whose rows are either all polygons of four points or all oriented boxes."""
        lengths = as_array(rows.objects.polygon_lengths)
        # One row with a box or another number of points proves that the others are polygons.
        if self.task is None and 0 < len(lengths) == len(rows.objects) and (lengths == _NUM_OBB - 1).all():
            first = rows.objects.rows()[0]
            rows.file = list(rows.files)[first["file"]]
            rows.problem("four_points", "polygon", _FOUR_POINTS, line=int(first["line"]))

    def _sources(self, data: _DataFile, name: str) -> tuple[list[str], str | None]:
        """Return the folders and lists of images that a name means, and the split."""
        # Roboflow names the folder valid and the key val.
        for key in (name, _SPLITS.get(name, "")):
            if key not in _READ_KEYS and (entry := data.entries.get(key)):
                paths = entry if isinstance(entry, list) else [entry]
                return [data.find(path, key) for path in paths], name
        name = posixpath.normpath(check_relative(name))
        top = self.image_dir
        candidates = [top, "."] if name == "." else [f"{top}/{name}", f"{name}/{top}", name, f"{name}.txt"]
        for path in map(posixpath.normpath, candidates):
            if data.exists(path):
                return [path], None if name in (".", path) else name
        listed = ", ".join(key for key in _SPLITS if key in data.entries) or "none"
        file = f"the data file has the splits {listed}" if data.file else "data_file names no file"
        raise data.error(f"found no split {name!r}: none of {candidates} exists, and {file}")

    def _row_format(self, data: _DataFile, label_folders: Sequence[str]) -> _RowFormat:
        """Return the format of all rows.

        Raises:
            AnnotationError: If the data file contradicts itself.
        """
        class_file, names = self._class_names(data, label_folders)
        schema = self.given_keypoints()
        point_size = 0  # unknown
        if self.task in (None, "pose") and "kpt_shape" in data.entries:
            try:
                # Points of the data file count only if the rows may have points.
                schema, point_size = _read_schema(data.entries, schema)
            except (TypeError, ValueError) as error:
                raise data.error(f"its points contradict each other: {shorten(str(error))}") from None
        if self.task == "pose" and schema is None:
            raise data.error("task='pose' needs kpt_shape in the data file, or `schema`")
        polygons: Literal["yes", "no", "maybe"] = "maybe"
        if self.task in ("detect", "obb") or schema is not None:
            polygons = "no"
        elif self.task == "segment" or (data.file and not data.file.endswith(".data")):
            polygons = "yes"  # a YAML file without kpt_shape declares no points; darknet's file has no such key
        num_points = 0 if schema is None else len(schema.names)
        point_sizes = (point_size,) if point_size else (2, 3)
        lengths = tuple(5 + num_points * size for size in point_sizes) if num_points else (5,)
        if self.task == "obb":
            lengths = (_NUM_OBB,)
        return _RowFormat(class_file or data.file, names, schema, lengths, polygons, self.task)

    def _class_names(self, data: _DataFile, folders: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Return the file that lists the class names, or "", and the names."""
        entry = data.entries.get("names")
        class_file = self.class_file or (data.find(entry, "names") if isinstance(entry, str) else "")
        if not class_file and not entry:
            candidates = (posixpath.normpath(f"{top}/{file}") for top in folders for file in _CLASS_FILES)
            class_file = next(filter(data.exists, candidates), "")
        if class_file:
            # Empty lines at the end are skipped; within the list they are refused below.
            entry = "\n".join(text.strip() for _, text in read_lines(data.folder.root, class_file)).rstrip().split("\n")
        elif isinstance(entry, dict):
            # ultralytics writes ids with names. A missing id gives an empty name, which is refused below.
            entry = [entry.get(str(number), "") for number in range(len(entry))]
        names = tuple(entry or ())
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise data.error("names of classes must be different, none empty, with ids from 0 on", class_file)
        num_classes = data.entries.get("nc", data.entries.get("classes", str(len(names))))
        if names and num_classes != str(len(names)):
            raise data.error(
                f"it has {len(names)} names of classes, but their number as {shorten(repr(num_classes))}; correct one"
            )
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
            paths = self.candidates(self.file, text.removeprefix("../"))
            # The data file may be next to the folder that `path` names, on whatever machine.
            top = posixpath.basename(str(self.entries.get("path", "")).replace("\\", "/").rstrip("/"))
            if top and self.folder.is_folder(top):
                paths.append(join_path(top, paths[0]))
            path = next(filter(self.exists, paths), "")
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


def _label_paths(image: str, image_dir: str = "images", label_dir: str = "labels") -> list[str]:
    """Return the possible label files of an image; see NOTE [Where the files of a set are]."""
    stem = posixpath.splitext(image)[0]
    # The leading slash lets a folder match that is the first of the path.
    parent, separator, name = f"/{stem}".rpartition(f"/{image_dir}/")
    return [f"{parent}/{label_dir}/{name}.txt"[1:], f"{stem}.txt"] if separator else [f"{stem}.txt"]


def _read_data_file(folder: Folder, file: str) -> dict[str, Any]:
    """Read a data file: texts, and lists and mappings of texts.

    Raises:
        AnnotationError: If it is neither YAML nor, with the ending ``.data``, lines ``key = value``; or it has aliases
            or a repeated key, or is larger or nested deeper than any data file.
    """
    if file.endswith(".data"):
        lines = read_lines(folder.root, file)
        # darknet knows neither quotes nor lists.
        pairs = (text.partition("#")[0].partition("=") for _, text in lines)
        return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
    try:
        text = read_bytes(folder.root, file, max_bytes=_MAX_DATA_BYTES).decode()
        depth = nodes = 0
        for event in yaml.parse(text, Loader=_YAML_LOADER):
            nodes += isinstance(event, yaml.NodeEvent)
            is_end = isinstance(event, yaml.CollectionEndEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - is_end
            # With aliases, a small file can expand to a huge value.
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                rule = f"holds an alias (*), or more than {_MAX_DEPTH} nested lists; write it out"
                raise AnnotationError(rule, path=folder.root / file, line=event.start_mark.line + 1)
        entries = yaml.load(text, Loader=_YAML_LOADER)
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
    class_id, *numbers_of_object = values
    count = len(values)
    has_polygons = row_format.polygons != "no"
    if not (class_id.is_integer() and 0 <= class_id < len(names)):
        source = row_format.file or "class_names"
        rule = f"class {class_id:g} has no name: {source} has {len(names)}, from 0 on"
        raise AnnotationError(f"{rule}; name it there, or pass class_names")
    class_name = names[int(class_id)]
    if has_polygons and count > 6 and count % 2:
        if row_format.polygons == "yes":
            return {"class_name": class_name, "box": None, "polygons": [numbers_of_object]}
        tasks = "'segment', 'obb' or 'pose'" if count == _NUM_OBB else "'segment' or 'pose'"
        kinds = "a polygon, an oriented box (YOLO-OBB) or points" if count == _NUM_OBB else "a polygon or points"
        raise AnnotationError(f"{count} numbers are {kinds}: choose the task {tasks}")
    if count not in row_format.lengths:
        lengths = [*row_format.lengths, *(["7, 9, 11, ... for a polygon"] if has_polygons else [])]
        remedy = "see `task`"
        if row_format.task == "obb":
            remedy = "a row of task='obb' is the class and the x and y of four corners"
        elif count == _NUM_OBB and not has_polygons and row_format.keypoints is None:
            remedy = "an oriented box (YOLO-OBB) is read with task='obb', a polygon of 4 points with task='segment'"
        # Rows that ultralytics predicts end with a confidence.
        elif count - 1 in row_format.lengths or (has_polygons and count > 6):
            remedy = "remove the confidence of a prediction at its end"
        raise AnnotationError(f"{count} numbers, where a row has {' or '.join(map(str, lengths))}; {remedy}")
    if row_format.task == "obb":
        return {"class_name": class_name, "box": None, "oriented": numbers_of_object}
    x, y, width, height = numbers_of_object[:4]
    box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    if row_format.keypoints is None:
        return {"class_name": class_name, "box": box}
    points = np.array(numbers_of_object[4:]).reshape(len(row_format.keypoints.names), -1)
    # Without flags ultralytics takes a negative coordinate for an absent point.
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
    # Without kpt_names any number of points is right.
    names: Any = name_lists[0] if name_lists else range(num_points) if schema is None else schema.names
    if not 0 < num_points <= MAX_POINTS or point_size not in (2, 3) or len(names) != num_points:
        raise ValueError(f"kpt_shape=[{num_points}, {point_size}] with {len(names)} names; [points, 2 or 3] expected")
    if schema is not None:
        return schema, point_size
    if any(class_names != names for class_names in name_lists):
        raise ValueError("classes have points of other names; pass `schema`")
    flips = [int(index) for index in entries.get("flip_idx", range(num_points))]
    # Mirroring twice must give each point its own position again.
    if len(flips) != num_points or [flips[i] for i in flips if 0 <= i < num_points] != list(range(num_points)):
        raise ValueError(f"flip_idx={flips} does not exchange pairs of {num_points} points")
    pair: Any = entries.get("normalization_pair")
    standard = known_by_names(tuple(names)) if name_lists else None
    return KeypointSchema(
        names=names if name_lists else keypoint_schema(num_points).names,
        flip_pairs=tuple((i, j) for i, j in enumerate(flips) if i < j),
        normalization_pair=None if pair is None else tuple(map(int, pair)),  # type: ignore[arg-type] # checked there
        sigmas=tuple(map(float, entries.get("sigmas") or (standard.sigmas if standard else ()))),
        skeleton=() if standard is None else standard.skeleton,
    ), point_size


def _with_skeleton(schema: KeypointSchema, entries: Mapping[str, Any]) -> KeypointSchema:
    """Return the schema with the skeleton of a data file, if it has one.

    Raises:
        ValueError: If the skeleton is not pairs of the points' positions.
    """
    edges = skeleton_edges(_with_numbers(entries.get("skeleton")), first=0)
    return replace(schema, skeleton=edges) if edges else schema


def _with_numbers(value: Any) -> Any:
    """Convert the texts of whole numbers in nested lists to ints."""
    if isinstance(value, list):
        return [_with_numbers(part) for part in value]
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) else value


# -- writer ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class YoloWriter(Writer):
    """Writes a table as YOLO: ``NAME.txt`` lists the images, ``data.yaml`` names lists, classes and points.

    The label file of ``images/a.jpg`` is ``labels/a.txt``; without a folder ``images`` it is next to the image. Each
    split is added to the same data.yaml. Images are not copied. Numbers have 6 decimals if these restore the pixel in
    float32, and more otherwise; points and polygons are always restored exactly, and boxes whose centre and size do not
    restore their corners are counted as losses.

    For ``task="segment"``, several polygons of an object become one, joined by lines that enclose no area, and an
    object without a polygon gets the corners of its box, since ultralytics would read a box there as two points.
    ``task="obb"`` writes corners exactly as annotated, and the corners of all other boxes.
    data.yaml also has ``normalization_pair``, ``sigmas`` and ``skeleton`` (positions from 0), which are not keys of
    ultralytics. An image's id is its path; sizes are
    read from the images.

    Args:
        task: Rows to write, or None for ``"pose"`` if the table has points, ``"segment"`` if it has masks, ``"obb"``
            if it has oriented boxes, else ``"detect"``.
    """

    format: ClassVar[str] = "yolo"
    description: ClassVar[str] = "YOLO txt with data.yaml: boxes, polygons, points or corners; NAME: the split"
    name_of_split: ClassVar[str] = "{}"

    task: Task | None = None

    def losses(self, table: AnnotationTable) -> list[str]:
        """Return the parts of a table that YOLO cannot hold.

        Raises:
            ValueError: If the table has no points for ``task="pose"``, or objects in an image of unknown size.
        """
        task = self.task_of(table)
        _, counts = _encode(table, task)
        if task != "pose":
            counts["points of each object"] = len(table.keypoint_names)
        elif not table.class_names:
            counts["names of points, without a class"] = len(table.keypoint_names)
        for name, attribute in table.attributes.items():
            counts[f"values of attribute {name!r}"] = int((attribute.ids >= 0).sum())
        kinds_by_task = {
            "detect": ["masks", "oriented"],
            "segment": ["oriented"],
            "pose": ["masks", "oriented", "places"],
            "obb": ["masks"],
        }
        losses = lost(table, *kinds_by_task[task], "numbers", "files", "flags")
        return losses + [f"{count} {kind}" for kind, count in counts.items() if count]

    def write(self, table: AnnotationTable, root: Path, name: str, *, progress: bool) -> None:
        """Write a split, and add it to data.yaml.

        Raises:
            ValueError: As `losses`; or if ``name`` is not the table's split or not a valid key, an image cannot be
                listed or would share its label file, or data.yaml is not from this writer or lists other names.
        """
        is_key = re.fullmatch(r"\w[\w-]*", name) and name not in (*_READ_KEYS, "path")
        if not is_key or table.split not in (None, name):
            raise ValueError(f"name={name!r} must be a word such as 'train', and the table's split, {table.split!r}")
        task = self.task_of(table)
        data = _data_file(table, root, name, has_points=task == "pose")
        values, _ = _encode(table, task)
        images_by_label: dict[str, list[int]] = {}
        # A label file must not overwrite the list or an image either.
        owners = dict.fromkeys((f"{name}.txt", *table.image_paths), "")
        for i, path in enumerate(table.image_paths):
            label = _label_paths(path)[0]
            if owners.setdefault(label, path) != path or path != path.strip() or len(path.splitlines()) != 1:
                reason = f"cannot be in a list, or shares its label file {label!r} with {owners[label]!r}"
                raise ValueError(f"image {path!r} {reason}; rename the image")
            images_by_label.setdefault(label, []).append(i)
        write = partial(_write_labels, table=table, values=values, root=root)
        list(in_chunks(write, list(images_by_label.items()), progress=progress))
        lines = "".join(f"./{path}\n" for path in dict.fromkeys(table.image_paths))
        write_file(root / f"{name}.txt", [lines.encode("utf-8", "surrogateescape")])
        write_file(root / "data.yaml", [data])

    def task_of(self, table: AnnotationTable) -> Task:
        """Return the task whose rows are written.

        Raises:
            ValueError: If the table has no points for ``task="pose"``.
        """
        if self.task == "pose" and table.keypoints is None:
            raise ValueError("task='pose' writes points, and the table has none")
        default: Task = "obb" if table.has_orientation().any() else "detect"
        default = default if table.masks is None else "segment"
        return self.task or (default if table.keypoints is None else "pose")


def _encode(table: AnnotationTable, task: Task) -> tuple[Sequence[_Floats], dict[str, int]]:
    """Return the numbers after the class in each object's row, and counts of the losses."""
    image = table.image_of_object()
    sizes = np.stack([table.widths, table.heights], axis=1)[image].astype(np.float64)
    if not sizes.all():
        # Not a loss: without a size no number can be written.
        path = table.image_paths[int(image[(sizes == 0).any(axis=1)][0])]
        raise ValueError(f"the size of image {path!r} is unknown, and coordinates are fractions of it")
    if task == "segment":
        return _encode_polygons(table, sizes)
    if task == "obb":
        corners = table.oriented_corners()
        encoded = _encode_points(corners.reshape(-1, 2), np.repeat(sizes, 4, axis=0))
        return list(encoded.reshape(-1, 8)), corner_losses(table)
    low, high = np.split(table.boxes.astype(np.float64), 2, axis=1)
    boxes = np.hstack([(low + high) / 2 / sizes, (high - low) / sizes])
    boxes = _round_exactly(boxes, partial(_decode_boxes, sizes=sizes), table.boxes)
    losses = {"boxes exactly": int((_decode_boxes(boxes, sizes) != table.boxes).any(axis=1).sum())}
    if task == "detect" or table.keypoints is None or table.visibility is None:
        return list(boxes), losses
    # The format has no place for absent points; places that they have are counted as lost.
    points = np.where(table.visibility[..., None] > 0, table.keypoints, np.float32(0))
    encoded = _encode_points(points.reshape(-1, 2), np.repeat(sizes, points.shape[1], axis=0))
    points = np.dstack([encoded.reshape(points.shape), table.visibility])
    return list(np.hstack([boxes, points.reshape(len(boxes), 3 * points.shape[1])])), losses


def _encode_polygons(table: AnnotationTable, sizes: _Floats) -> tuple[Sequence[_Floats], dict[str, int]]:
    polygons: list[npt.NDArray[np.float32]] = []
    num_without = 0
    num_joined = 0
    is_oriented = table.has_orientation()
    outlines = table.oriented_corners()
    for row in range(table.num_objects):
        parts = [] if table.masks is None else table.masks.polygons(row)
        if not parts or min(map(len, parts)) < 3:
            num_without += not is_oriented[row]
            # An oriented box is its own polygon, which a reader cannot tell from other polygons.
            parts = [outlines[row]]
        if len(parts) > 1:
            num_joined += 1
            # The outline runs from part to part and returns the same way, so that the lines between the parts are
            # crossed twice and enclose no area.
            closed = [np.concatenate([part, part[:1]]) for part in parts]
            parts = [np.concatenate([*closed, *(part[:1] for part in parts[-2:0:-1])])]
        polygons += parts
    losses = {"objects without a polygon, which get their box": num_without, "masks of several polygons": num_joined}
    if not polygons:
        return [], losses
    lengths = [len(polygon) for polygon in polygons]
    points = np.concatenate(polygons)
    starts = np.cumsum([0, *lengths[:-1]])
    tight_boxes = np.hstack([np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)])
    num_loose = int((tight_boxes != table.boxes).any(axis=1).sum())
    losses["boxes that are not around their polygons"] = num_loose
    if table.masks is not None:
        losses["masks of run lengths"] = int((np.diff(table.masks.run_offsets) > 0).sum())
    return np.split(_encode_points(points, np.repeat(sizes, lengths, axis=0)), starts[1:]), losses


def _encode_points(points: npt.NDArray[np.float32], sizes: _Floats) -> _Floats:
    return _round_exactly(points / sizes, lambda values: (values * sizes).astype(np.float32), points)


def _decode_boxes(values: _Floats, sizes: _Floats) -> npt.NDArray[np.float32]:
    """Return the corners that the reader computes from centre and size."""
    centre = values[:, :2]
    half = values[:, 2:] / 2
    return (np.hstack([centre - half, centre + half]) * np.tile(sizes, 2)).astype(np.float32)


def _round_exactly(
    values: _Floats, decode: Callable[[_Floats], npt.NDArray[np.float32]], pixels: npt.NDArray[np.float32]
) -> _Floats:
    """Round each row to the fewest decimals from which ``decode`` restores the pixels."""
    shortest = values + 0.0
    # From fine to coarse, so the shortest exact one remains.
    for decimals in (12, 9, 6):
        rounded = np.round(values, decimals) + 0.0  # turns -0.0 into 0.0
        is_exact = (decode(rounded) == pixels).all(axis=1)
        shortest[is_exact] = rounded[is_exact]
    return shortest


def _write_labels(
    chunk: Sequence[tuple[str, list[int]]], *, table: AnnotationTable, values: Sequence[_Floats], root: Path
) -> None:
    for label, images in chunk:
        rows = [row for i in images for row in range(int(table.offsets[i]), int(table.offsets[i + 1]))]
        number_rows = ([int(table.labels[row]), *values[row].reshape(-1).tolist()] for row in rows)
        lines = (" ".join(repr(number).removesuffix(".0") for number in numbers) for numbers in number_rows)
        # Not atomic, but lists and data.yaml are written last, so an interrupted set has no split.
        (root / label).parent.mkdir(parents=True, exist_ok=True)
        (root / label).write_text("".join(f"{line}\n" for line in lines))


def _data_file(table: AnnotationTable, root: Path, name: str, *, has_points: bool) -> bytes:
    """Return the content of data.yaml with this split and those that it already lists.

    Raises:
        ValueError: If the file is not from this writer, lists other classes or points, or could not be read back.
    """
    entries: dict[str, Any] = {"names": dict(enumerate(table.class_names))}
    if has_points:
        entries["kpt_shape"] = [len(table.keypoint_names), 3]
        # ultralytics expects the names for every class, although all classes share them here.
        entries["kpt_names"] = {i: list(table.keypoint_names) for i in range(table.num_classes)}
        if table.flip_pairs:  # without pairs, ultralytics does not mirror
            pairs = dict(table.flip_pairs) | {j: i for i, j in table.flip_pairs}
            entries["flip_idx"] = [pairs.get(i, i) for i in range(len(table.keypoint_names))]
        if table.normalization_pair is not None:
            entries["normalization_pair"] = list(table.normalization_pair)
        if table.keypoint_sigmas:
            entries["sigmas"] = list(table.keypoint_sigmas)
        if table.skeleton:
            entries["skeleton"] = [list(edge) for edge in table.skeleton]
    text = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
    names = (*table.class_names, *(table.keypoint_names if has_points else ()))
    # Some characters cannot be written in YAML, and others are read back as different ones.
    try:
        read_back = yaml.load(text, Loader=_YAML_LOADER)
    except (UnicodeEncodeError, yaml.YAMLError):
        read_back = {"names": {}}
    is_same = tuple(read_back["names"].values()) == table.class_names
    fits = len(table.keypoint_names) <= MAX_POINTS and len(text) <= _MAX_DATA_BYTES
    if not is_same or not fits or max(map(len, names), default=0) > MAX_NAME_CHARS:
        listed = shorten(str(names))
        raise ValueError(f"{len(names)} names, {listed}, cannot be in a data.yaml; use shorter, plainer or fewer ones")
    path = root / "data.yaml"
    existing = _read_data_file(Folder(root), "data.yaml") if path.exists() else {}
    splits = {key: f"{key}.txt" for key in (*existing, name) if key not in read_back}
    # A file with other keys is written by hand, and would lose them.
    if existing and existing | {name: splits[name]} != splits | read_back:
        problem = "was not written by lit_loader, or has other classes or points"
        raise ValueError(f"{path} {problem}; write into another folder")
    return f"# written by lit_loader\n{yaml.safe_dump(splits, sort_keys=False)}{text}".encode()
