"""Summaries of a set under a sampler: counts, imbalance, expected mix of classes and attributes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from torch.utils.data import Sampler

from lit_loader.annotations import AnnotationTable, image_labels
from lit_loader.foundation.counts import counted
from lit_loader.foundation.escaping import printable
from lit_loader.mixing import Mix
from lit_loader.samplers import MixedSourceSampler, OrderSampler, SequentialSampler
from lit_loader.samplers.order import epoch_visits
from lit_loader.schedules import EpochSchedule, schedules_in, thinned_epochs
from lit_loader.transforms import CopyPaste
from lit_loader.transforms.object_pool import pasted_by_image

__all__ = ["SetSummary", "expected_class_mix", "shares_by_epoch", "shown_epochs", "shown_rows", "summary_table"]

# Epochs of a schedule that a summary shows, so that they fit one column.
_MAX_EPOCHS: Final = 4
# Rows without figures that a table shows one by one.
_MAX_EMPTY_ROWS: Final = 3


@dataclass(frozen=True, kw_only=True)
class SetSummary:
    """Figures of one set for one kind of label: the class, or an attribute.

    Attributes:
        name: Name of the set, such as ``train`` or ``val/1``.
        label: ``class``, or the name of the attribute.
        sampler: Class name of the sampler.
        num_images: Number of images; where a sample is one object, number of samples.
        num_empty: Number of images without an object that has this label.
        num_left_out: Number of annotated images, or objects, that the data module does not take as samples.
        num_crowd: Number of crowd regions that were left out, together with images that contain nothing else.
        num_tiled_images: Number of images whose tiles are the samples, or None if samples are not tiles. All other
            numbers of images are then numbers of tiles, and an object in several tiles counts several times.
        class_names: Names of the classes, or of the attribute's values.
        class_counts: int64 ``(num_classes,)``, objects of each class; with ``distinct`` the images.
        image_counts: int64 ``(num_classes,)``, images that contain each class.
        expected_mix: float64 ``(num_classes,)``, expected share of each class among the labels that the sampler
            delivers, with the objects that mixes add, in epoch 0 if it changes, or None if it cannot be computed.
        problems: Number of annotation problems that the reader handled.
        unlabelled_classes: Names of classes whose objects may be visible without being annotated.
        share: Share of the set among the samples of a training epoch that mixes several sets, or None without a mix.
        mix_by_epoch: `expected_mix` in the epochs at which the sampler's schedules change course, at most four of them;
            empty without schedules, or if the mix is unknown.
        share_by_epoch: `share` in such epochs of the mix, or empty.
    """

    name: str
    label: str = "class"
    sampler: str
    num_images: int
    num_empty: int
    num_left_out: int = 0
    num_crowd: int = 0
    num_tiled_images: int | None = None
    class_names: tuple[str, ...]
    class_counts: npt.NDArray[np.int64]
    image_counts: npt.NDArray[np.int64]
    expected_mix: npt.NDArray[np.float64] | None
    problems: int
    unlabelled_classes: tuple[str, ...] = ()
    share: float | None = None
    mix_by_epoch: Mapping[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    share_by_epoch: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        tables: Sequence[AnnotationTable],
        sampler: Sampler[int] | None,
        *,
        by: str | None = None,
        distinct: bool = False,
        mixing: Sequence[Mix] = (),
        shares: Mapping[int, float] | None = None,
        **counts: int,
    ) -> SetSummary:
        """Summarise the tables of a set under a sampler.

        Args:
            name: Name of the set.
            tables: Tables of the samples, with the same names; the sampler counts through all of them.
            sampler: The sampler of the set, or None for sequential. The mix is known only for lit_loader's samplers.
            by: The attribute to count, or None for the class.
            distinct: True to count a class once an image, as classification of whole images delivers it.
            mixing: The mixes of its images.
            shares: Share of the set in a mix in epoch 0, and in other `shown_epochs` of the mix; None without a mix.
            **counts: ``num_left_out`` and ``num_crowd``, by default 0, and ``num_tiled_images``.
        """
        class_names = tables[0].labels_of(by)[1]
        _, labels = _delivered_labels(tables, by=by, distinct=distinct)
        # An image with three dogs counts once here, and three times in `labels`.
        label_sets = [image_labels(table, by=by) for table in tables]
        classes = np.concatenate([labels_by_image.classes for labels_by_image in label_sets])
        num_images = sum(table.num_images for table in tables)
        sampler = SequentialSampler(num_images) if sampler is None else sampler
        epochs = shown_epochs(sampler, mixing)
        mixes = {
            epoch: expected_class_mix(tables, sampler, by=by, distinct=distinct, mixing=mixing, epoch=epoch)
            for epoch in [0, *epochs]
        }
        shares = shares or {}
        return cls(
            name=name,
            label="class" if by is None else by,
            sampler=type(sampler).__name__,
            num_images=num_images,
            num_empty=sum(int((np.diff(labels_by_image.offsets) == 0).sum()) for labels_by_image in label_sets),
            class_names=class_names,
            class_counts=np.bincount(labels, minlength=len(class_names)),
            image_counts=np.bincount(classes, minlength=len(class_names)),
            expected_mix=mixes[0],
            problems=sum(table.report.num_handled for table in tables),
            # A class that one of several tables labels has objects of these tables, and is not named.
            unlabelled_classes=tuple(
                label
                for label in tables[0].unlabelled_classes
                if by is None and all(label in table.unlabelled_classes for table in tables)
            ),
            share=shares.get(0),
            mix_by_epoch={epoch: mix for epoch in epochs if (mix := mixes[epoch]) is not None},
            share_by_epoch=shares if len(shares) > 1 else {},
            **counts,
        )

    @property
    def natural_mix(self) -> npt.NDArray[np.float64]:
        """Share of each class among the set's labels; zeros if the set has no labels."""
        return self.class_counts / max(1, int(self.class_counts.sum()))

    @property
    def imbalance(self) -> float:
        """Ratio of the largest class count to the smallest count above zero."""
        present = self.class_counts[self.class_counts > 0]
        return float(present.max() / present.min()) if present.size else 1.0


def shown_epochs(sampler: Sampler[int] | None, mixing: Sequence[Mix] = ()) -> list[int]:
    """Return the epochs whose mix a summary shows: epoch 0 and the breakpoints of schedules of samplers and mixes.

    Schedules of mixes count only with a `CopyPaste`.

    If there are more than four, two of those between the first and the last are shown. Without schedules the list is
    empty.
    """
    schedules: list[Any] = [*(sampler.schedules if isinstance(sampler, OrderSampler) else ())]
    # Whole images as partners have the shares of the sampler. Next to pasted objects, which have other shares, their
    # number matters.
    if any(isinstance(mix, CopyPaste) for mix in mixing):
        settings = [value for mix in mixing for name, value in vars(mix).items() if not name.startswith("_")]
        schedules += [part for part in schedules_in(settings) if isinstance(part, EpochSchedule)]
    if not schedules:
        return []
    epochs = sorted({0, *(epoch for schedule in schedules for epoch in schedule.breakpoints())})
    return thinned_epochs(epochs, _MAX_EPOCHS)


def shares_by_epoch(sampler: MixedSourceSampler) -> list[dict[int, float]]:
    """Return the share of each source of a mix in epoch 0 and in the `shown_epochs`."""
    shares = {epoch: (sampler.quotas_of(epoch) / len(sampler)).tolist() for epoch in [0, *shown_epochs(sampler)]}
    return [{epoch: epoch_shares[n] for epoch, epoch_shares in shares.items()} for n in range(len(sampler.sources))]


def expected_class_mix(
    tables: Sequence[AnnotationTable],
    sampler: Sampler[int],
    *,
    by: str | None = None,
    distinct: bool = False,
    mixing: Sequence[Mix] = (),
    epoch: int = 0,
) -> npt.NDArray[np.float64] | None:
    """Return the expected share of each class among the labels delivered in an epoch.

    With mixes, every object of a mixed image counts, although the edges of a mosaic and pasted objects hide some.

    Memory grows with images and objects, not with images times classes.

    Args:
        tables: Tables of the samples, with the same names; the sampler counts through all of them.
        sampler: The sampler over these samples.
        by: The attribute to count, or None for the class.
        distinct: True to count a class once an image.
        mixing: The mixes of the images.
        epoch: The epoch, from 0. It matters only if the sampler or a mix has schedules.

    Returns:
        float64 ``(num_classes,)`` that sums to 1 (zeros without labels), or None if the sampler is not lit_loader's,
        the expectation has no closed form (weighted without replacement), or a mix adds unknown objects: the attributes
        of pasted objects, and the pool of your own mix.
    """
    # Another sampler can be counted only by drawing from it, which would change its next epoch.
    if not isinstance(sampler, OrderSampler):
        return None
    try:
        visits = epoch_visits(sampler, epoch)
    except ValueError:  # no closed form
        return None
    images, labels = _delivered_labels(tables, by=by, distinct=distinct)
    delivered = np.bincount(labels, weights=visits[images], minlength=len(tables[0].labels_of(by)[1]))
    added: npt.NDArray[np.float64] = np.zeros(len(delivered))
    for mix in mixing:
        chance = mix.chance(epoch)
        # Asked only if needed, because the number may be defined only for epochs in which samples are mixed.
        num_partners = chance * mix.num_partners(epoch) if chance > 0 else 0.0
        if isinstance(mix, CopyPaste) and by is None:
            added += num_partners * _pasted_labels(tables, mix, visits)
        # Partners from the order of the epoch have its shares.
        elif type(mix).pool is Mix.pool:
            added += num_partners * delivered
        elif num_partners:
            return None
    arriving: npt.NDArray[np.float64] = delivered + added
    return arriving / (arriving.sum() or 1.0)


def _pasted_labels(
    tables: Sequence[AnnotationTable], mix: CopyPaste, visits: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return how many objects of each class `CopyPaste` adds in an epoch that pastes one object into every image."""
    if mix.class_weights is None:
        counts = pasted_by_image(tables, visits)
    else:
        counts = {name: share * visits.sum() for name, share in mix.expected_pasted(tables).items()}
    return np.array([counts[name] for name in tables[0].class_names])


def _delivered_labels(
    tables: Sequence[AnnotationTable], *, by: str | None, distinct: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the image and the label of each object (or class) that one visit to every image delivers.

    Images count through all tables.
    """
    images = []
    labels = []
    # Number of images in the tables before.
    first_image = 0
    for table in tables:
        if distinct:
            offsets, table_labels = image_labels(table, by=by)
            table_images = np.repeat(np.arange(table.num_images), np.diff(offsets))
        else:
            ids, _ = table.labels_of(by)
            table_images = table.image_of_object()[ids >= 0]
            table_labels = ids[ids >= 0]
        images.append(table_images + first_image)
        labels.append(table_labels)
        first_image += table.num_images
    return np.concatenate(images), np.concatenate(labels)


def shown_rows(is_empty: npt.NDArray[np.bool_]) -> list[int]:
    """Return the rows of a table that are shown: all, or those with figures if more than three rows have none.

    Args:
        is_empty: bool ``(num_rows,)``, True for a row without figures, such as a class without objects.
    """
    folds = int(is_empty.sum()) > _MAX_EMPTY_ROWS
    return [row for row, empty in enumerate(is_empty.tolist()) if not (folds and empty)]


def summary_table(summaries: list[SetSummary]) -> str:
    """Format summaries as a table for a terminal."""
    table = Table(title="data of an epoch, all ranks together", title_justify="left")
    for column in ("set", "class", "images", "objects", "share", "expected share"):
        table.add_column(column, justify="left" if column in ("set", "class") else "right")
    previous = None
    for summary in summaries:
        empty = f" ({summary.num_empty} empty)" if summary.num_empty else ""
        label = "all" if summary.label == "class" else _cell(summary.label)
        label = f"{label}, {summary.imbalance:.0f} : 1"
        num_objects = str(summary.class_counts.sum())
        table.add_row(summary.name, label, f"{summary.num_images}{empty}", num_objects, "", summary.sampler)
        if summary.mix_by_epoch:
            table.add_row("", "", "", "", "", _epochs_text(summary.mix_by_epoch))
        rows = shown_rows(summary.class_counts == 0)
        for c in rows:
            mix = "n/a" if summary.expected_mix is None else f"{summary.expected_mix[c]:.1%}"
            if summary.mix_by_epoch:
                mix = _course([class_mix[c] for class_mix in summary.mix_by_epoch.values()])
            counts = (str(summary.image_counts[c]), str(summary.class_counts[c]))
            table.add_row("", _cell(summary.class_names[c]), *counts, f"{summary.natural_mix[c]:.1%}", mix)
        if len(rows) < len(summary.class_names):
            table.add_row("", f"{len(summary.class_names) - len(rows)} without objects", "0", "0")
        # These figures belong to the set, so they follow only its first label.
        if summary.name != previous:
            if summary.num_tiled_images is not None:
                table.add_row("", f"{summary.num_images} tiles of {summary.num_tiled_images} images")
            if summary.share is not None and not summary.share_by_epoch:
                table.add_row("", f"{summary.share:.1%} of the training samples")
            if summary.share_by_epoch:
                label = f"{_epochs_text(summary.share_by_epoch)}, share"
                table.add_row("", label, "", "", "", _course([*summary.share_by_epoch.values()]))
            if summary.unlabelled_classes:
                table.add_row("", f"unlabelled: {', '.join(map(_cell, summary.unlabelled_classes))}")
            if summary.problems:
                table.add_row("", f"{counted(summary.problems, 'annotation problem')} handled, see lit-loader index")
            if summary.num_left_out:
                table.add_row("", f"{summary.num_left_out} left out")
            if summary.num_crowd:
                table.add_row("", f"{counted(summary.num_crowd, 'crowd region')} left out")
        table.add_section()
        previous = summary.name
    # A fixed width, so that the text does not depend on the terminal.
    stream = io.StringIO()
    Console(file=stream, width=100, markup=False).print(table)
    return stream.getvalue().rstrip()


def _epochs_text(by_epoch: Mapping[int, object]) -> str:
    """Return the epochs of a schedule as text, such as ``epochs 0 → 10``."""
    return f"epochs {' → '.join(map(str, by_epoch))}"


def _course(shares: Sequence[float]) -> str:
    return " → ".join(f"{share:.1%}" for share in shares)


def _cell(name: str) -> str:
    """Return a name from a file as one line of text without control characters."""
    # A terminal would obey control characters, and a line break would tear the table apart.
    return printable(name).replace("\n", "\\n")
