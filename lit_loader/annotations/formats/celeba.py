"""CelebA: lists of boxes, points, attributes, identities and splits, which are read side by side."""

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
    "list_attr_celeba": "",  # its head names them
}
"""Columns of each list after the image's name."""

_PARTITION, _IDENTITY, _BOX, _WILD, _ALIGNED, _ATTRIBUTES = _COLUMNS
_FOLDERS: Final = (".", "Anno", "Eval")
_SPLITS: Final = {"train": "0", "val": "1", "test": "2"}
_ANSWERS: Final = {"-1": "no", "1": "yes"}
_WORDS: Final = {_PARTITION: tuple(_SPLITS.values()), _ATTRIBUTES: tuple(_ANSWERS)}
_ALIGNED_SIZE: Final = (178, 218)
_LOOKED_AT: Final = 20  # images without a header, until the others are taken to be of the right size
_Unit: TypeAlias = tuple[str, dict[str, str]]
"""The split or ".", and the file of each list."""

_Line: TypeAlias = tuple[str, str, int, Any]
"""An image's name, the list, the line there, and its numbers or texts, or attributes by name."""


@dataclass(frozen=True, kw_only=True)
class CelebaReader(Reader):
    """Reads CelebA from the lists that are there, as the authors or as Kaggle (CSV) give them.

    Every image has one face. Its box and its points are those of the original images, or with ``aligned`` the points of
    ``list_landmarks_align_celeba`` and the box around them; lists of the other images are named in the report. The 40
    attributes have the values ``no`` (-1) and ``yes`` (1); one more, ``identity``, is the number of the person, by
    which samples can be labelled. A left eye is the one further left in the image. What a list
    does not say of an image is absent, and counted.

    All lists are read side by side, once, so each must be sorted by the images' names, as the authors' are.

    Args:
        image_dir: The folder of the images, relative to the root.
        aligned: Whether these are the images of ``img_align_celeba``, of 178 x 218 pixels; False for the original ones.
            Boxes and points that are not of these images are refused.
        annotation_dir: The folder of the lists, or the one above its ``Anno`` and ``Eval``, relative to the root.
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
        """Return the lists that are there.

        Raises:
            AnnotationError: If there is none besides that of the splits, one is there twice, or there is no such split.
        """
        found: dict[str, str] = {}
        wrong = ""
        for list_name, place, ending in product(_COLUMNS, _FOLDERS, (".txt", ".csv")):
            file = join_path(self.annotation_dir, f"{place}/{list_name}{ending}")
            if folder.is_file(file) and found.setdefault(list_name, file) != file:
                wrong = f"{found[list_name]!r} and {file!r} are one list; remove one"
        if not found.keys() - {_PARTITION}:
            folder_name = f"annotation_dir={self.annotation_dir!r}"
            wrong = f"{folder_name} and Anno in it have none of {', '.join(_COLUMNS)}"
        elif name != "." and (name not in _SPLITS or _PARTITION not in found):
            wrong = f"there is no split {name!r}; {_PARTITION} lists {', '.join(_SPLITS)}; . is all images"
        if wrong:
            raise AnnotationError(wrong, path=folder.root)
        return Inputs(files=list(found.values()), units=[(name, found)], split=None if name == "." else name)

    def read(self, rows: Rows, unit: _Unit) -> None:
        """Add the images of a split."""
        split, files = unit
        others = (_BOX, _WILD) if self.aligned else (_ALIGNED,)
        for list_name in (name for name in others if name in files):
            rows.not_read(f"{list_name}, of the {'original' if self.aligned else 'aligned'} images")
        used = [list_name for list_name in files if list_name not in others]
        is_checked = not {_BOX, _WILD, _ALIGNED} & files.keys()
        rows.declare(keypoints=keypoint_schema("face_5") if {_WILD, _ALIGNED}.intersection(used) else None)
        lines = merge(*(self._lines(rows, name, files[name]) for name in used), key=itemgetter(0))
        for image_name, group in groupby(lines, key=itemgetter(0)):
            listed = list(group)
            found = {list_name: values for _, list_name, _, values in listed}
            (partition,) = found.get(_PARTITION, ("",))
            is_in_split = split == "." or partition == _SPLITS[split]
            if partition and not is_in_split:
                continue
            _, first, line, _ = listed[0]
            rows.file = files[first]
            if len(found) < len(used):
                missing = ", ".join(list_name for list_name in used if list_name not in found)
                rows.problem("not_listed", "absent", f"{image_name!r} is not in {missing}", line=line)
            if not is_in_split:
                continue
            if partition and split == ".":
                rows.not_read("partition of an image")
            image = rows.image(image_name, folder=self.image_dir, line=line)
            is_checked = is_checked or image >= _LOOKED_AT or self._is_right_size(rows, image)
            if found.keys() - {_PARTITION}:
                self._add(rows, image, found, line)

    def _add(self, rows: Rows, image: int, values: Mapping[str, Any], line: int) -> None:
        """Add the face of an image."""
        attributes = values.get(_ATTRIBUTES, {})
        if _IDENTITY in values:
            attributes = attributes | {"identity": values[_IDENTITY][0]}
        x, y, width, height = values.get(_BOX, (0, 0, 0, 0))
        box = (x, y, x + width, y + height) if _BOX in values else None
        flat = values.get(_ALIGNED, values.get(_WILD))
        points = None if flat is None else list(zip(flat[::2], flat[1::2], strict=True))
        found: dict[str, Any] = {"box": box, "points": points, "attributes": attributes}
        rows.object(image, class_name=self.class_name, line=line, **found)

    def _is_right_size(self, rows: Rows, image: int) -> bool:
        """Refuse images that boxes and points are not of; return whether the size can be read."""
        path = rows.images.paths[image]
        ((width, height),), wrong = read_image_sizes(rows.root, [path], num_workers=0, progress=False)
        if not wrong and ((width, height) == _ALIGNED_SIZE) != self.aligned:
            message = f"{path!r} has {width} x {height} pixels, and boxes and points are those of "
            message += f"{'aligned (178 x 218)' if self.aligned else 'original'} images; pass "
            message += f"aligned={not self.aligned}, or another image_dir"
            raise AnnotationError(message, path=rows.root / rows.file)
        return not wrong

    def _lines(self, rows: Rows, list_name: str, file: str) -> Iterator[_Line]:
        """Yield the images of a list, checked to be sorted; before them stand a count and names of columns, or not."""
        columns = _COLUMNS[list_name].split()
        last, count, stated = "", 0, ""
        for line, text in self.lines(rows, file):
            image_name, *fields = text.replace(",", " ").split() or [""]
            try:
                if is_image_name(image_name):
                    if image_name <= last:
                        raise AnnotationError("images must be sorted by their names, each of them once")
                    last, count = image_name, count + 1
                    yield image_name, list_name, line, _values(list_name, columns, fields)
                elif image_name.isdecimal() and not fields and not count:
                    stated = image_name
                elif image_name:
                    names = [name for name in (image_name, *fields) if name != "image_id"]
                    is_odd = len(set(names)) < len(names) or not "".join(names).isprintable()
                    if count or is_odd or names != (columns or names):
                        columns_are = " ".join(columns) or "different names of text"
                        raise AnnotationError(f"{shorten(text)!r} names no image; columns are {columns_are}")
                    columns = names
            except AnnotationError as error:
                rows.file = file
                rows.malformed(error.message, line=line)
        if stated not in ("", str(count)):
            rows.file = file
            rows.malformed(f"the list has {count} images, and {shorten(stated)} stands above them", line=1)


def _values(list_name: str, columns: Sequence[str], fields: Sequence[str]) -> Any:
    """Return what a line says of its image."""
    if not columns or len(fields) != len(columns):
        listed = shorten(" ".join(columns)) or "not named"
        raise AnnotationError(f"{len(fields)} values; columns are {listed}")
    known = _WORDS.get(list_name, fields)
    if wrong := set(fields) - set(known):
        raise AnnotationError(f"{shorten(repr(wrong.pop()))} is none of {', '.join(known)}")
    if list_name == _ATTRIBUTES:
        return {name: _ANSWERS[text] for name, text in zip(columns, fields, strict=True)}
    return fields if list_name in (_PARTITION, _IDENTITY) else numbers(fields)
