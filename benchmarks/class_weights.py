"""Time to compute the class weights of a dataset. A unit is the whole set."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from benchmarks.rounds import Pass, compare, run
from lit_loader.annotations import class_weights, image_weights
from lit_loader.annotations.formats import read_annotations
from lit_loader.datasets import draw_shapes

SHARED = Path(__file__).parents[2] / "shared" / "data" / "bccd" / "BCCD"


class PlainVoc(torch.utils.data.Dataset[tuple[torch.Tensor, list[str]]]):
    """A dataset as users write it: decode the image, parse the XML, return both."""

    def __init__(self, root: Path, split: str) -> None:
        self.root = root
        self.ids = (root / "ImageSets" / "Main" / f"{split}.txt").read_text().split()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, list[str]]:
        """Return the image and the names of its objects."""
        name = self.ids[index]
        image = pil_to_tensor(Image.open(self.root / "JPEGImages" / f"{name}.jpg").convert("RGB"))
        root = ElementTree.parse(self.root / "Annotations" / f"{name}.xml").getroot()
        return image, [item.findtext("name", "") for item in root.iter("object")]


def main(rounds: int) -> None:
    """Compare on BCCD if it is present, else on the embedded set."""
    with tempfile.TemporaryDirectory() as cache:
        root = SHARED if SHARED.is_dir() else draw_shapes(Path(cache))

        def iterate() -> int:
            dataset = PlainVoc(root, "train")
            weight: dict[str, float] = defaultdict(lambda: 1.0)
            for index in range(len(dataset)):
                _, names = dataset[index]
                list(map(weight.__getitem__, names))
            return 1

        def weights(*, use_cache: bool) -> int:
            table = read_annotations("voc", root, "train", cache_dir=cache, use_cache=use_cache, progress=False)
            image_weights(table, class_weights(table.class_counts()))
            return 1

        contenders: dict[str, Pass] = {
            "[w[label] for data, label in set]": iterate,
            "ours, cold": partial(weights, use_cache=False),
            "ours, warm": partial(weights, use_cache=True),
        }
        compare(f"class weights of {root.name}", contenders, rounds=rounds, unit="set")


if __name__ == "__main__":
    run(main)
