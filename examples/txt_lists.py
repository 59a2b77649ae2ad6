"""Write txt lists as input for a conversion: one line per object with its class, box, points and finish.

    python examples/txt_lists.py shapes-txt
    python examples/txt_lists.py shapes-txt --train 200 --val 50 --test 50

Draws the embedded scenes of shapes, and writes `train.txt`, `val.txt`, `test.txt` and their images into a new folder.
A line is `path class xmin ymin xmax ymax x y visibility ... finish`. Prints the first line and the command that
converts the lists to one unified XML set.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from lit_loader.annotations.formats import write_annotations
from lit_loader.datasets import ShapesSource, Stage

COLUMNS = "path class box points_v attribute:finish"


def main() -> None:
    """Write the lists."""
    arguments = parse_arguments()
    stages: tuple[Stage, ...] = ("train", "val", "test")
    source = ShapesSource(num_images={stage: getattr(arguments, stage) for stage in stages})
    source.prepare()
    folder: Path = arguments.folder
    (folder / "images").mkdir(parents=True)
    for stage in stages:
        (table,) = source.tables(stage)
        write_annotations("keypoints_txt", table, folder, f"{stage}.txt", columns=COLUMNS, image_dir="JPEGImages")
        for index in range(table.num_images):
            shutil.copy(table.image_path(index), folder / "images")
    names = ", ".join(table.keypoint_names)
    pairs = [list(pair) for pair in table.flip_pairs]
    print((folder / "train.txt").read_text().splitlines()[0])
    print(
        f"next: lit-loader convert keypoints_txt {folder} train=train.txt val=val.txt test=test.txt --to voc "
        f"--out shapes-xml --option columns='{COLUMNS}' --option image_dir=images "
        f"--option schema='{{names: [{names}], flip_pairs: {pairs}, "
        f"normalization_pair: {list(table.normalization_pair or ())}}}'"
    )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write txt lists of generated scenes, with their images.")
    parser.add_argument("folder", type=Path, help="a new folder")
    for stage, count in (("train", 3000), ("val", 300), ("test", 1400)):
        parser.add_argument(f"--{stage}", type=int, default=count, help=f"images (default: {count})")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists; give a new folder, or remove it")
    return arguments


if __name__ == "__main__":
    main()
