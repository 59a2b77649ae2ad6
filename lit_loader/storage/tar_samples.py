"""Samples of WebDataset tar files: the range of each image, and the bytes of its annotation.

NOTE [Samples]
    Members that follow each other and have the same name up to the first dot of its last part are a sample. The text
    after that dot is the extension, in upper or lower case. The image is the first member with the extension of an
    image; without one, the first whose extension ends like that, such as ``left.jpg``. The annotation is the member
    ``json`` if that has boxes, else ``cls``, else ``json``, or one whose extension ends like that. Other members are
    not read.

NOTE [Two files]
    Annotations are needed once, to make a table, and may be a hundred times larger than the ranges of the images, which
    every process needs. So they are stored in a file of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lit_loader.errors import AnnotationError, CacheError
from lit_loader.foundation.array_file import read_arrays, write_arrays
from lit_loader.storage.tar_index import ReadAt, TarMember, tar_members
from lit_loader.types import IndexArray

__all__ = ["TarSamples", "read_samples"]

_ANNOTATION_EXTENSIONS: Final = ("json", "cls")
_MAX_ANNOTATION_BYTES: Final = 16 << 20
_FORMAT: Final = 1


@dataclass(kw_only=True, eq=False)
class TarSamples:
    """Samples of several tar files, in their order.

    Args:
        names: Name of each image in its tar file; not trusted.
        object_of: int32 ``(num_samples,)``, number of the tar file.
        starts: int64 ``(num_samples,)``, first byte of each image.
        lengths: int64 ``(num_samples,)``, number of bytes of each image.
        extensions: ``"json"`` or ``"cls"`` for the annotation of each sample, or an empty string without one; an empty
            list if the annotations were not loaded.
        annotations: Bytes of each annotation; not trusted. Like ``extensions``, an empty list if not loaded.
        num_without_image: Number of samples without an image, which are left out.
    """

    names: list[str] = field(default_factory=list)
    object_of: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    starts: IndexArray = field(default_factory=lambda: np.zeros(0, np.int64))
    lengths: IndexArray = field(default_factory=lambda: np.zeros(0, np.int64))
    extensions: list[str] = field(default_factory=list)
    annotations: list[bytes] = field(default_factory=list)
    num_without_image: int = 0

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def joined(cls, parts: Sequence[TarSamples]) -> TarSamples:
        """Return the samples of several tar files, numbered by their positions in ``parts``."""
        counts = [len(part) for part in parts]
        return cls(
            names=[name for part in parts for name in part.names],
            object_of=np.repeat(np.arange(len(parts), dtype=np.int32), counts),
            starts=np.concatenate([np.zeros(0, np.int64), *(part.starts for part in parts)]),
            lengths=np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]),
            extensions=[extension for part in parts for extension in part.extensions],
            annotations=[annotation for part in parts for annotation in part.annotations],
            num_without_image=sum(part.num_without_image for part in parts),
        )

    def save(self, path: Path, *, key: str) -> None:
        """Write the samples to an Arrow file, and their annotations to another one next to it.

        Raises:
            OSError: If the file cannot be written.
        """
        arrays: dict[str, npt.NDArray[Any]] = {
            "object_of": self.object_of,
            "starts": self.starts,
            "lengths": self.lengths,
        }
        arrays |= _text_arrays("names", (name.encode("utf-8", "surrogateescape") for name in self.names))
        texts = _text_arrays("extensions", (extension.encode() for extension in self.extensions))
        texts |= _text_arrays("annotations", self.annotations)
        write_arrays(_annotation_file(path), texts, {"format": _FORMAT, "key": key})
        write_arrays(path, arrays, {"format": _FORMAT, "key": key, "num_without_image": self.num_without_image})

    @classmethod
    def load(cls, path: Path, *, key: str, with_annotations: bool = True) -> TarSamples:
        """Read the files of `save`.

        Args:
            path: The path of `save`.
            key: The key of `save`.
            with_annotations: Also read the annotations.

        Raises:
            CacheError: If a file is missing or damaged, or has another key.
        """
        arrays, header = read_arrays(path, format=_FORMAT, key=key)
        texts: dict[str, list[bytes]] = {"extensions": [], "annotations": []}
        try:
            if with_annotations:
                text_arrays, _ = read_arrays(_annotation_file(path), format=_FORMAT, key=key)
                texts = {name: _texts(name, text_arrays) for name in texts}
            samples = cls(
                names=[name.decode("utf-8", "surrogateescape") for name in _texts("names", arrays)],
                extensions=[extension.decode() for extension in texts["extensions"]],
                annotations=texts["annotations"],
                num_without_image=int(header["num_without_image"]),
                **{name: arrays[name] for name in ("object_of", "starts", "lengths")},
            )
            columns: list[Any] = [samples.object_of, samples.starts, samples.lengths]
            columns += [samples.extensions, samples.annotations] if with_annotations else []
            if any(len(column) != len(samples) for column in columns):
                raise ValueError("columns have different lengths")
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise CacheError(f"{path} is damaged ({type(error).__name__}: {error}); delete it") from None
        return samples


def read_samples(read_at: ReadAt, num_bytes: int, *, name: str, image_extensions: Collection[str]) -> TarSamples:
    """Return the samples of a tar file.

    Args:
        read_at: Reads a part of the file.
        num_bytes: Size of the file.
        name: Its name, for messages.
        image_extensions: Extensions of images, without a dot.

    Raises:
        AnnotationError: If the file is damaged, see `tar_members`, or an annotation is larger than 16 MiB.
    """
    samples = TarSamples()
    images: list[TarMember] = []
    for members in _grouped(tar_members(read_at, num_bytes, name=name)):
        image: TarMember | None = None
        contents: dict[str, bytes] = {}
        # Otherwise in the order of the file, for which a store needs the fewest requests.
        for extension, member in sorted(members, key=lambda pair: "." in pair[0]):
            ending = extension.rpartition(".")[2]
            if image is None and ending in image_extensions:
                image = member
            elif ending in _ANNOTATION_EXTENSIONS and ending not in contents:
                contents[ending] = _content(read_at, member, name)
        if image is None:
            samples.num_without_image += 1
            continue
        images.append(image)
        # Other programs write JSON without objects, such as captions.
        has_boxes = b'"boxes"' in contents.get("json", b"")
        order = ("json", "cls") if has_boxes else ("cls", "json")
        extension = next((ending for ending in order if ending in contents), "")
        samples.extensions.append(extension)
        samples.annotations.append(contents.get(extension, b""))
    samples.names = [image.name for image in images]
    samples.object_of = np.zeros(len(images), np.int32)
    samples.starts = np.array([image.start for image in images], np.int64)
    samples.lengths = np.array([image.length for image in images], np.int64)
    return samples


def _annotation_file(path: Path) -> Path:
    return path.with_suffix(".texts.arrow")


def _content(read_at: ReadAt, member: TarMember, tar_name: str) -> bytes:
    if member.length > _MAX_ANNOTATION_BYTES:
        problem = f"an annotation of {member.length} bytes exceeds the limit of {_MAX_ANNOTATION_BYTES}"
        raise AnnotationError(f"byte {member.start}: {problem}", path=tar_name)
    return read_at(member.start, member.length)


def _grouped(members: Iterable[TarMember]) -> Iterator[list[tuple[str, TarMember]]]:
    """Yield the members of each sample with their extensions in lower case."""
    sample: list[tuple[str, TarMember]] = []
    last_key: str | None = None
    for member in members:
        folder, slash, last_part = member.name.rpartition("/")
        stem, _, extension = last_part.partition(".")
        key = f"{folder}{slash}{stem}"
        if key != last_key and sample:
            yield sample
            sample = []
        last_key = key
        sample.append((extension.lower(), member))
    if sample:
        yield sample


def _text_arrays(name: str, texts: Iterable[bytes]) -> dict[str, npt.NDArray[Any]]:
    encoded = list(texts)
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return {f"{name}.offsets": offsets, f"{name}.data": np.frombuffer(b"".join(encoded), np.uint8)}


def _texts(name: str, arrays: dict[str, npt.NDArray[Any]]) -> list[bytes]:
    offsets = arrays[f"{name}.offsets"]
    data = arrays[f"{name}.data"]
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
        raise ValueError(f"the offsets of {name} are wrong")
    content = data.tobytes()
    bounds = offsets.tolist()
    return [content[begin:end] for begin, end in pairwise(bounds)]
