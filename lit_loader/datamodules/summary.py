"""What a set holds and what a sampler makes of it: counts, imbalance, expected class mix."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable
from lit_loader.samplers import OrderSampler, SequentialSampler

__all__ = ["SetSummary", "expected_class_mix", "summary_table"]


@dataclass(frozen=True, kw_only=True)
class SetSummary:
    """One set's figures.

    Attributes:
        name: Such as ``train`` or ``val/1``.
        sampler: The sampler's class name.
        num_images: Images in the set.
        num_empty: Images without objects.
        class_names: Names of the classes.
        class_counts: int64 ``(num_classes,)``, objects of each class.
        image_counts: int64 ``(num_classes,)``, images that hold each class.
        expected_mix: float64 ``(num_classes,)``, share of each class among the objects that the sampler
            delivers in the mean; None if the sampler cannot say.
        problems: Annotation problems that the reader handled.
    """

    name: str
    sampler: str
    num_images: int
    num_empty: int
    class_names: tuple[str, ...]
    class_counts: npt.NDArray[np.int64]
    image_counts: npt.NDArray[np.int64]
    expected_mix: npt.NDArray[np.float64] | None
    problems: int

    @classmethod
    def of(cls, name: str, table: AnnotationTable, sampler: Sampler[int] | None) -> SetSummary:
        """Summarise a table under a sampler; None: in order. Of a foreign sampler the mix is not known."""
        counts = table.image_class_counts()
        if sampler is None:
            sampler = SequentialSampler(table.num_images)
        return cls(
            name=name,
            sampler=type(sampler).__name__,
            num_images=table.num_images,
            num_empty=int((counts.sum(axis=1) == 0).sum()),
            class_names=table.class_names,
            class_counts=table.class_counts(),
            image_counts=(counts > 0).sum(axis=0),
            expected_mix=expected_class_mix(counts, sampler) if isinstance(sampler, OrderSampler) else None,
            problems=len(table.report),
        )

    @property
    def natural_mix(self) -> npt.NDArray[np.float64]:
        """Share of each class among the set's objects; zeros if it has none."""
        return self.class_counts / max(1, int(self.class_counts.sum()))

    @property
    def imbalance(self) -> float:
        """Objects of the most frequent class for each one of the rarest that occurs."""
        present = self.class_counts[self.class_counts > 0]
        return float(present.max() / present.min()) if present.size else 1.0


def expected_class_mix(
    image_class_counts: npt.NDArray[np.int64], sampler: OrderSampler
) -> npt.NDArray[np.float64] | None:
    """Return the share of each class among the objects delivered in an epoch, in the mean.

    Args:
        image_class_counts: ``(num_images, num_classes)`` objects.
        sampler: Over these images.

    Returns:
        float64 ``(num_classes,)`` that sums to 1 (zeros without objects); None if the sampler has no closed
        form for it (weighted without replacement).
    """
    try:
        visits = sampler.expected_visits()
    except ValueError:
        return None
    delivered = visits @ image_class_counts
    total = float(delivered.sum())
    return delivered / total if total else delivered


def summary_table(summaries: list[SetSummary]) -> str:
    """Return the figures as a table for a terminal."""
    table = Table(title="data", title_justify="left")
    for column in ("set", "class", "images", "objects", "share", "under the sampler"):
        table.add_column(column, justify="left" if column in ("set", "class") else "right")
    for summary in summaries:
        empty = f" ({summary.num_empty} empty)" if summary.num_empty else ""
        table.add_row(
            summary.name,
            f"all, {summary.imbalance:.0f} : 1",
            f"{summary.num_images}{empty}",
            str(int(summary.class_counts.sum())),
            "",
            summary.sampler,
        )
        for c, name in enumerate(summary.class_names):
            mix = "n/a" if summary.expected_mix is None else f"{summary.expected_mix[c]:.1%}"
            images, objects = str(summary.image_counts[c]), str(summary.class_counts[c])
            table.add_row("", name, images, objects, f"{summary.natural_mix[c]:.1%}", mix)
        if summary.problems:
            table.add_row("", f"{summary.problems} annotation problems handled")
        table.add_section()
    stream = io.StringIO()
    Console(file=stream, width=100).print(table)
    return stream.getvalue().rstrip()
