"""Do workers' copies of the annotations grow? 500,000 objects, two forked workers, ten epochs: PSS of all processes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from benchmarks.memory import pss_bytes
from benchmarks.rounds import judge
from lit_loader import DataLoader
from lit_loader.annotations import AnnotationTable
from lit_loader.datasets.targets import object_target

NUM_IMAGES, OBJECTS_AN_IMAGE, EPOCHS = 100_000, 5, 10


class FromTable(Dataset[dict[str, Any]]):
    """The targets of a table, without the images."""

    def __init__(self) -> None:
        num_objects = NUM_IMAGES * OBJECTS_AN_IMAGE
        corners = np.random.default_rng(0).uniform(0, 400, (num_objects, 2)).astype(np.float32)
        self.table = AnnotationTable(
            root="/annotations",
            image_paths=[f"images/{number:06d}.jpg" for number in range(NUM_IMAGES)],
            class_names=("cell", "other"),
            widths=np.full(NUM_IMAGES, 640, np.int32),
            heights=np.full(NUM_IMAGES, 480, np.int32),
            offsets=np.arange(0, num_objects + 1, OBJECTS_AN_IMAGE),
            boxes=np.concatenate([corners, corners + 50], axis=1),
            labels=np.arange(num_objects) % 2,
        )

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the target of an image."""
        return object_target(
            self.table,
            index,
            canvas_size=(480, 640),
            first_label=1,
            extra_fields=(),
            keypoints=False,
            attributes=(),
        )


class FromDicts(Dataset[dict[str, Any]]):
    """The same as a list of dicts for each image, as people write it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.targets = [
            {"file": f"images/{number:06d}.jpg", "objects": [_object(rng) for _ in range(OBJECTS_AN_IMAGE)]}
            for number in range(NUM_IMAGES)
        ]

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the target of an image."""
        objects = self.targets[index]["objects"]
        assert isinstance(objects, list)
        return {
            "boxes": torch.tensor([item["bbox"] for item in objects]),
            "labels": torch.tensor([item["category_id"] for item in objects]),
        }


def _object(rng: np.random.Generator) -> dict[str, Any]:
    x, y = rng.uniform(0, 400, 2).tolist()
    return {"bbox": [x, y, x + 50, y + 50], "category_id": int(x) % 2, "iscrowd": 0, "area": 2500.0}


def grown(whose: str) -> list[float]:
    """Return the PSS of this process and its workers after each epoch, in MiB."""
    loader: TorchDataLoader[Any]
    arguments: dict[str, Any] = {
        "batch_size": 256,
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
        "collate_fn": len,  # what arrives is not the question
        "multiprocessing_context": "fork",
    }
    if whose == "torch":
        loader = TorchDataLoader(FromDicts(), **arguments)
    else:
        ours: Any = DataLoader
        loader = ours(FromTable(), seed=0, **arguments)
    found = []
    for _ in range(EPOCHS):
        for _ in loader:
            pass
        found.append(pss_bytes() / 2**20)
    return found


def main() -> None:
    """Run both, each in a fresh process, and compare the end of the first epoch with the end of the last."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(
        f"\n{NUM_IMAGES * OBJECTS_AN_IMAGE:,} objects, two forked workers: PSS in MiB at the end of each epoch"
    )
    for whose in ("torch", "ours"):
        command = [sys.executable, "-m", "benchmarks.annotation_memory", whose]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        figures = [float(word) for word in done.stdout.split()]
        print(f"  {whose:34s} {' '.join(f'{figure:.0f}' for figure in figures)}")
        growth = [100 * (figures[-1] / figures[0] - 1)]
        if whose == "ours":
            judge("growth from the end of the first epoch", growth, at_most=2, unit=" %")
        else:
            print(f"     growth {growth[0]:.1f} %")


if __name__ == "__main__":
    if sys.argv[1:2] in (["torch"], ["ours"]):
        torch.set_num_threads(1)
        print(*grown(sys.argv[1]))
    else:
        main()
