"""Small data sets at the paths that the examples of the documentation use."""

from __future__ import annotations

from pathlib import Path

from lit_loader.datasets import draw_shapes
from tests.support.face_lists import write_faces
from tests.support.made_sets import MAKERS, split_in_two

# The path in an example: the layout of the set there.
_LAYOUTS = {
    "path/to/coco": "coco",
    "path/to/yolo": "yolo",
    "path/to/voc": "voc",
    "path/to/csv": "csv",
    "path/to/folders": "image_folder",
    "path/to/set": "coco",
    "path/a": "coco",
    "path/b": "voc",
    "faces-xml": "voc",
}
DOCUMENTED_PATHS = (*_LAYOUTS, "shapes-xml", "path/to/images", "path/to/lists")


def make_documented_sets(text: str, folder: Path) -> None:
    """Make the data sets whose paths an example contains, below a folder.

    Args:
        text: A block of code, or a command.
        folder: The working folder of the example.
    """
    for path, layout in _LAYOUTS.items():
        if path in text and not (folder / path).exists():
            (folder / path).mkdir(parents=True)
            MAKERS[layout](folder / path, split_in_two(folder / path / "source"))
    # An example that draws the set itself creates the folder.
    if "shapes-xml" in text and "draw_shapes" not in text and not (folder / "shapes-xml").exists():
        shares = (0.5, 0.3, 0.2)
        drawn = draw_shapes(folder, num_images={"train": 6, "val": 4, "test": 4}, class_shares=shares, progress=False)
        drawn.rename(folder / "shapes-xml")
    if "path/to/images" in text and not (folder / "path/to/images").exists():
        split_in_two(folder / "path/to/images")
    if "path/to/lists" in text and not (folder / "path/to/lists").exists():
        for number, name in enumerate(("train", "val", "test")):
            write_faces(folder / "path/to/lists", f"{name}.txt", 8, start=10 * number, with_boxes=True)
