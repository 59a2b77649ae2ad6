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
    """How often each function of the package, with its file, is called while a file with so many images is read."""
    coco = CocoSet(root / str(num_images))
    coco.root.mkdir()
    for number in range(num_images):
        coco.image(number, f"{number}.jpg")
        coco.add(image_id=number, segmentation=[[1, 2, 3, 2, 3, 4]], keypoints=[1, 2, 2])
    coco.category(keypoints=["nose"])
    coco.write(("images", "annotations", "categories"))
    found = Counter()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            found[code.co_filename.removeprefix(PACKAGE), code.co_qualname] += 1

    sys.setprofile(note)
    try:
        read_annotations("coco", coco.root, "a.json", image_dir="img", use_cache=False, progress=False)
    finally:
        sys.setprofile(None)
    return found


def test_a_record_passes_at_most_six_files(tmp_path):
    few, many = calls(tmp_path, num_images=5), calls(tmp_path, num_images=45)
    once_a_record = {function for function, count in many.items() if count - few[function] >= 40}
    files = {file for file, _ in once_a_record}
    assert 0 < len(files) <= MOST_FILES, sorted(once_a_record)
    assert ("annotations/formats/coco/reader.py", "_File._add_image") in once_a_record
    assert (
        "annotations/formats/coco/reader.py",
        "_File._add_columns",
    ) not in once_a_record  # annotations go by columns
