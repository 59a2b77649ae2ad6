"""CelebA: lists of boxes, points, attributes, identities and splits, read in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby, product
from operator import itemgetter
from typing import Any, ClassVar, Final, TypeAlias

from lit_loader.annotations.formats.folder import Folder, is_image_name, join_path
from lit_loader.annotations.formats.image_sizes import read_image_sizes
from lit_loader.annotations.formats.reader import Inputs, Reader
from lit_loader.annotations.formats.rows import Rows
from lit_loader.annotations.formats.text_file import numbers
from lit_loader.annotations.keypoints import keypoint_schema
from lit_loader.annotations.problems import shorten
from lit_loader.errors import AnnotationError

__all__ = ["CelebaReader"]

_POINTS: Final = " ".join(f"{p}_x {p}_y" for p in ("lefteye", "righteye", "nose", "leftmouth", "rightmouth"))
_COLUMNS: Final = {
    "list_eval_partition": "partition",
    "identity_CelebA": "identity",
    "list_bbox_celeba": "x_1 y_1 width height",
    "list_landmarks_celeba": _POINTS,
    "list_landmarks_align_celeba": _POINTS,
    "list_attr_celeba": "",  # named by its header
}
"""Columns of each list after the image name."""

_PARTITION, _IDENTITY, _BOX, _WILD, _ALIGNED, _ATTRIBUTES = _COLUMNS
_FACE_LISTS: Final = (_BOX, _ALIGNED, _WILD, _ATTRIBUTES, _IDENTITY)
_FOLDERS: Final = (".", "Anno", "Eval")
_SPLITS: Final = {"train": "0", "val": "1", "test": "2"}
_ANSWERS: Final = {"-1": "no", "1": "yes"}
_WORDS: Final = {_PARTITION: tuple(_SPLITS.values()), _ATTRIBUTES: tuple(_ANSWERS)}
_ALIGNED_SIZE: Final = (178, 218)
_MAX_SIZE_CHECKS: Final = 20  # images whose size is read; later images are assumed to have the right size
_Unit: TypeAlias = tuple[str, dict[str, str]]
"""Split or ".", and the file of each list."""

_Line: TypeAlias = tuple[str, str, int, Any]
"""Image name, name of the list, line number, and the values: numbers, texts, or attributes by name."""


@dataclass(frozen=True, kw_only=True)
class CelebaReader(Reader):
    """Reader of CelebA from all lists that exist, in the authors' layout or Kaggle's (CSV).

    Every image has one face. Its box and points refer to the original images; with ``aligned`` the points are read from
    ``list_landmarks_align_celeba``, and the box is around them. Lists that belong to the other kind of images are
    named in the report. The 40 attributes have the values ``no`` (-1) and ``yes`` (1). One more attribute,
    ``identity``, is the number of the person, and can serve as a label. The left eye is the one further left in the
    image. Values missing in a list are absent, and counted.

    All lists are read in parallel, once, so each must be sorted by image name, like the authors'.

    Args:
        image_dir: Folder of the images, relative to the root.
        aligned: True for the images of ``img_align_celeba``, 178 x 218 pixels; False for the original images. Boxes
            and points for the other kind are refused.
        annotation_dir: Folder of the lists, or the parent of its ``Anno`` and ``Eval``, relative to the root.
        class_name: Class of every face.

    Source:
        Liu et al. 2015, Deep Learning Face Attributes in the Wild; the readme of the data set.
    """

    format: ClassVar[str] = "celeba"
    description: ClassVar[str] = "CelebA: points, boxes, 40 attributes; NAME: train, val, test, or . for all"

    image_dir: str = "img_align_celeba"
    aligned: bool = True
    annotation_dir: str = "."
    class_name: str = "face"

    def inputs(self, folder: Folder, name: str) -> Inputs:
        """Return the lists that exist.

        Raises:
            AnnotationError: If there is only the list of splits or none, a list exists twice, or the split is unknown.
        """
        files: dict[str, str] = {}
        error = ""
        for list_name, parent, extension in product(_COLUMNS, _FOLDERS, (".txt", ".csv")):
            file = join_path(self.annotation_dir, f"{parent}/{list_name}{extension}")
            # Which of two copies is current cannot be known.
            if folder.is_file(file) and files.setdefault(list_name, file) != file:
                error = f"{files[list_name]!r} and {file!r} are the same list; remove one"
        if not files.keys() - {_PARTITION}:
            names = ", ".join(_COLUMNS)
            error = f"annotation_dir={self.annotation_dir!r} and its folder Anno have none of {names}"
        elif name != "." and (name not in _SPLITS or _PARTITION not in files):
            error = f"unknown split {name!r}; {_PARTITION} lists {', '.join(_SPLITS)}; . is all images"
        if error:
            raise AnnotationError(error, path=folder.root)
        return Inputs(files=list(files.values()), units=[(name, files)], split=None if name == "." else name)

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add the images of a split."""
        split, files = unit
        # Boxes and points of the other images would be wrong, so their lists are only named.
        unused = (_BOX, _WILD) if self.aligned else (_ALIGNED,)
        for list_name in (name for name in unused if name in files):
            rows.not_read(f"{list_name}, of the {'original' if self.aligned else 'aligned'} images")
        used = [list_name for list_name in files if list_name not in unused]
        # Only boxes and points depend on the kind of images.
        is_checked = not {_BOX, _WILD, _ALIGNED} & files.keys()
        rows.declare(keypoints=keypoint_schema("face_5") if {_WILD, _ALIGNED}.intersection(used) else None)
        # All lists are sorted by image name, so merging them brings the lines of an image together in little memory.
        lines = merge(*(self._lines(rows, name, files[name]) for name in used), key=itemgetter(0))
        for image_name, group in groupby(lines, key=itemgetter(0)):
            image_lines = list(group)
            values_by_list = {list_name: values for _, list_name, _, values in image_lines}
            line_by_list = {list_name: number for _, list_name, number, _ in image_lines}
            (partition,) = values_by_list.get(_PARTITION, ("",))
            is_in_split = split == "." or partition == _SPLITS[split]
            # Before any check: reading one split must not report the images of the others.
            if partition and not is_in_split:
                continue
            _, first_list, line, _ = image_lines[0]
            rows.file = files[first_list]
            # Reported before the split is known to match: the image may be missing in the list of splits itself.
            if len(values_by_list) < len(used):
                missing = ", ".join(list_name for list_name in used if list_name not in values_by_list)
                rows.problem("not_listed", "absent", f"{image_name!r} is not in {missing}", line=line)
            if not is_in_split:
                continue
            if partition and split == ".":
                rows.not_read("partition of an image")
            image = rows.image(image_name, folder=self.image_dir, line=line)
            is_checked = is_checked or image >= _MAX_SIZE_CHECKS or self._is_right_size(rows, image)
            # A face is reported where its box or points are, or else its attributes.
            face_list = next((list_name for list_name in _FACE_LISTS if list_name in line_by_list), None)
            if face_list is not None:
                rows.file = files[face_list]
                self._add(rows, image, values_by_list, line_by_list[face_list])

    def _add(self, rows: Rows, image: int, values_by_list: Mapping[str, Any], line: int) -> None:
        """Add the face of an image."""
        attributes = values_by_list.get(_ATTRIBUTES, {})
        if _IDENTITY in values_by_list:
            attributes = attributes | {"identity": values_by_list[_IDENTITY][0]}
        box = None
        if _BOX in values_by_list:
            x, y, width, height = values_by_list[_BOX]
            box = (x, y, x + width, y + height)
        # Only one of the two lists is in use.
        xy = values_by_list.get(_ALIGNED, values_by_list.get(_WILD))
        points = None if xy is None else list(zip(xy[::2], xy[1::2], strict=True))
        rows.object(image, class_name=self.class_name, box=box, points=points, attributes=attributes, line=line)

    def _is_right_size(self, rows: Rows, image: int) -> bool:
        """Return True if the size of an image can be read, and refuse it if boxes and points do not belong to it."""
        path = rows.images.paths[image]
        # A few headers are enough, because all images of a copy have the same kind.
        ((width, height),), reasons = read_image_sizes(rows.root, [path], num_workers=0, progress=False)
        if not reasons and ((width, height) == _ALIGNED_SIZE) != self.aligned:
            expected = "aligned (178 x 218)" if self.aligned else "original"
            message = f"{path!r} has {width} x {height} pixels, but boxes and points refer to {expected} images"
            remedy = f"pass aligned={not self.aligned}, or another image_dir"
            raise AnnotationError(message, path=rows.root / rows.file, remedy=remedy)
        return not reasons

    def _lines(self, rows: Rows, list_name: str, file: str) -> Iterator[_Line]:
        """Yield the images of a list, and check that they are sorted.

        The authors' lists begin with the number of images and a line of column names, Kaggle's with the names only.
        """
        columns = _COLUMNS[list_name].split()
        last_name = ""
        count = 0
        stated_count = ""
        for line, text in self.lines(rows, file):
            # Blanks in the authors' lists, commas in Kaggle's; no name has either.
            image_name, *fields = text.replace(",", " ").split() or [""]
            try:
                if is_image_name(image_name):
                    # `merge` needs sorted lists; a strict order also excludes duplicates.
                    if image_name <= last_name:
                        raise AnnotationError("images must be sorted by name, each of them once")
                    last_name = image_name
                    count += 1
                    yield image_name, list_name, line, _values(list_name, columns, fields)
                # The number of images, in the first line.
                elif image_name.isdecimal() and not fields and not count:
                    stated_count = image_name
                elif image_name:
                    names = [name for name in (image_name, *fields) if name != "image_id"]
                    is_invalid = len(set(names)) < len(names) or not "".join(names).isprintable()
                    if count or is_invalid or names != (columns or names):
                        expected = " ".join(columns) or "unique printable names"
                        raise AnnotationError(f"{shorten(text)!r} does not begin with an image; columns are {expected}")
                    columns = names
            except AnnotationError as error:
                # The lists are read alternately, so `rows.file` may be another one.
                rows.file = file
                rows.malformed(error.message, line=line)
        if stated_count not in ("", str(count)):
            rows.file = file
            rows.malformed(f"the list has {count} images, but its first line says {shorten(stated_count)}", line=1)


def _values(list_name: str, columns: Sequence[str], fields: Sequence[str]) -> Any:
    """Return the values of an image in a list."""
    if not columns or len(fields) != len(columns):
        expected = shorten(" ".join(columns)) or "not named"
        raise AnnotationError(f"{len(fields)} values; columns are {expected}")
    allowed = _WORDS.get(list_name, fields)
    if invalid := sorted(set(fields) - set(allowed)):
        raise AnnotationError(f"expected one of {', '.join(allowed)}, got {shorten(repr(invalid[0]))}")
    if list_name == _ATTRIBUTES:
        return {name: _ANSWERS[text] for name, text in zip(columns, fields, strict=True)}
    return fields if list_name in (_PARTITION, _IDENTITY) else numbers(fields)
