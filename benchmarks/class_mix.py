"""Class mix of one epoch under each sampling family, for the embedded set or one in VOC layout."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from lit_loader.annotations import AnnotationTable, image_labels
from lit_loader.annotations.formats import read_annotations
from lit_loader.datamodules import (
    ClassAwareSamplerConfig,
    ClassBalancedSamplerConfig,
    EffectiveNumberSamplerConfig,
    RandomSamplerConfig,
    RepeatFactorSamplerConfig,
    SamplerConfig,
    SequentialSamplerConfig,
    WeightedSamplerConfig,
)
from lit_loader.datasets import draw_shapes, labelled_samples
from lit_loader.types import IndexArray

NATURAL: Final = "sequential"
FAMILIES: dict[str, SamplerConfig] = {
    NATURAL: SequentialSamplerConfig(),
    "random": RandomSamplerConfig(),
    "weighted": WeightedSamplerConfig(),
    "effective_number": EffectiveNumberSamplerConfig(),
    "repeat_factor, t=1": RepeatFactorSamplerConfig(repeat_thresh=1.0),
    "class_balanced": ClassBalancedSamplerConfig(),
    "class_aware": ClassAwareSamplerConfig(),
}


@dataclass(frozen=True)
class Mix:
    """Class mix of one epoch.

    Attributes:
        num_samples: Number of samples in the epoch.
        objects: float64 ``(num_classes,)``, share of each class among the objects.
        images: float64 ``(num_classes,)``, share of the samples that contain each class.
        num_left_out: Number of samples of the set that are not drawn.
    """

    num_samples: int
    objects: npt.NDArray[np.float64]
    images: npt.NDArray[np.float64]
    num_left_out: int

    @property
    def imbalance(self) -> float:
        """Number of objects of the most frequent class per object of the rarest class drawn."""
        return float(self.objects.max() / self.objects[self.objects > 0].min())


def mix_of(table: AnnotationTable, indices: IndexArray) -> Mix:
    """Return the class mix of an epoch's indices."""
    visits = np.bincount(indices, minlength=table.num_images)
    objects = visits @ table.image_class_counts()
    offsets, classes = image_labels(table)
    images = np.bincount(classes, weights=np.repeat(visits, np.diff(offsets)), minlength=len(table.class_names))
    return Mix(
        num_samples=len(indices),
        objects=objects / objects.sum(),
        images=images / len(indices),
        num_left_out=int(np.count_nonzero(visits == 0)),
    )


def mixes(table: AnnotationTable) -> dict[str, Mix]:
    """Return the mix of the first epoch, of seed 0, under each family."""
    orders = {name: family.make_sampler(table).order(seed=0, epoch=0) for name, family in FAMILIES.items()}
    return {name: mix_of(table, order[0 : len(order)]) for name, order in orders.items()}


def print_mixes(title: str, mix_by_family: dict[str, Mix], class_names: tuple[str, ...]) -> None:
    """Print one line per family: shares of the objects, and of the samples that contain each class."""
    width = max(10, *map(len, class_names))
    names = " ".join(f"{name:>{width}s}" for name in class_names)
    print(f"\n{title}: shares of the objects | shares of the samples that contain each class")
    print(f"  {'':20s} {'samples':>8s} {'not seen':>9s} {names} {'imbalance':>10s} | {names}")
    for name, mix in mix_by_family.items():
        objects, images = (" ".join(f"{share:>{width}.1%}" for share in shares) for shares in (mix.objects, mix.images))
        print(f"  {name:20s} {mix.num_samples:8d} {mix.num_left_out:9d} {objects} {mix.imbalance:8.1f}:1 | {images}")


def draw_mixes(panels: dict[str, dict[str, Mix]], class_names: tuple[str, ...], path: Path, *, title: str) -> None:
    """Save one panel per kind of sample, with a bar per family that shows the shares of the classes."""
    figure = Figure(figsize=(6.5 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, (name, mix_by_family) in zip(axes, panels.items(), strict=True):
        bar_start = np.zeros(len(mix_by_family))
        shares = np.array([mix.objects for mix in mix_by_family.values()])
        for c, class_name in enumerate(class_names):
            bars = axis.barh(list(mix_by_family), shares[:, c], left=bar_start, label=class_name)
            texts = [f"{share:.0%}" if share > 0.03 else "" for share in shares[:, c]]
            axis.bar_label(bars, labels=texts, label_type="center", color="white", fontsize=8)
            bar_start += shares[:, c]
        for row, mix in enumerate(mix_by_family.values()):
            axis.text(1.01, row, f"{mix.imbalance:.1f} : 1", va="center", fontsize=8)
        # Above the natural mix.
        axis.axhline(1.5, color="black", linewidth=0.8, linestyle=":")
        axis.invert_yaxis()
        axis.set_xlim(0, 1.12)
        axis.set_xticks(np.linspace(0, 1, 6))
        axis.set_xlabel("share of the objects of one epoch (on the right: most frequent to rarest)")
        axis.set_title(name)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(class_names))
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(out: Path, voc: Path | None) -> None:
    """Print and draw the mixes of images and of object crops."""
    with tempfile.TemporaryDirectory() as cache:
        root = draw_shapes(cache, progress=False) if voc is None else voc
        table = read_annotations("voc", root, "train", cache_dir=cache, progress=False)
        crops = labelled_samples(table, label_attribute=None, multi_label=False, sample_unit="object").table
        panels = {"a sample is an image": mixes(table), "a sample is an object": mixes(crops)}
        for kind, mix_by_family in panels.items():
            print_mixes(kind, mix_by_family, table.class_names)
        name = "the embedded set" if voc is None else root.name
        title = f"{name}, train: {table.num_images} images, {table.num_objects} objects"
        draw_mixes(panels, table.class_names, out, title=title)
        print(f"\n{out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("outputs/class_mix.png"), help="picture (%(default)s)")
    parser.add_argument("--voc", type=Path, help="a set in VOC layout, or none for the embedded set")
    arguments = parser.parse_args()
    main(arguments.out, arguments.voc)
