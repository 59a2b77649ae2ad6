"""Rate of reading a COCO file into a table, compared with a bare pass of `ijson`. A unit is an object.

    python -m benchmarks.coco_read [--rounds 7]

Both read the same files: 20,000 images with 100,000 objects, without and with polygons. The bare pass iterates over the
events of `ijson.basic_parse`, with numbers as `Decimal` (its default) or as float. lit_loader's reader checks
everything, looks up the images, and creates the table, without the cache.
"""

from __future__ import annotations

import tempfile
from collections import deque
from functools import partial
from pathlib import Path

import ijson

from benchmarks.annotations import OBJECTS_AN_IMAGE, write_coco
from benchmarks.rounds import compare, judge, run
from lit_loader.annotations.formats import read_annotations

NUM_IMAGES = 20_000
LEAST_RATE = 0.5
"""The bar: lit_loader's rate as a fraction of the bare pass."""


def parse(path: Path, *, use_float: bool = False) -> int:
    """Iterate over the events of a file; return its number of objects."""
    with path.open("rb") as file:
        deque(ijson.basic_parse(file, use_float=use_float), maxlen=0)
    return NUM_IMAGES * OBJECTS_AN_IMAGE


def read(path: Path) -> int:
    """Read a file into a table; return its number of objects."""
    return read_annotations("coco", path.parent, path.name, use_cache=False, progress=False).num_objects


def main(rounds: int) -> None:
    """Compare on both files."""
    for polygons in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            path = write_coco(Path(folder), NUM_IMAGES, polygons=polygons)
            contenders = {
                "ijson.basic_parse": partial(parse, path),
                "ijson.basic_parse, use_float=True": partial(parse, path, use_float=True),
                "read_annotations": partial(read, path),
            }
            size = path.stat().st_size / 1e6
            question = f"{NUM_IMAGES} images, {size:.0f} MB, {'with' if polygons else 'no'} polygons ({ijson.backend})"
            figures = compare(question, contenders, rounds=rounds, unit="object")
        share = figures.rate_ratio("read_annotations", "ijson.basic_parse")
        judge("rate as a fraction of the bare pass", share, at_least=LEAST_RATE)


if __name__ == "__main__":
    run(main)
