"""Three small sets in three formats, each with its own names of classes."""

from __future__ import annotations

from pathlib import Path

from lit_loader.datasets import MixedSource
from tests.support.made_sets import WITHOUT_POINTS, make_coco, make_voc, make_yolo, split_in_three

CLASS_NAMES = {"plant": ("leaf", "stem", "weed"), "street": ("Leaf", "car", "dirt"), "field": ("leaf", "stem", "stone")}
# Names that all three share: leaf, stem and car.
CLASSES = {"plant": {"weed": None}, "street": {"Leaf": "leaf", "dirt": None}, "field": {"stone": "stem"}}
MISSING = {"plant": "absent", "street": {"stem": "unlabelled"}, "field": "absent"}
MAKERS = {"plant": make_voc, "street": make_coco, "field": make_yolo}


def make_folders(folder: Path) -> dict[str, str]:
    """Write the sets of 6, 3 and 3 images into folders, and return the folder of each set."""
    for number, (name, class_names) in enumerate(CLASS_NAMES.items()):
        columns = {**WITHOUT_POINTS, "class_names": class_names, "seed": number, "attributes": {}}
        tables = split_in_three(folder / "drawings" / name, **columns)
        (folder / name).mkdir(parents=True)
        MAKERS[name](folder / name, tables)
    return {name: str(folder / name) for name in CLASS_NAMES}


def mixed_source(folder: Path, **settings) -> MixedSource:
    """Return the three sets of `make_folders` as one source."""
    sources = {name: str(folder / name) for name in CLASS_NAMES}
    defaults = {"classes": CLASSES, "missing": MISSING, "cache_dir": str(folder / "cache"), "progress": False}
    return MixedSource(sources, **{**defaults, **settings})
