"""Find the format and the layout of a data set from the names in its folder and the first bytes of a few files.

NOTE [Proposals]
    Each function in `_DETECTORS` proposes layouts of one format. It lists folders and reads the start of a few files,
    and opens no image. A proposal counts only if the reader of the format accepts it: `Reader.inputs` finds the files
    of every stage, but opens no label file. If a folder fits nothing, the folders up to two levels down are searched,
    because archives often contain a single folder with everything in it.

    Layouts are never ranked: if several fit, the user chooses. So a detector must not propose a layout that a person
    would not consider, such as the folders ``train`` and ``test`` as two classes.
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from lit_loader.annotations.formats import find_reader
from lit_loader.annotations.formats.folder import Folder, is_image_name, join_path
from lit_loader.annotations.formats.reader import other_format
from lit_loader.annotations.formats.registry import format_options, make_format
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError, UnsafePathError
from lit_loader.foundation.escaping import printable

__all__ = ["Layout", "STAGES", "choose_layout", "find_layouts"]

STAGES: Final[tuple[str, ...]] = ("train", "val", "test")
_HEAD_BYTES: Final = 1 << 16
_MAX_FOLDERS: Final = 64  # folders of one level that are looked into
_MAX_FILES: Final = 32  # files of one kind in a folder whose start is read
_STAGE_BY_WORD: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_VOC_LISTS: Final = "ImageSets/Main"
_MAX_CHOICES: Final = 8  # layouts of one format that differ in the folder of a stage
_NOT_LABELS: Final = ("classes.txt", "labels.txt", "obj.names")
_FACE_POINTS: Final = (5, 68, 98)  # numbers of points with a schema of that name
_CLASS_COLUMNS: Final = (
    "class",
    "label",
    "classname",
    "category",
    "categoryname",
    "labelname",
    "classid",
    "categoryid",
)
_BOX_COLUMNS: Final = ({"xmin", "ymin", "xmax", "ymax"}, {"x1", "y1", "x2", "y2"}, {"x", "y", "w", "h"})
_NO_CLASSES: Final = (
    *("images", "image", "imgs", "labels", "annotations", "jpegimages", "imagesets"),
    *("mask", "masks", "original", "ground_truth", "groundtruth", "gt"),
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to read a folder, as arguments of `lit_loader.datasets.FormatSource`.

    Attributes:
        name: Short name that tells this layout from the other layouts of the folder, such as ``"coco:instances"``.
        format: Name of the format.
        reason: The files and keys that fit, in plain text.
        root: Folder of the data set, relative to the one that was searched.
        stages: File, folder or split of each stage that exists.
        options: Options of the format.
        stage_options: Options of single stages.
        policy: How to handle problems in the annotations.
    """

    name: str
    format: str
    reason: str
    root: str = "."
    stages: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    stage_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy: Mapping[str, str] = field(default_factory=dict)


class _SearchedFolder(Folder):
    """A folder whose files are read once, and only their start."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self._heads: dict[str, bytes] = {}
        self._names_by_ending: dict[str, dict[str, list[str]]] = {}
        # Why a reader refused a layout, for the error if none is left.
        self.refusals: list[str] = []

    def files(self, folder: str) -> list[str]:
        """Return the sorted names of the files in a folder; none if the folder cannot be listed."""
        with suppress(AnnotationError):
            return super().files(folder)
        return []

    def files_ending(self, folder: str, *endings: str) -> list[str]:
        """Return the sorted names of the files in a folder that have one of these extensions."""
        names_by_ending = self._endings(folder)
        # A single extension, the usual case, needs no further pass.
        lists = [names_by_ending[ending] for ending in endings if ending in names_by_ending]
        return lists[0] if len(lists) == 1 else sorted(name for names in lists for name in names)

    def has_images(self, folder: str) -> bool:
        """Return True if a folder contains a file with the extension of an image."""
        return any(map(is_image_name, self._endings(folder)))

    def _endings(self, folder: str) -> Mapping[str, list[str]]:
        """Return the names of the files in a folder by their extensions; names of images are not sorted."""
        if folder not in self._names_by_ending:
            names_by_ending: dict[str, list[str]] = {}
            with suppress(AnnotationError):
                # One pass for all formats, because a folder may contain a million images.
                for name in self.visible_files(folder):
                    names_by_ending.setdefault(name[name.rfind(".") :], []).append(name)
            for ending, names in names_by_ending.items():
                if not is_image_name(ending):
                    names.sort()
            self._names_by_ending[folder] = names_by_ending
        return self._names_by_ending[folder]

    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders in a folder; none if the folder cannot be listed."""
        # A disk's ``lost+found`` must not end the search.
        with suppress(AnnotationError):
            return super().folders(folder)
        return []

    def head(self, path: str) -> bytes:
        """Return the first 64 KiB of a file; nothing if it cannot be read."""
        if path not in self._heads:
            self._heads[path] = b""
            # `is_file` is False for a named pipe, whose opening would wait.
            if self.is_file(path):
                with suppress(OSError), (self.root / path).open("rb") as file:
                    self._heads[path] = file.read(_HEAD_BYTES)
        return self._heads[path]


def choose_layout(root: Path | str, name: str | None = None) -> Layout:
    """Return the only layout that fits a folder, or the one of a name.

    Raises:
        AnnotationError: No layout fits, or several do and none has the name; lists them.
    """
    folder = _SearchedFolder(root)
    if not folder.root.is_dir():
        raise AnnotationError("is not a folder; give the folder of the data set", path=folder.root)
    layouts = _find_layouts(folder)
    chosen = [layout for layout in layouts if name in (None, layout.name)]
    if len(chosen) != 1:
        raise _layout_error(folder, layouts, name)
    return chosen[0]


def _layout_error(folder: _SearchedFolder, layouts: Sequence[Layout], name: str | None) -> AnnotationError:
    """Return the error for no layout, for several, or for a name that none has."""
    if not layouts:
        listed = _listed([*folder.folders("."), *folder.files(".")]) or "nothing"
        files = (path for path in islice(folder.below("."), 1000) if path.endswith((".json", ".xml", ".csv", ".txt")))
        hint = next(filter(None, (other_format(folder.head(path)) for path in islice(files, _MAX_FILES))), "")
        message = f"no layout of a known format fits; it contains {listed}" + (f"; this may be {hint}" if hint else "")
        message += "".join(f"; not {refusal}" for refusal in folder.refusals[:3])
        remedy = "name the format, as in dataset=files dataset.format=coco; `lit-loader index --help` lists all"
        # The hint has its own remedy: no format reads the file of another program.
        remedy = "" if hint else remedy
        return AnnotationError(message, path=folder.root, remedy=remedy)
    lines = [f"  {layout.name}: {layout.format}, {layout.reason}" for layout in layouts]
    problem = "several layouts fit" if name is None else f"layout={name!r} is none of those that fit"
    return AnnotationError("\n".join([f"{problem}:", *lines, "choose one"]), path=folder.root, settings={"layout": ...})


def find_layouts(root: Path | str) -> list[Layout]:
    """Return the layouts that fit a folder, in the order of their names.

    Raises:
        AnnotationError: If the folder cannot be listed.
    """
    return _find_layouts(_SearchedFolder(root))


def _find_layouts(folder: _SearchedFolder) -> list[Layout]:
    # VOC's folders are found next to other layouts: their parent often has lists and tables of the same images.
    layouts = [*_layouts_of(folder), *(layout for top in _voc_roots(folder) for layout in _layouts_below(folder, top))]
    tops = ["."]
    # Archives nest a data set in at most two folders.
    for _ in range(2):
        if layouts:
            break
        # The folders of a VOC set are parts of it, and not sets.
        tops = [top for top in tops if not folder.is_folder(_join(top, _VOC_LISTS))]
        tops = [_join(top, name) for top in tops for name in folder.folders(top)[:_MAX_FOLDERS]]
        layouts = [layout for top in tops for layout in _layouts_below(folder, top)]
        # Annotations that no format fits may be about these images.
        if _has_annotations(folder, "."):
            layouts = [layout for layout in layouts if layout.format != "image_folder"]
    return sorted(layouts, key=lambda layout: layout.name)


def _layouts_below(folder: _SearchedFolder, top: str) -> list[Layout]:
    """Return the layouts that fit a folder under the one that is searched."""
    layouts = _layouts_of(_SearchedFolder(folder.root / top))
    return [replace(layout, name=f"{top}/{layout.name}", root=top) for layout in layouts]


def _layouts_of(folder: _SearchedFolder) -> list[Layout]:
    proposals = (layout for detector in _DETECTORS for layout in detector(folder))
    layouts = [layout for layout in map(partial(_accepted, folder), proposals) if layout is not None]
    used = {name for layout in layouts for name in layout.stages.values()}
    unread = [name for name in _annotation_names(folder, ".") if name not in used]
    if unread and any(layout.format == "image_folder" for layout in layouts):
        layouts = [layout for layout in layouts if layout.format != "image_folder"]
        folder.refusals.append(
            f"image_folder: {_listed(unread)} may be annotations; choose dataset=image_folder if not"
        )
    counts = Counter(layout.format for layout in layouts)
    # The format alone is the shortest name, if it is unique.
    return [replace(layout, name=layout.format) if counts[layout.format] == 1 else layout for layout in layouts]


def _accepted(folder: _SearchedFolder, layout: Layout) -> Layout | None:
    """Return a layout with the stages whose files the reader finds, or None without any."""
    stages = {}
    for stage in sorted(layout.stages, key=STAGES.index):
        options = {**layout.options, **layout.stage_options.get(stage, {})}
        # A stage that does not exist, such as the test folder that a data.yaml names, leaves the other stages usable.
        try:
            inputs = make_format(find_reader(layout.format), options).inputs(folder, layout.stages[stage])
            # Reading stamps every file; for a proposal a few are enough, as there may be one for each image.
            for file in inputs.files[:_MAX_FILES]:
                folder.stamp(file)
            stages[stage] = layout.stages[stage]
        except AnnotationError as error:
            folder.refusals.append(f"{layout.format} ({layout.reason}): {shorten(error.problem)}")
    if not stages:
        return None
    defaults = {name: option.default for name, option in format_options(find_reader(layout.format)).items()}
    options = {name: value for name, value in layout.options.items() if value != defaults[name]}
    stage_options = {stage: values for stage, values in layout.stage_options.items() if stage in stages}
    return replace(layout, stages=stages, options=options, stage_options=stage_options)


# -- formats ------------------------------------------------------------------------------------------------------


def _coco(folder: _SearchedFolder) -> Iterator[Layout]:
    """JSON files with COCO's keys."""
    paths = [
        path
        for path in _paths(folder, ".json")
        if re.search(rb'"(images|annotations)"\s*:\s*\[', folder.head(path))
        # Label Studio's tasks are a list, and each of them has `annotations`.
        if folder.head(path).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        # Captions, panoptic segments and lists of test images have the same keys, and no boxes.
        if not posixpath.basename(path).startswith(("captions", "image_info", "panoptic"))
    ]
    for kind, path_by_stage in _groups(paths).items():
        yield _layout(
            name=f"coco:{kind}".rstrip(":"),
            format="coco",
            reason=f"the keys of COCO in {_listed(path_by_stage.values())}",
            stages=path_by_stage,
            options_by_stage={
                stage: {"image_dir": _coco_image_dir(folder, path)} for stage, path in path_by_stage.items()
            },
        )


def _coco_image_dir(folder: _SearchedFolder, path: str) -> str | None:
    """Return the folder that the first ``file_name`` of a COCO file whose image exists is relative to, or None."""
    matches = re.finditer(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")', folder.head(path))
    # Some images may be missing.
    for match in islice(matches, _MAX_FILES):
        with suppress(ValueError):  # a name that is cut off within an escape, or is not UTF-8
            image_dir = _image_dir(folder, json.loads(match[1]), path)
            if image_dir is not None:
                return image_dir
    return None


def _yolo(folder: _SearchedFolder) -> Iterator[Layout]:
    """A data file, or folders of images and labels."""
    return _with_tasks(folder, _yolo_layouts(folder))


def _yolo_layouts(folder: _SearchedFolder) -> Iterator[Layout]:
    policy = {"missing_annotation": "empty"}  # as for ultralytics, an image without a label file has no objects
    by_name = {stage: stage for stage in STAGES}
    files = [path for ending in (".yaml", ".yml", ".data") for path in _paths(folder, ending) if path.count("/") < 2]
    data_files = []
    for file in files:
        keys = re.findall(rb"(?m)^[ \t]*(train|val|valid|names)[ \t]*[:=]", folder.head(file))
        if b"names" in keys and len(set(keys)) > 1:
            data_files.append(file)
    for file in data_files:
        yield Layout(
            name=f"yolo:{file}",
            format="yolo",
            reason=f"{file} names the classes and the splits",
            stages=by_name,
            options={"data_file": file},
            policy=policy,
        )
    if data_files:
        return
    names = {name.lower(): name for name in folder.folders(".")}
    image_dir = names.get("images")
    for label_dir in filter(None, map(names.get, ("labels", "annotations"))):
        splits = folder.folders(label_dir)
        rows = _yolo_rows(folder, [label_dir, *(_join(label_dir, name) for name in splits)])
        if image_dir is not None and rows:
            for stages in _choices(splits) or [{"train": "."}]:
                yield Layout(
                    name=f"yolo:{_joined(stages)}",
                    format="yolo",
                    reason=f"the rows of YOLO in {rows}, images in {image_dir}{_unused(splits, stages)}",
                    stages=stages,
                    options={"image_dir": image_dir, "label_dir": label_dir},
                    policy=policy,
                )
    splits = [name for name in names.values() if {"images", "labels"} <= set(folder.folders(name))]
    for stages in _choices(splits):
        reason = f"images and labels in {_listed(stages.values())}{_unused(splits, stages)}"
        yield Layout(name=f"yolo:{_joined(stages)}", format="yolo", reason=reason, stages=stages, policy=policy)


def _yolo_rows(folder: _SearchedFolder, places: Iterable[str]) -> str | None:
    """Return the first label file that has rows of YOLO, or None."""
    for place in places:
        names = (name for name in folder.files_ending(place, ".txt") if name not in _NOT_LABELS)
        # Images without objects have empty label files.
        for path in islice((_join(place, name) for name in names), _MAX_FILES):
            if head := folder.head(path).strip():
                # To the end of the line, because a line of DOTA also begins with numbers.
                return path if re.match(rb"\d+([ \t]+-?[\d.]+([eE][-+]?\d+)?){4,}[ \t]*([\r\n]|$)", head) else None
    return None


def _with_tasks(folder: _SearchedFolder, layouts: Iterable[Layout]) -> Iterator[Layout]:
    """Yield YOLO's layouts, with a choice of ``task`` if all rows have four points."""
    has_four_points = _only_four_points(folder)
    for layout in layouts:
        if not has_four_points:
            yield layout
            continue
        for task, shape in (("obb", "oriented boxes (YOLO-OBB)"), ("segment", "polygons of 4 points")):
            reason = f"{layout.reason}; rows are {shape}"
            name = f"{layout.name}:{task}"
            yield replace(layout, name=name, reason=reason, options={**layout.options, "task": task})


def _only_four_points(folder: _SearchedFolder) -> bool:
    """Return True if all rows of the first label files have a class and eight numbers."""
    tops = [_join(place, name) for place in _places(folder) for name in folder.folders(place) if name == "labels"]
    places = [place for top in tops for place in (top, *(_join(top, name) for name in folder.folders(top)))]
    counts: set[int] = set()
    for place in places[:_MAX_FOLDERS]:
        for name in islice((n for n in folder.files_ending(place, ".txt") if n not in _NOT_LABELS), _MAX_FILES):
            rows = folder.head(_join(place, name)).split(b"\n")
            # The last row may be cut off.
            counts |= {len(row.split()) for row in rows[: max(1, len(rows) - 1)]}
    return counts - {0} == {9}


def _dota(folder: _SearchedFolder) -> Iterator[Layout]:
    """Folders of images and labelTxt, alone, with splits in them, or in a folder for each split."""
    label_dirs = [name for name in folder.folders(".") if _is_dota_dir(folder, ".", name)]
    for label_dir in label_dirs:
        splits = [name for name in folder.folders(label_dir) if folder.is_folder(f"images/{name}")]
        for stages in _choices(splits) or [{"train": "."}]:
            yield Layout(
                name=f"dota:{label_dir}:{_joined(stages)}",
                format="dota",
                reason=f"the rows of DOTA in {label_dir}{_unused(splits, stages)}",
                stages=stages,
                options={"label_dir": label_dir},
            )
    splits = [name for name in folder.folders(".")[:_MAX_FOLDERS] if folder.is_folder(f"{name}/images")]
    splits_by_dir: dict[str, list[str]] = {}
    for name in splits:
        for label_dir in folder.folders(name):
            if _is_dota_dir(folder, name, label_dir):
                splits_by_dir.setdefault(label_dir, []).append(name)
    for label_dir, names in splits_by_dir.items():
        for stages in _choices(names):
            yield Layout(
                name=f"dota:{label_dir}:{_joined(stages)}",
                format="dota",
                reason=f"images and {label_dir} in {_listed(stages.values())}{_unused(names, stages)}",
                stages=stages,
                options={"label_dir": label_dir},
            )


def _is_dota_dir(folder: _SearchedFolder, place: str, name: str) -> bool:
    """Return True if a folder, or the first folder in it, has label files of DOTA."""
    # Another program's folder of text files is not opened.
    if not name.startswith("label"):
        return False
    top = _join(place, name)
    paths = (
        _join(parent, file)
        for parent in (top, *(_join(top, child) for child in folder.folders(top)[:_MAX_FOLDERS]))
        for file in folder.files_ending(parent, ".txt")[:_MAX_FILES]
    )
    # Images without objects may have empty label files.
    head = next(filter(None, (folder.head(path).strip() for path in paths)), b"")
    return re.match(rb"(imagesource|gsd)\s*:|([-+\d.eE]+[ \t]+){8}[^\s\d.+-]", head) is not None


def _voc(folder: _SearchedFolder) -> Iterator[Layout]:
    """XML files with ``<annotation>``: VOC's folders, a folder for each stage, or one folder."""
    image_ids = {place: image_id for place in _places(folder) if (image_id := _voc_image_id(folder, place)) is not None}
    places = [
        place
        for place, image_id in image_ids.items()
        # The old LabelMe has the same root element.
        if re.search(rb"<annotation\b(?!.*<sourceAnnotation>)", folder.head(_join(place, f"{image_id}.xml")), re.DOTALL)
    ]
    image_dirs = {place: _voc_image_dir(folder, place, image_ids[place]) for place in places}
    lists = [name.removesuffix(".txt") for name in folder.files_ending(_VOC_LISTS, ".txt")]
    # The other lists of VOC are of single classes, such as cat_train.
    choices = _choices(name for name in lists if name.lower() in _STAGE_BY_WORD)
    if "trainval" in lists:
        choices = [stages if "train" in stages else {"train": "trainval", **stages} for stages in choices or [{}]]
    unstaged = [place for place in places if _stage_of(place) is None]
    for place in unstaged:
        for stages in choices or [{"train": "."}]:
            where = f", with the lists {_listed(stages.values())} of {_VOC_LISTS}" if choices else ""
            yield _layout(
                name=f"voc:{place}" + (f":{_joined(stages)}" if len(choices) > 1 else ""),
                format="voc",
                reason=f"VOC's XML files in {place}{where}",
                stages=stages,
                options_by_stage={"": {"annotation_dir": place, "image_dir": image_dirs[place]}},
            )
    for place_by_stage in _choices(places):
        yield _layout(
            name=f"voc:{_joined(place_by_stage)}",
            format="voc",
            reason=f"VOC's XML files in {_listed(place_by_stage.values())}{_unused(places, place_by_stage)}",
            stages=dict.fromkeys(place_by_stage, "."),
            options_by_stage={
                stage: {"annotation_dir": place, "image_dir": image_dirs[place] or place}
                for stage, place in place_by_stage.items()
            },
        )


def _voc_roots(folder: _SearchedFolder) -> list[str]:
    """Return the folders with VOC's lists that are one or two levels down, such as VOCdevkit/VOC2012."""
    tops = folder.folders(".")[:_MAX_FOLDERS]
    tops += [_join(top, name) for top in tops for name in folder.folders(top)[:_MAX_FOLDERS] if name.startswith("VOC")]
    return [top for top in tops if folder.is_folder(_join(top, _VOC_LISTS))]


def _voc_image_id(folder: _SearchedFolder, place: str) -> str | None:
    """Return the id of an image that has an XML file in a folder, or None: the first one, else one of VOC's lists."""
    for name in folder.files_ending(place, ".xml")[:1]:
        return name.removesuffix(".xml")
    # The ids of a set whose images are in several folders begin with the folder, such as ``training/a``, and so do its
    # XML files. Only the lists are looked at, because they spare a search through all folders.
    for name in folder.files_ending(_VOC_LISTS, ".txt")[:_MAX_FILES]:
        lines = folder.head(f"{_VOC_LISTS}/{name}").decode("utf-8", "surrogateescape").split("\n", 1)
        with suppress(UnsafePathError):
            image_id = join_path(".", lines[0].strip())
            if folder.is_file(_join(place, f"{image_id}.xml")):
                return image_id
    return None


def _voc_image_dir(folder: _SearchedFolder, place: str, image_id: str) -> str | None:
    """Return the folder of an image that has an XML file in ``place``, or None."""
    places = [place, *(other for other in _places(folder) if _stage_of(other) in (None, _stage_of(place)))]
    stems = [_join(other, image_id) for other in places]
    images = folder.find_images(stems, [True] * len(stems))
    return next((other for other, files in zip(places, images, strict=True) if files), None)


def _image_folder(folder: _SearchedFolder) -> Iterator[Layout]:
    """A folder of images for each class, in a folder for each stage or alone."""
    names = folder.folders(".")
    choices = _choices(name for name in names if folder.folders(name))
    # One stage decides: another one may lack most of the classes.
    choices = [stages for stages in choices if any(_has_classes(folder, name) for name in stages.values())]
    for stages in choices:
        reason = f"a folder of images for each class in {_listed(stages.values())}{_unused(names, stages)}"
        yield Layout(name=f"image_folder:{_joined(stages)}", format="image_folder", reason=reason, stages=stages)
    if not choices and _has_classes(folder, "."):
        reason = f"a folder of images for each class: {_listed(names)}"
        yield Layout(name="image_folder", format="image_folder", reason=reason, stages={"train": "."})


def _has_classes(folder: _SearchedFolder, top: str) -> bool:
    """Return True if a folder has two or more folders with images, without annotations, and named like classes."""
    names = folder.folders(top)
    if len(names) < 2 or any(name.lower() in _NO_CLASSES for name in names):
        return False
    # Classes are not named like stages (trainA, testB) or like parts of a collection (images_part_1).
    if (
        any(_stage_of(re.sub("([A-Z])", r" \1", name)) for name in names)
        or len({_part_of(name) for name in names}) == 1
    ):
        return False
    # An image outside of the folders has no class.
    if folder.has_images(top):
        return False
    # The first few decide, because a set may have thousands of classes; some folders may be empty.
    places = [_join(top, name) for name in names[:8]]
    if any(_has_annotations(folder, place) for place in places):
        return False
    return sum(map(folder.has_images, places)) >= 2


def _part_of(name: str) -> str:
    """Return a name without the number at its end; a name that is a number stays."""
    return re.sub(r"(?<=.)[_\W]*\d+$", "", name) if re.search("[A-Za-z]{2}", name) else name


def _annotation_names(folder: _SearchedFolder, place: str) -> list[str]:
    """Return the files in a folder that may be annotations; texts are often only descriptions."""
    return folder.files_ending(place, ".xml", ".json", ".csv")


def _has_annotations(folder: _SearchedFolder, place: str) -> bool:
    return bool(_annotation_names(folder, place))


def _tables(folder: _SearchedFolder) -> Iterator[Layout]:
    """CSV tables and txt lists whose first line names the columns, and lists of paths and classes."""
    # `_face_lists` proposes all lists of CelebA together.
    paths = [path for ending in (".csv", ".txt") for path in _paths(folder, ending) if not _is_celeba(path)]
    tables = {path: _table_options(folder, path) for path in paths}
    for kind, path_by_stage in _groups(path for path, table in tables.items() if table).items():
        formats, options = zip(*(tables[path] or ("", {}) for path in path_by_stage.values()), strict=True)
        # Files of one name and several formats, such as a list and a table, are two layouts.
        for format in dict.fromkeys(formats):
            stages = [stage for stage, other in zip(path_by_stage, formats, strict=True) if other == format]
            yield _layout(
                name=f"{format}:{kind}".rstrip(":"),
                format=format,
                reason=f"the columns of {_listed(path_by_stage[stage] for stage in stages)}",
                stages={stage: path_by_stage[stage] for stage in stages},
                options_by_stage={stage: options[list(path_by_stage).index(stage)] for stage in stages},
            )


def _table_options(folder: _SearchedFolder, path: str) -> tuple[str, dict[str, Any]] | None:
    """Return format and options of a table or list, or None if its first two lines do not explain its columns."""
    text = folder.head(path).decode("utf-8-sig", "replace")
    lines = [line for line in text.splitlines() if line.strip()][:2]
    separator = max(",;\t ", key=lambda character: lines[0].count(character) if lines else 0)
    try:
        header, row = csv.reader(lines, delimiter=separator, skipinitialspace=separator != " ")
    except (csv.Error, ValueError):  # fewer than two lines
        return None
    # The image must exist, because any text may look like a path.
    images = {i: image_dir for i, cell in enumerate(row) if (image_dir := _image_dir(folder, cell, path))}
    if len(images) != 1 or len(header) != len(row) or len(row) < 2:
        return None
    ((place, image_dir),) = images.items()
    value_columns = [i for i in range(len(header)) if i != place]
    words = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in header]
    class_list = {"image_dir": image_dir, **({} if separator == " " else {"separator": separator})}
    if _image_dir(folder, header[place], path):
        # Without a header only a path and its class explain themselves.
        if len(row) == 2 and place == 0 and (row[1].isdigit() or not _is_number(row[1])):
            return "class_list", {**class_list, **_numbered(folder, row[1], path)}
        return None
    # A number is a class only in a column that says so.
    is_class = len(row) == 2 and (words[1] in _CLASS_COLUMNS or not _is_number(row[1]))
    is_one_hot = len(row) > 2 and all(row[i] in ("0", "1") for i in value_columns)
    if place == 0 and (is_class or is_one_hot):
        numbers = _numbered(folder, row[1], path) if is_class else {}
        return "class_list", {**class_list, "header": True, **numbers}
    table = {"image_dir": image_dir, **({} if separator == "," else {"separator": separator})}
    if place:
        table["path_column"] = header[place]
    if any(names <= set(words) for names in _BOX_COLUMNS):
        class_column = next((header[words.index(word)] for word in _CLASS_COLUMNS if word in words), None)
        return "keypoints_csv", {**table, **({} if class_column is None else {"class_column": class_column})}
    is_point = re.compile(r"\d+|[xy].*|.*[xy]\d*").fullmatch
    has_points = all(_is_number(row[i]) and is_point(words[i]) for i in value_columns)
    if has_points and len(value_columns) >= 4 and len(value_columns) % 2 == 0:
        num_points = len(value_columns) // 2
        schema = f"face_{num_points}" if num_points in _FACE_POINTS else num_points
        return "keypoints_csv", {**table, "schema": schema}
    return None


def _numbered(folder: _SearchedFolder, label: str, path: str) -> dict[str, Any]:
    """Return the options of a list with this label; numbers are lines of a file with the names of the classes."""
    if not label.isdigit():
        return {}
    parent = posixpath.dirname(path) or "."
    files = (_join(place, name) for place in (parent, ".") for name in ("classes.txt", "labels.txt", "synsets.txt"))
    class_file = next((file for file in files if file != path and folder.is_file(file)), None)
    return {} if class_file is None else {"numbered": True, "class_file": class_file}


def _labelme(folder: _SearchedFolder) -> Iterator[Layout]:
    """Folders of LabelMe's JSON files."""
    places = _places(folder)
    places += [_join(place, name) for place in places[1:] for name in folder.folders(place)[:_MAX_FOLDERS]]
    places = [
        place
        for place in places
        for path in _first(folder, place, ".json")
        if re.search(rb'"(shapes|imageData)"\s*:', folder.head(path))
    ]
    choices: list[dict[str, str]] = _choices(places)
    if not choices and places:
        # Several folders without the name of a stage are parts of one set.
        choices = [{"train": places[0] if len(places) == 1 else "**/*.json"}]
    for stages in choices:
        unused = _unused(places, stages) if "**/*.json" not in stages.values() else ""
        reason = f"the keys of LabelMe in JSON files in {_listed(places)}{unused}"
        yield Layout(name=f"labelme:{_joined(stages)}", format="labelme", reason=reason, stages=stages)


def _face_lists(folder: _SearchedFolder) -> Iterator[Layout]:
    """Data sets of faces, by the names or the first line of their lists."""
    paths = _paths(folder, ".txt")
    for format, pattern, start in (
        ("widerface", r"wider_face_\w+_bbx_gt\.txt", b""),
        ("wflw", r"list_98pt_rect_attr(_\w+)?\.txt", b""),
        ("retinaface", r".*\.txt", rb"# \S+\.\w+\s+-?[\d.]+ "),
    ):
        lists = [path for path in paths if re.fullmatch(pattern, posixpath.basename(path))]
        lists = [path for path in lists if re.match(start, folder.head(path))]
        for kind, path_by_stage in _groups(lists).items():
            options = {}
            for stage, path in path_by_stage.items():
                words = folder.head(path).decode("utf-8", "replace").split()
                image_dir = _image_dir(folder, next(filter(is_image_name, words), ""), path)
                options[stage] = {"image_dir": image_dir}
            yield _layout(
                name=f"{format}:{kind}".rstrip(":"),
                format=format,
                reason=f"the names or lines of {_listed(path_by_stage.values())}",
                stages=path_by_stage,
                options_by_stage=options,
            )
    if any(map(_is_celeba, (*paths, *_paths(folder, ".csv")))):
        image_dir = next(filter(folder.is_folder, ("img_align_celeba", "img_celeba")), "img_align_celeba")
        yield Layout(
            name="celeba",
            format="celeba",
            reason="the lists of CelebA",
            stages={stage: stage for stage in STAGES},
            options={"image_dir": image_dir, "aligned": image_dir == "img_align_celeba"},
        )


def _is_celeba(path: str) -> bool:
    return posixpath.basename(path).startswith(
        ("identity_CelebA", "list_attr_", "list_bbox_", "list_eval_", "list_land")
    )


def _imglab(folder: _SearchedFolder) -> Iterator[Layout]:
    """XML files of dlib's imglab."""
    is_imglab = re.compile(rb"<dataset>\s*<(name|comment|images)\b").search
    # The first file decides, because VOC has thousands.
    places = [
        place for place in _places(folder) for path in _first(folder, place, ".xml") if is_imglab(folder.head(path))
    ]
    paths = [
        _join(place, name)
        for place in places
        for name in folder.files_ending(place, ".xml")[:_MAX_FILES]
        if is_imglab(folder.head(_join(place, name)))
    ]
    for kind, path_by_stage in _groups(paths).items():
        reason = f"imglab's XML in {_listed(path_by_stage.values())}"
        yield Layout(name=f"imglab:{kind}".rstrip(":"), format="imglab", reason=reason, stages=path_by_stage)


def _pts(folder: _SearchedFolder) -> Iterator[Layout]:
    """Folders of ``.pts`` files."""
    places = [place for place in _places(folder) if _first(folder, place, ".pts")]
    stages = {_stage_of(place) or "train": place for place in places}
    if stages and len(stages) == len(places):
        yield Layout(name="pts", format="pts", reason=f".pts files in {_listed(places)}", stages=stages)


_DETECTORS: Final[tuple[Callable[[_SearchedFolder], Iterator[Layout]], ...]] = (
    _coco, _yolo, _dota, _voc, _image_folder, _tables, _labelme, _face_lists, _imglab, _pts,
)  # fmt: skip


# -- names and files ----------------------------------------------------------------------------------------------


def _stage_of(path: str) -> str | None:
    """Return the stage that a path names, the last one: ``"train/_annotations.csv"``, ``"instances_val2017.json"``."""
    words = re.findall("[a-z]+", path.lower())
    stage = next((_STAGE_BY_WORD[word] for word in reversed(words) if word in _STAGE_BY_WORD), None)
    # COCO's test-dev is a test set, and dev alone one for validation.
    return "val" if stage is None and "dev" in words else stage


def _choices(names: Iterable[str]) -> list[dict[str, str]]:
    """Return the ways to give each stage one of the names; a name that is just a stage excludes longer ones."""
    names_by_stage: dict[str, list[str]] = {}
    for name in names:
        if stage := _stage_of(name):
            names_by_stage.setdefault(stage, []).append(name)
    for stage, candidates in names_by_stage.items():
        plain = [name for name in candidates if posixpath.basename(name).lower() in _STAGE_BY_WORD]
        names_by_stage[stage] = plain or candidates
    if not names_by_stage:
        return []
    combinations = islice(product(*names_by_stage.values()), _MAX_CHOICES)
    return [dict(zip(names_by_stage, combination, strict=True)) for combination in combinations]


def _unused(names: Iterable[str], stages: Mapping[str, str]) -> str:
    """Return the end of a reason about folders that a layout does not read."""
    unused = [name for name in names if name not in stages.values() and (_stage_of(name) or name == ".")]
    return f"; not used: {_listed(unused)}" if unused else ""


def _joined(stages: Mapping[str, str]) -> str:
    return ",".join(stages.values())


def _groups(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group files whose paths differ only in the stage; return the files by stage, keyed by the common part."""
    groups: dict[str, dict[str, str]] = {}
    for path in paths:
        stem = re.sub("[A-Za-z]+", lambda match: "" if match[0].lower() in _STAGE_BY_WORD else match[0], path)
        kind = re.sub(r"[._-]*\.\w+$", "", stem.strip("/")).strip("_.-")
        stage = _stage_of(path) or "train"
        # A second file of a stage, such as train1.json next to train2.json, is another layout.
        if stage in groups.get(kind, {}):
            kind = posixpath.splitext(path)[0]
        groups.setdefault(kind, {})[stage] = path
    return groups


def _layout(options_by_stage: Mapping[str, Mapping[str, Any]], **fields: Any) -> Layout:
    """Return a layout, given the options of each stage; options that are None are left out."""
    present = {
        stage: {key: value for key, value in options.items() if value is not None}
        for stage, options in options_by_stage.items()
    }
    first = next(iter(present.values()))
    shared = {key: value for key, value in first.items() if all(o.get(key) == value for o in present.values())}
    differing = {stage: {key: value for key, value in o.items() if key not in shared} for stage, o in present.items()}
    return Layout(options=shared, stage_options={stage: o for stage, o in differing.items() if o}, **fields)


def _places(folder: _SearchedFolder) -> list[str]:
    """Return the folders that may hold files of a set: the root and those one level below."""
    return [".", *folder.folders(".")[:_MAX_FOLDERS]]


def _paths(folder: _SearchedFolder, ending: str) -> list[str]:
    """Return the first files with an extension in each of the `_places`."""
    return [_join(place, name) for place in _places(folder) for name in folder.files_ending(place, ending)[:_MAX_FILES]]


def _first(folder: _SearchedFolder, place: str, ending: str) -> list[str]:
    """Return the first file with an extension in a folder; an empty list without any."""
    return [_join(place, name) for name in folder.files_ending(place, ending)[:1]]


def _image_dir(folder: _SearchedFolder, name: str, path: str) -> str | None:
    """Return the folder that the path of an image in an annotation file is relative to, or None.

    Args:
        folder: _SearchedFolder of the data set.
        name: Untrusted path of an image.
        path: The annotation file; folders near it and of its stage are more likely than others.
    """
    if not is_image_name(name):
        return None
    parent = posixpath.dirname(path) or "."
    stage = _stage_of(path)
    places = _places(folder)
    places += [_join(place, child) for place in places[1:] for child in folder.folders(place)[:_MAX_FOLDERS]]
    # A file of no stage may be about images in the folders of all stages.
    places = [place for place in places if stage is None or _stage_of(place) in (None, stage)]
    places.sort(key=lambda place: (place != parent, _stage_of(place) != stage, not place.startswith(f"{parent}/")))
    with suppress(UnsafePathError):
        return next((place for place in places if folder.is_file(join_path(place, name))), None)
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*-?\d*\.?\d+([eE][-+]?\d+)?\s*", text) is not None


def _join(place: str, name: str) -> str:
    return posixpath.normpath(f"{place}/{name}")


def _listed(names: Iterable[str]) -> str:
    first_names = list(islice(names, 4))
    # Names of files may hold control characters.
    return printable(", ".join(first_names[:3])) + (" ..." if len(first_names) > 3 else "")
