"""A record of a COCO file passes few files of the package on its way into the table."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import lit_loader
from lit_loader.annotations.formats import read_annotations
from tests.support.coco_set import CocoSet

PACKAGE = str(Path(lit_loader.__file__).parent) + "/"
MOST_FILES = 6  # `image_sizes.py` looks whether EXIF turns the image


def calls(root, *, num_images):
    """Return how often each function of the package is called while a file with this number of images is read."""
    coco = CocoSet(root / str(num_images))
    coco.root.mkdir()
    for number in range(num_images):
        coco.image(number, f"{number}.jpg")
        coco.add(image_id=number, segmentation=[[1, 2, 3, 2, 3, 4]], keypoints=[1, 2, 2])
    coco.category(keypoints=["nose"])
    coco.write(("images", "annotations", "categories"))
    counts = Counter()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            counts[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1

    sys.setprofile(note)
    try:
        read_annotations("coco", coco.root, "a.json", image_dir="img", use_cache=False)
    finally:
        sys.setprofile(None)
    return counts


def test_a_record_passes_at_most_six_files(tmp_path):
    few = calls(tmp_path, num_images=5)
    many = calls(tmp_path, num_images=45)
    once_a_record = {function for function, count in many.items() if count - few[function] >= 40}
    assert 0 < len({file for file, _ in once_a_record}) <= MOST_FILES, sorted(once_a_record)
    names = {name for file, name in once_a_record if file == "annotations/formats/coco/reader.py"}
    assert "_File._add_image" in names
    # Annotations are added column by column.
    assert "_File._add_columns" not in names
