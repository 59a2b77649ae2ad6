"""Statistics of a data set, computed from annotation tables without opening images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lit_loader.annotations import AnnotationTable, image_labels
from lit_loader.annotations.figures import figures_of
from lit_loader.annotations.quadrangles import smallest_rectangles
from lit_loader.types import IndexArray

__all__ = [
    "AREA_LIMITS",
    "CoOccurrence",
    "DatasetStatistics",
    "Distribution",
    "Geometry",
    "MEASURES",
    "Measure",
    "QUANTILES",
    "SetStatistics",
    "has_log_bins",
    "statistics_of",
]

_Floats: TypeAlias = npt.NDArray[np.float64]

AREA_LIMITS: Final = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, np.inf)}
"""Areas in square pixels, from the first limit up to but without the second.

Source:
    Lin et al. 2014, Microsoft COCO, and the detection task's definition of AP for small, medium and large objects.
"""

QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Quantiles of a `Distribution`."""

_MAX_BINS: Final = 40
_MIN_LOG_RATIO: Final = 8
_NUM_CELLS: Final = 32  # of the grid of box centres, along each side
_NUM_SIZES: Final = 10
_MAX_CLASSES: Final = 20  # of the matrix of co-occurrence
_IMAGES_AT_ONCE: Final = 2**15


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Quantiles and histogram of a measure.

    Attributes:
        num_values: Number of values, at least 1.
        mean: Arithmetic mean.
        quantiles: float64 ``(7,)``, the values at `QUANTILES`.
        edges: float64 ``(B + 1,)``, limits of the bins, the same for all sets.
        counts: int64 ``(B,)``, values in each bin.
    """

    num_values: int
    mean: float
    quantiles: _Floats
    edges: _Floats
    counts: IndexArray

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "num_values": self.num_values,
            "mean": self.mean,
            "quantiles": {f"{share:g}": value for share, value in zip(QUANTILES, self.quantiles.tolist(), strict=True)},
            "edges": self.edges.tolist(),
            "counts": self.counts.tolist(),
        }


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of images and boxes of a set, which are computed once for all measures.

    Attributes:
        table: The set.
        sizes: float64 ``(n, 2)``, width and height of the images whose size is known.
        image_sides: float64 ``(num_objects, 2)``, width and height of each object's image, 0 if unknown.
        sides: float64 ``(num_objects, 2)``, width and height of each object's box.
        has_box: bool ``(num_objects,)``, True for a box with an area. False for all if every box is its whole image:
            classes of whole images are stored with such boxes, and their statistics would repeat the image sizes.
        box_sides: float64 ``(m, 2)``, ``sides`` of the objects with ``has_box``.
    """

    table: AnnotationTable
    sizes: _Floats
    image_sides: _Floats
    sides: _Floats
    has_box: npt.NDArray[np.bool_]
    box_sides: _Floats

    @classmethod
    def of(cls, table: AnnotationTable) -> Geometry:
        """Compute the geometry of a set."""
        sizes = np.stack([table.widths, table.heights], axis=1).astype(np.float64)
        image_sides = sizes[table.image_of_object()]
        # float64, because the product of two sides may exceed float32.
        boxes = table.boxes.astype(np.float64)
        sides = boxes[:, 2:] - boxes[:, :2]
        has_box = np.logical_and(sides[:, 0] > 0, sides[:, 1] > 0)
        # Half a pixel, since formats that count pixels from 1 or write fractions may miss an edge.
        if (np.abs(boxes[:, :2]) < 0.5).all() and (np.abs(boxes[:, 2:] - image_sides) < 0.5).all():
            has_box = np.zeros_like(has_box)
        return cls(
            table=table,
            sizes=sizes[(sizes > 0).all(axis=1)],
            image_sides=image_sides,
            sides=sides,
            has_box=has_box,
            box_sides=sides[has_box],
        )


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of each image or object.

    Attributes:
        title: Name for people.
        rows: The rows of the table that it is a number of.
        unit: Unit, or an empty text.
        log_scale: True if only positive values count, and wide histograms have bins of equal ratio.
        values: Function of the geometry of a set that returns the values, without unknown ones.
    """

    title: str
    rows: Literal["images", "objects"]
    unit: str = ""
    log_scale: bool = True
    values: Callable[[Geometry], npt.NDArray[Any]]

    @property
    def label(self) -> str:
        """Title with the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


def _relative_sides(geometry: Geometry) -> _Floats:
    image_areas = geometry.image_sides.prod(axis=1)
    is_known = geometry.has_box & (image_areas > 0)
    sides: _Floats = np.sqrt(geometry.sides[is_known].prod(axis=1) / image_areas[is_known])
    return sides


def _normalization_distances(geometry: Geometry) -> _Floats:
    """Return the distance between the points of the normalization pair of each object that has both."""
    table = geometry.table
    if table.normalization_pair is None or table.keypoints is None or table.visibility is None:
        return np.zeros(0)
    pair = list(table.normalization_pair)
    points = table.keypoints[:, pair].astype(np.float64)[(table.visibility[:, pair] > 0).all(axis=1)]
    distances: _Floats = np.hypot(*(points[:, 0] - points[:, 1]).T)
    return distances


def _angles(geometry: Geometry) -> _Floats:
    """Return the angles of the oriented boxes, in (-180, 180] degrees."""
    rows = np.flatnonzero(geometry.table.has_orientation())
    angles: _Floats = smallest_rectangles(geometry.table.oriented_corners(rows))[:, 4]
    return angles


MEASURES: Final[Mapping[str, Measure]] = {
    "image_width": Measure(title="image width", rows="images", unit="px", values=lambda g: g.sizes[:, 0]),
    "image_height": Measure(title="image height", rows="images", unit="px", values=lambda g: g.sizes[:, 1]),
    "image_megapixels": Measure(
        title="image size", rows="images", unit="megapixels", values=lambda g: g.sizes.prod(axis=1) / 1e6
    ),
    "image_aspect_ratio": Measure(
        title="image width / height", rows="images", values=lambda g: g.sizes[:, 0] / g.sizes[:, 1]
    ),
    "objects_per_image": Measure(
        title="objects an image", rows="images", log_scale=False, values=lambda g: np.diff(g.table.offsets)
    ),
    "box_width": Measure(title="box width", rows="objects", unit="px", values=lambda g: g.box_sides[:, 0]),
    "box_height": Measure(title="box height", rows="objects", unit="px", values=lambda g: g.box_sides[:, 1]),
    "box_side": Measure(
        title="square root of box area", rows="objects", unit="px", values=lambda g: np.sqrt(g.box_sides.prod(axis=1))
    ),
    "box_relative_side": Measure(title="square root of box area / image area", rows="objects", values=_relative_sides),
    "box_aspect_ratio": Measure(
        title="box width / height", rows="objects", values=lambda g: g.box_sides[:, 0] / g.box_sides[:, 1]
    ),
    "box_angle": Measure(
        title="angle of oriented boxes", rows="objects", unit="degrees", log_scale=False, values=_angles
    ),
    "normalization_distance": Measure(
        title="distance of the normalization pair", rows="objects", unit="px", values=_normalization_distances
    ),
}
"""Measures by name. Boxes count if they have an area, and not at all in a set where every box is its whole image."""


@dataclass(frozen=True, kw_only=True)
class SetStatistics:
    """Statistics of one set.

    Attributes:
        figures: Counts of images, objects, classes, attributes, points and flags, see `figures_of`.
        distributions: The `MEASURES` that the set has values of, by name.
        image_sizes: Width, height and number of images of the most frequent sizes, at most ten, by frequency.
        num_image_sizes: Number of different sizes.
        area_counts: int64 ``(num_classes, 3)``, objects of each class whose area is small, medium and large according
            to `AREA_LIMITS`: the annotated area (in COCO the area of the mask), or the area of the box.
        median_sides: float64 ``(num_classes,)``, median square root of the box areas of each class in pixels, NaN for a
            class without boxes.
        centres: int64 ``(32, 32)``, number of box centres in each cell of a grid over the image, the top row first.
        num_centres_outside: Number of boxes whose centre is outside of its image.
        points_outside: int64 ``(num_points,)``, objects whose point is outside of its image.
    """

    figures: Mapping[str, Any]
    distributions: Mapping[str, Distribution]
    image_sizes: tuple[tuple[int, int, int], ...]
    num_image_sizes: int
    area_counts: IndexArray
    median_sides: _Floats
    centres: IndexArray
    num_centres_outside: int
    points_outside: IndexArray

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data: classes and points by name, None for an unknown median."""
        classes = list(self.figures["classes"])
        areas = [dict(zip(AREA_LIMITS, counts, strict=True)) for counts in self.area_counts.tolist()]
        sides = [None if np.isnan(side) else side for side in self.median_sides.tolist()]
        return {
            "figures": dict(self.figures),
            "distributions": {name: distribution.to_dict() for name, distribution in self.distributions.items()},
            "image_sizes": [
                {"width": width, "height": height, "images": count} for width, height, count in self.image_sizes
            ],
            "num_image_sizes": self.num_image_sizes,
            "areas": dict(zip(classes, areas, strict=True)),
            "median_sides": dict(zip(classes, sides, strict=True)),
            "centres": self.centres.tolist(),
            "num_centres_outside": self.num_centres_outside,
            "points_outside": dict(zip(self.figures["keypoints"], self.points_outside.tolist(), strict=True)),
        }


@dataclass(frozen=True, kw_only=True)
class CoOccurrence:
    """Numbers of images that contain two classes, for the classes in most images.

    Attributes:
        class_names: The classes, at most 20, the most frequent first.
        images: int64 ``(K, K)``, images of all sets that contain both classes; the diagonal counts each class.
        num_images: Number of images of all sets.
    """

    class_names: tuple[str, ...]
    images: IndexArray
    num_images: int

    @property
    def lift(self) -> _Floats:
        """Number of images with both classes over the number expected of independent classes, float64 ``(K, K)``.

        1 means independent classes; 0 classes that exclude each other.

        Source:
            Brin et al. 1997, "Dynamic itemset counting and implication rules for market basket data", which calls it
            interest.
        """
        counts = np.diag(self.images).astype(np.float64)
        lift: _Floats = self.images * max(1, self.num_images) / np.maximum(1, np.outer(counts, counts))
        return lift

    def pairs(self, num_pairs: int) -> list[tuple[str, str, int, float]]:
        """Return the two classes, the number of images and the lift of the pairs in most images."""
        rows, columns = np.triu_indices(len(self.class_names), k=1)
        images = self.images[rows, columns]
        lift = self.lift[rows, columns]
        # Stable, so equal counts keep the order of the classes.
        places = np.argsort(-images, kind="stable")[:num_pairs]
        return [
            (self.class_names[rows[i]], self.class_names[columns[i]], int(images[i]), float(lift[i]))
            for i in places
            if images[i] > 0
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "class_names": list(self.class_names),
            "images": self.images.tolist(),
            "lift": self.lift.tolist(),
            "num_images": self.num_images,
        }


@dataclass(frozen=True, kw_only=True)
class DatasetStatistics:
    """Statistics of the sets of a data set.

    Attributes:
        sets: Statistics of each set by its name.
        co_occurrence: Numbers of images that contain two classes, all sets together.
    """

    sets: Mapping[str, SetStatistics]
    co_occurrence: CoOccurrence

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "sets": {name: statistics.to_dict() for name, statistics in self.sets.items()},
            "co_occurrence": self.co_occurrence.to_dict(),
        }


def statistics_of(tables: Mapping[str, AnnotationTable]) -> DatasetStatistics:
    """Return the statistics of the sets of a data set, without opening images.

    Time and memory grow with images and objects, not with images times classes; a million objects take about 1 s.

    Args:
        tables: Table of each set by its name, with the same class names.

    Raises:
        ValueError: If ``tables`` is empty, or class names differ.
    """
    if not tables:
        raise ValueError("tables is empty; give at least one table, such as {'train': table}")
    names = {name: table.class_names for name, table in tables.items()}
    for name, class_names in names.items():
        if class_names != next(iter(names.values())):
            raise ValueError(
                f"the set {name!r} has the classes {class_names}, and {next(iter(names))!r} has "
                f"{next(iter(names.values()))}; give both the same names, see lit_loader.annotations.with_same_names"
            )
    geometries = {name: Geometry.of(table) for name, table in tables.items()}
    distributions: dict[str, dict[str, Distribution]] = {name: {} for name in tables}
    for measure_name, measure in MEASURES.items():
        # All sets share their bins, so that histograms can be compared.
        values = {name: _countable(measure, geometry) for name, geometry in geometries.items()}
        edges = _edges(measure, values)
        for name, set_values in values.items():
            if len(set_values):
                distributions[name][measure_name] = _distribution(set_values, edges)
    return DatasetStatistics(
        sets={name: _set_statistics(geometry, distributions[name]) for name, geometry in geometries.items()},
        co_occurrence=_co_occurrence(list(tables.values())),
    )


def _countable(measure: Measure, geometry: Geometry) -> _Floats:
    values = measure.values(geometry).astype(np.float64)
    return values[values > 0] if measure.log_scale else values


def _edges(measure: Measure, values: Mapping[str, _Floats]) -> _Floats:
    """Return limits of bins that contain the values of all sets."""
    all_limits = [limit for part in values.values() if len(part) for limit in (part.min(), part.max())]
    if not all_limits:
        return np.zeros(0)
    low = min(all_limits)
    high = max(all_limits)
    # Rice's rule (Terrell and Scott 1985): few values in many bins would be a row of spikes.
    num_bins = min(_MAX_BINS, math.ceil(2 * max(map(len, values.values())) ** (1 / 3)))
    is_whole = high < 2**31 and all((part == np.rint(part)).all() for part in values.values())
    if not is_whole and low == high:
        margin = 0.1 * abs(low)
        return np.array([low - margin, high + margin])
    if has_log_bins(measure, low, high):
        edges = np.geomspace(low, high, num_bins + 1)
        # Bins narrower than 1 would contain a whole number or none in turns.
        edges = np.unique(np.rint(edges)) - 0.5 if is_whole else edges
    elif is_whole:
        step = -(-(int(high - low) + 1) // num_bins)
        edges = np.arange(low, high + 1 + step, step) - 0.5
    else:
        edges = np.linspace(low, high, num_bins + 1)
    # Rounding must not exclude the smallest and the largest value.
    edges[0] = min(low, edges[0])
    edges[-1] = max(high + 0.5 * is_whole, edges[-1])
    return edges


def has_log_bins(measure: Measure, low: float, high: float) -> bool:
    """Return True if the bins between two limits have equal ratios, not equal widths."""
    return measure.log_scale and high / low >= _MIN_LOG_RATIO


def _distribution(values: _Floats, edges: _Floats) -> Distribution:
    return Distribution(
        num_values=len(values),
        mean=float(values.mean()),
        quantiles=np.quantile(values, QUANTILES),
        edges=edges,
        counts=np.histogram(values, edges)[0].astype(np.int64),
    )


def _set_statistics(geometry: Geometry, distributions: Mapping[str, Distribution]) -> SetStatistics:
    table = geometry.table
    sizes, counts = np.unique(geometry.sizes.astype(np.int64), axis=0, return_counts=True)
    most_frequent = np.argsort(-counts, kind="stable")[:_NUM_SIZES]
    has_box = geometry.has_box
    areas = geometry.sides.prod(axis=1)
    labels = table.labels[has_box]
    centres, num_centres_outside = _centres(geometry)
    return SetStatistics(
        figures=figures_of(table),
        distributions=distributions,
        image_sizes=tuple((*sizes[i].tolist(), int(counts[i])) for i in most_frequent),
        num_image_sizes=len(sizes),
        area_counts=_area_counts(table, areas, has_box),
        median_sides=_medians(np.sqrt(areas[has_box]), labels, table.num_classes),
        centres=centres,
        num_centres_outside=num_centres_outside,
        points_outside=_points_outside(geometry),
    )


def _area_counts(table: AnnotationTable, box_areas: _Floats, has_box: npt.NDArray[np.bool_]) -> IndexArray:
    areas = box_areas if table.areas is None else np.where(np.isnan(table.areas), box_areas, table.areas)
    limits = [low for low, _ in AREA_LIMITS.values()]
    sizes = np.digitize(areas[has_box], limits) - 1
    cells = table.labels[has_box] * len(limits) + sizes
    counts = np.bincount(cells, minlength=table.num_classes * len(limits))
    return counts.astype(np.int64).reshape(table.num_classes, len(limits))


def _medians(values: _Floats, labels: IndexArray, num_classes: int) -> _Floats:
    """Return the median of the values of each label, NaN for a label without values."""
    # Sorted by label and then by value, so the median is in the middle of each label's part.
    ordered = values[np.lexsort((values, labels))]
    counts = np.bincount(labels, minlength=num_classes)
    starts = np.cumsum(counts) - counts
    medians = np.full(num_classes, np.nan)
    present = np.flatnonzero(counts)
    lower = ordered[starts[present] + (counts[present] - 1) // 2]
    upper = ordered[starts[present] + counts[present] // 2]
    medians[present] = (lower + upper) / 2
    return medians


def _centres(geometry: Geometry) -> tuple[IndexArray, int]:
    """Return the number of box centres in each cell of a grid over the image, and of centres outside."""
    image_sides = geometry.image_sides
    is_known = geometry.has_box & (image_sides > 0).all(axis=1)
    boxes = geometry.table.boxes[is_known].astype(np.float64)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2 / image_sides[is_known]
    is_inside = ((centres >= 0) & (centres <= 1)).all(axis=1)
    # A centre on the right or lower edge belongs to the last cell.
    cells = np.minimum((centres[is_inside] * _NUM_CELLS).astype(np.int64), _NUM_CELLS - 1)
    counts = np.bincount(cells[:, 1] * _NUM_CELLS + cells[:, 0], minlength=_NUM_CELLS**2)
    return counts.astype(np.int64).reshape(_NUM_CELLS, _NUM_CELLS), int((~is_inside).sum())


def _points_outside(geometry: Geometry) -> IndexArray:
    table = geometry.table
    if table.keypoints is None or table.visibility is None:
        return np.zeros(0, dtype=np.int64)
    sides = geometry.image_sides[:, None]
    is_outside = ((table.keypoints < 0) | (table.keypoints > sides)).any(axis=2)
    is_known = (sides > 0).all(axis=2)
    counts: IndexArray = (is_outside & is_known & (table.visibility > 0)).sum(axis=0)
    return counts


def _co_occurrence(tables: list[AnnotationTable]) -> CoOccurrence:
    label_sets = [image_labels(table) for table in tables]
    class_names = tables[0].class_names
    counts = sum(np.bincount(part.classes, minlength=len(class_names)) for part in label_sets)
    classes = np.argsort(-np.asarray(counts), kind="stable")[:_MAX_CLASSES]
    classes = classes[np.asarray(counts)[classes] > 0]
    positions = np.full(len(class_names), -1)
    positions[classes] = np.arange(len(classes))
    images = np.zeros((len(classes), len(classes)), dtype=np.int64)
    for offsets, labels in label_sets:
        num_images = len(offsets) - 1
        # A matrix of some images at once, because one of all images may not fit into memory.
        for start in range(0, num_images, _IMAGES_AT_ONCE):
            stop = min(start + _IMAGES_AT_ONCE, num_images)
            columns = positions[labels[offsets[start] : offsets[stop]]]
            rows = np.repeat(np.arange(stop - start), np.diff(offsets[start : stop + 1]))
            # float32 counts up to 2**24 exactly, and its product is much faster than one of integers.
            contains = np.zeros((stop - start, len(classes)), dtype=np.float32)
            contains[rows[columns >= 0], columns[columns >= 0]] = 1
            images += (contains.T @ contains).astype(np.int64)
    return CoOccurrence(
        class_names=tuple(class_names[c] for c in classes),
        images=images,
        num_images=sum(table.num_images for table in tables),
    )
