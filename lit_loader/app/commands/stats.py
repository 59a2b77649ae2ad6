"""``lit-loader stats``: distributions of a data set, and the effect of samplers and batchings on its training set."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.parallel import status_spinner
from lit_loader.app.commands.index import unique_stems
from lit_loader.app.commands.next_command import splits_by_stage
from lit_loader.app.commands.packed_sets import read_packed_sets
from lit_loader.app.commands.printing import print_lines, print_table
from lit_loader.app.commands.reading import named_splits, read_sets
from lit_loader.app.commands.settings import UsageError, parse_value
from lit_loader.datasets.samples import labelled_samples, landmark_samples
from lit_loader.errors import SettingError
from lit_loader.foundation.escaping import hydra_value, shell_command
from lit_loader.foundation.files import new_file
from lit_loader.inspection.page import Page
from lit_loader.inspection.statistics import AREA_LIMITS, MEASURES, DatasetStatistics, statistics_of
from lit_loader.inspection.statistics_plots import ShownClasses, draw_sampling, draw_statistics, figure_bytes
from lit_loader.inspection.statistics_sampling import (
    BATCHINGS,
    SAMPLERS,
    BatchShape,
    SamplingStatistics,
    for_table,
    sampling_statistics,
)

__all__ = ["stats"]

_PICTURE_ENDINGS: Final = ("png", "svg", "pdf")
_NUM_PAIRS: Final = 10
_NUM_SIZES: Final = 5
_MAX_CLASSES: Final = 20
_MAX_POINTS: Final = 10
_MAX_PAGE_CLASSES: Final = 200
# A smaller change of a class's share does not balance, and a smaller excess over the even share needs no balance.
_NOTICEABLE_CHANGE: Final = 0.05


class _Table(NamedTuple):
    """A table for the terminal and the page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def stats(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument is wrong.
        AnnotationError: If the annotations cannot be used.
        ValueError: If the training set lacks the attribute to balance, or the samples.
    """
    # Wrong arguments are reported before the annotations are read, which may take minutes.
    picture_format = _picture_format(arguments.out)
    batch = _batch_shape(arguments)
    samplers = _configs(arguments.sampler, "sampler", SAMPLERS, shared=_balance_by(arguments))
    batchings = {} if arguments.samples == "object" else _configs(arguments.batching, "batching", BATCHINGS)
    splits = named_splits(arguments)
    reading = None
    if arguments.format == "packed":
        tables, reading = read_packed_sets(arguments, splits)
    else:
        tables = read_sets(arguments, splits)
    # A set read from train.txt is the training set of a run.
    stems = unique_stems(splits)
    train = stems[str(splits_by_stage(stems)["train"])]
    with status_spinner("Computing statistics", progress=arguments.progress):
        statistics = statistics_of(tables)
        samples = _samples(tables[train], arguments.samples)
        # Without shards, block order is a problem only to users who ask for it.
        if not any("block_shuffle" in text for text in arguments.sampler):
            samplers = for_table(samplers, samples)
        sampling = sampling_statistics(
            samples, samplers, batchings, batch=batch, attribute=arguments.balance_by, reading=reading
        )
    if arguments.json:
        report = {"format": arguments.format, "root": arguments.root, **statistics.to_dict()}
        print_lines(json.dumps({**report, "training_set": train, "sampling": sampling.to_dict()}, indent=1))
    else:
        for table in [*_set_tables(statistics), *_sampling_tables(sampling, train, arguments)]:
            print_table(*table)
        print_lines(*_notes(sampling, statistics.sets[train].figures, arguments))
    if picture_format is not None:
        with new_file(Path(arguments.out), mode=0o666) as file:
            file.write(figure_bytes(draw_statistics(statistics, sampling), picture_format))
    if arguments.page is not None:
        _page(statistics, sampling, train, arguments).save(arguments.page)
    if not arguments.json:
        print_lines(*(f"wrote {path}" for path in (arguments.out, arguments.page) if path is not None))


# -- arguments ---------------------------------------------------------------------------------------------


def _picture_format(path: str | None) -> str | None:
    """Return the format of the picture, or None without a picture."""
    if path is None:
        return None
    file_format = Path(path).suffix[1:].lower()
    if file_format not in _PICTURE_ENDINGS:
        raise UsageError(f"--out {path!r} must end in one of {', '.join(_PICTURE_ENDINGS)}; for a page, give --page")
    return file_format


def _batch_shape(arguments: argparse.Namespace) -> BatchShape:
    settings = {name: getattr(arguments, name) for name in BatchShape.__dataclass_fields__ if name in arguments}
    names = [*settings, *(["batching"] if arguments.batching else [])]
    if arguments.samples == "object" and names:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise UsageError(f"{options}: objects that are cut out get one size, without padding; leave it out")
    # The preset, too, takes either alone, and then the other is null.
    if len(settings.keys() & {"size", "max_size"}) == 1:
        settings = {"size": None, "max_size": None, **settings}
    try:
        return BatchShape(**settings)
    except SettingError as error:
        raise UsageError(str(error)) from None


def _balance_by(arguments: argparse.Namespace) -> dict[str, Any]:
    return {} if arguments.balance_by is None else {"balance_by": arguments.balance_by}


def _configs(
    texts: Sequence[str], group: str, types: Mapping[str, Any], *, shared: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the configs of a group by their overrides: all with defaults, then the ones of the command line.

    Args:
        texts: Configs of the command line, such as ``"class_balanced exponent=0.5"``.
        group: Name of the config group.
        types: Config classes by name.
        shared: Settings of every config that takes them.
    """
    configs = {}
    for text in [*types, *texts]:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--{group} {text!r}: {error}; quote values as in a shell") from None
        name = words[0] if words else ""
        if name not in types:
            raise UsageError(f"--{group} {text!r}: unknown {group} {name!r}; choose one of {', '.join(types)}")
        pairs = [word.partition("=") for word in words[1:]]
        defaults = {key: value for key, value in (shared or {}).items() if key in types[name].__dataclass_fields__}
        settings = {**defaults, **{key: parse_value(value) for key, _, value in pairs}}
        try:
            config = types[name](**settings)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--{group} {text!r}: {error}") from None
        override = [f"{group}={name}", *(f"{group}.{key}={hydra_value(value)}" for key, value in settings.items())]
        configs[shell_command(override)] = config
    return configs


def _samples(table: AnnotationTable, unit: str) -> AnnotationTable:
    """Return the training samples of a table: whole images without crowds, or objects cut out of their images."""
    if unit == "image":
        return table.without_crowds()
    if table.keypoints is not None:
        return landmark_samples(table.without_crowds()).table
    return labelled_samples(table.without_crowds(), sample_unit="object").table


# -- tables of the sets ------------------------------------------------------------------------------------


def _set_tables(statistics: DatasetStatistics) -> Iterator[_Table]:
    sets = statistics.sets
    rows = []
    for name, measure in MEASURES.items():
        quantiles = {
            set_name: part.distributions[name].quantiles
            for set_name, part in sets.items()
            if name in part.distributions
        }
        # A single value of all sets, such as the size of the images, needs only one row.
        if len(quantiles) > 1 and len(np.unique([*quantiles.values()])) == 1:
            quantiles = {"all": next(iter(quantiles.values()))}
        for set_name, values in quantiles.items():
            low, q05, _, median, _, q95, high = values.tolist()
            rows.append((measure.label, set_name, *map(_number, (low, q05, median, q95, high))))
    if rows:
        yield _Table("distributions", ("measure", "set", "smallest", "5 %", "median", "95 %", "largest"), rows)
    rows = []
    for set_name, part in sets.items():
        counts = part.area_counts.sum(axis=0)
        if counts.any():
            shares = [f"{count} ({count / counts.sum():.1%})" for count in counts.tolist()]
            rows.append((set_name, *shares, str(part.num_centres_outside)))
    if rows:
        title = "objects by area: small below 32\u00b2, large from 96\u00b2 square pixels, as in COCO's evaluation"
        yield _Table(title, ("set", *AREA_LIMITS, "centre outside"), rows)
    rows = [
        (set_name, f"{width} x {height}", str(count), f"{count / part.figures['images']:.1%}")
        for set_name, part in sets.items()
        for width, height, count in part.image_sizes[:_NUM_SIZES]
    ]
    if rows:
        counts_text = ", ".join(f"{part.num_image_sizes} in {set_name}" for set_name, part in sets.items())
        yield _Table(f"most frequent image sizes ({counts_text})", ("set", "width x height", "images", "share"), rows)
    rows = [(a, b, str(images), f"{lift:.2f}") for a, b, images, lift in statistics.co_occurrence.pairs(_NUM_PAIRS)]
    if rows:
        title = "classes in the same image, all sets; lift: images over those expected of independent classes"
        yield _Table(title, ("class", "class", "images", "lift"), rows)
    outside: list[tuple[int, str, str]] = []
    for set_name, part in sets.items():
        counts = part.points_outside.tolist()
        outside += [(n, set_name, name) for n, name in zip(counts, part.figures["keypoints"], strict=True) if n]
    if outside:
        outside.sort(key=lambda row: -row[0])
        title = "points outside of their image" + (", most" if len(outside) > _MAX_POINTS else "")
        yield _Table(title, ("set", "point", "objects"), [(s, p, str(n)) for n, s, p in outside[:_MAX_POINTS]])


# -- tables of samplers ------------------------------------------------------------------------------------


def _sampling_tables(sampling: SamplingStatistics, train: str, arguments: argparse.Namespace) -> Iterator[_Table]:
    units = _units(arguments)
    columns = ("override", "samples an epoch", "most repeats", "unseen", "share empty")
    rows = [
        (
            override,
            str(part.num_samples),
            str(part.max_repeats),
            f"{part.num_unseen / max(1, sampling.num_images):.1%}",
            _percent(part.empty_share),
        )
        for override, part in sampling.samplers.items()
    ]
    if rows:
        yield _Table(
            f"samplers of {train}: {sampling.num_images} {units}, {sampling.empty_share:.1%} empty", columns, rows
        )
    if any(part.shuffle is not None for part in sampling.samplers.values()):
        yield _shuffle_table(sampling)
    if len(set(_padding_shares(sampling))) > 1:
        yield _padding_table(sampling)
    if sampling.changed_mixes:
        yield _mix_table(sampling, arguments.balance_by)


def _padding_table(sampling: SamplingStatistics) -> _Table:
    batchings = [*next(iter(sampling.samplers.values())).padding]
    rows = [(name, *map(_percent, part.padding.values())) for name, part in sampling.samplers.items()]
    title = f"padded share of the pixels, {_batch_text(sampling.batch)}"
    return _Table(title, ("override", *batchings), rows)


def _mix_table(sampling: SamplingStatistics, attribute: str | None) -> _Table:
    classes = ShownClasses.of(sampling.class_mix, _MAX_CLASSES)
    mixes = sampling.changed_mixes
    rows = [
        (
            sampling.class_names[c],
            _percent(float(sampling.class_mix[c])),
            *(_percent(float(mix[c])) for mix in mixes.values()),
        )
        for c in classes.ids
    ]
    title = "expected share in an epoch"
    title += f" ({classes.note})" if classes.note else ""
    # The heading of the first column names the attribute that all samplers balance.
    shared = "" if attribute is None else f" {shell_command([f'sampler.balance_by={hydra_value(attribute)}'])}"
    names = [override.partition("=")[2].replace(shared, "").replace(" sampler.", " ") for override in mixes]
    return _Table(title, ("class" if attribute is None else attribute, "annotated", *names), rows)


def _shuffle_table(sampling: SamplingStatistics) -> _Table:
    """Return the measures of shuffles of images in shards, each with its value for a full shuffle in brackets."""
    rows = []
    for override, part in sampling.samplers.items():
        if (shuffle := part.shuffle) is not None:
            row = [
                override,
                f"{shuffle.score:.3f}",
                f"{shuffle.same_shard:.2%} ({shuffle.same_shard_shuffled:.2%})",
                f"{shuffle.class_deviation:.2%} ({shuffle.class_deviation_shuffled:.2%})",
                f"{shuffle.epoch_correlation:.3f} ({shuffle.epoch_correlation_shuffled:.3f})",
            ]
            rows.append([*row, *([] if part.requests is None else [f"{part.requests:.2g}"])])
    columns = ["override", "score", "pairs of a shard", "class deviation", "epoch correlation"]
    # Without a store the column would be empty.
    columns += ["requests an image"] if len(rows[0]) > len(columns) else []
    title = f"quality of the shuffle, batches of {sampling.batch.batch_size} (in brackets: full shuffle)"
    return _Table(title, columns, rows)


def _padding_shares(sampling: SamplingStatistics) -> list[str]:
    """Return the known shares of padding as texts, of all samplers and batchings."""
    shares = [share for part in sampling.samplers.values() for share in part.padding.values()]
    return [_percent(share) for share in shares if share is not None]


def _mix_notes(sampling: SamplingStatistics, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield why no sampler of whole images balances the classes, if they are not balanced as annotated."""
    present = sampling.class_mix[sampling.class_mix > 0]
    if not len(present) or present.max() < 1 / len(present) + _NOTICEABLE_CHANGE:
        return
    mixes = [part.class_mix for part in sampling.samplers.values() if part.class_mix is not None]
    if not mixes or max(np.abs(mix - sampling.class_mix).max() for mix in mixes) >= _NOTICEABLE_CHANGE:
        return
    name = sampling.class_names[int(sampling.class_mix.argmax())]
    share = figures["classes"][name]["images"] / figures["images"]
    yield (
        f"no sampler changes the share of a class by {_NOTICEABLE_CHANGE:.0%} or more: {share:.0%} of the images "
        f"contain {name}, so drawing whole images cannot balance the classes; mixing=copy_paste "
        "mixing.copy_paste.class_weights=balanced pastes objects of rare classes, and a classifier of objects "
        "(--samples object) draws each object alone"
    )


def _notes(sampling: SamplingStatistics, figures: Mapping[str, Any], arguments: argparse.Namespace) -> Iterator[str]:
    units = _units(arguments)
    if arguments.samples == "image" and arguments.balance_by is None:
        yield from _mix_notes(sampling, figures)
    shares_of_padding = _padding_shares(sampling)
    if len(set(shares_of_padding)) == 1:
        share = shares_of_padding[0]
        yield f"padding: {share} of the pixels with all samplers and batchings, {_batch_text(sampling.batch)}"
    if any(part.shuffle is not None for part in sampling.samplers.values()):
        yield "score: 1 as a full shuffle, 0 if each batch is from one shard; see BlockShuffleSampler for settings"
    yield f"unseen: {units} that an epoch does not contain, mean of {sampling.num_epochs} epochs with seed 0"
    shares = "the shares of " + ("the classes" if arguments.balance_by is None else arguments.balance_by)
    unchanged = [name for name, part in sampling.samplers.items() if part.class_mix is not None]
    unchanged = [name for name in unchanged if name not in sampling.changed_mixes]
    if unchanged:
        yield f"{shares} stay as annotated with {', '.join(unchanged)}"
    unknown = [name for name, part in sampling.samplers.items() if part.class_mix is None]
    if unknown:
        yield f"{shares} have no closed form with {', '.join(unknown)}"
    for override, problem in sampling.problems.items():
        yield f"{override} does not fit: {problem}"
    if sampling.num_unknown_sizes and arguments.samples == "image":
        yield f"no padding: the sizes of {sampling.num_unknown_sizes} images are unknown"


def _units(arguments: argparse.Namespace) -> str:
    return "images" if arguments.samples == "image" else "objects"


def _batch_text(batch: BatchShape) -> str:
    resize = "images keep their size"
    if batch.size is not None:
        resize = f"shorter side {batch.size}"
        resize += "" if batch.max_size is None else f", longer at most {batch.max_size}"
    elif batch.max_size is not None:
        resize = f"longer side {batch.max_size}"
    return f"batches of {batch.batch_size}, {resize}, rounded up to multiples of {batch.size_divisor}"


def _percent(share: float | None) -> str:
    if share is None:
        return "n/a"
    # A rare class must not look absent.
    return f"{share:.1%}" if share >= 0.001 or share == 0 else f"{share:.2g}".replace("e-0", "e-")


def _number(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


# -- page --------------------------------------------------------------------------------------------------


def _count_tables(statistics: DatasetStatistics) -> Iterator[_Table]:
    """Yield the counts of classes and flags, which a page has in one place; on a terminal ``index`` prints them."""
    sets = statistics.sets
    names = [*next(iter(sets.values())).figures["classes"]]
    objects = {
        set_name: [row["objects"] for row in part.figures["classes"].values()] for set_name, part in sets.items()
    }
    areas = np.sum([part.area_counts for part in sets.values()], axis=0)
    classes = ShownClasses.of(np.sum([*objects.values()], axis=0), _MAX_PAGE_CLASSES)
    rows = []
    for c in classes.ids:
        medians = [part.median_sides[c] for part in sets.values()]
        sides = ["" if np.isnan(side) else _number(side) for side in medians]
        rows.append((names[c], *(str(part[c]) for part in objects.values()), *map(str, areas[c].tolist()), *sides))
    columns = ("class", *(f"objects, {set_name}" for set_name in sets), *AREA_LIMITS)
    columns += tuple(f"median side in px, {set_name}" for set_name in sets)
    if rows:
        yield _Table("classes" + (f" ({classes.note})" if classes.note else ""), columns, rows)
    flags = dict.fromkeys(flag for part in sets.values() for flag in part.figures["flags"])
    if flags:
        rows = [(flag, *(str(part.figures["flags"].get(flag, 0)) for part in sets.values())) for flag in flags]
        yield _Table("objects with a flag", ("flag", *sets), rows)


def _page(
    statistics: DatasetStatistics, sampling: SamplingStatistics, train: str, arguments: argparse.Namespace
) -> Page:
    page = Page(f"Statistics of {arguments.root}")
    rows = [
        (name, part.figures["images"], part.figures["empty_images"], part.figures["objects"])
        for name, part in statistics.sets.items()
    ]
    page.add_table(("set", "images", "without objects", "objects"), rows)
    page.add_pictures([(figure_bytes(draw_statistics(statistics), "png"), "all sets")])
    for table in [*_count_tables(statistics), *_set_tables(statistics)]:
        page.add_heading(table.title, level=3)
        page.add_table(table.columns, table.rows)
    page.add_heading("Samplers and batchings")
    page.add_text("Paste an override into the command of a training run, e.g. lit-loader train ... sampler=weighted.")
    page.add_pictures([(figure_bytes(draw_sampling(sampling), "png"), f"training set {train}")])
    for table in _sampling_tables(sampling, train, arguments):
        page.add_heading(table.title, level=3)
        page.add_table(table.columns, table.rows)
    for note in _notes(sampling, statistics.sets[train].figures, arguments):
        page.add_text(note)
    return page
