"""``lit-loader show``: pictures of annotated images, of the findings of a check, and of batches of a config."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from lit_loader.annotations import AnnotationTable
from lit_loader.annotations.formats.parallel import status_spinner
from lit_loader.app.commands.packed_sets import read_with_images
from lit_loader.app.commands.printing import print_lines
from lit_loader.app.commands.reading import named_splits, read_broken_sets, read_sets
from lit_loader.app.commands.settings import UsageError, as_option, usage_errors
from lit_loader.datasets import Stage
from lit_loader.errors import AnnotationError, SettingError, message_of
from lit_loader.images import ImageReading
from lit_loader.inspection import Gallery, show_findings, show_mirrored, show_table
from lit_loader.inspection.gallery import check_ending
from lit_loader.inspection.show import object_cells, read_findings

__all__ = ["show"]

_LARGE_SIDE: Final = 1400
_NUM_IMAGES: Final = 16
_NUM_BATCHES: Final = 4
# Options by the mode that uses them, as attributes of the arguments, with the values that mean that they are absent.
_CHOICE_OPTIONS: Final = ("seed", "classes", "attributes")
_DATA_OPTIONS: Final = (
    *_CHOICE_OPTIONS,
    *("image", "split", "worst", "mirrored"),
    *("layout", "option", "policy", "class_names", "cache_dir", "num_workers"),
)
_BATCH_OPTIONS: Final = ("config_dir", "config_name", "epoch", "batch", "stage")
_OPTION_NAMES: Final = {"classes": "class", "attributes": "attribute"}
_ABSENT: Final[tuple[Any, ...]] = (None, [])


def show(arguments: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UsageError: If an argument or the config is wrong.
        AnnotationError: If the annotations cannot be used.
        OSError: If a file cannot be read or written.
    """
    path = Path(arguments.out)
    with usage_errors():
        check_ending(path)
    if arguments.num is not None and arguments.num < 1:
        raise UsageError(f"--num {arguments.num} must be at least 1")
    gallery = _annotations(arguments) if arguments.batches is None else _batches(arguments)
    paths = gallery.save(path)
    pictures = "1 picture" if len(gallery) == 1 else f"{len(gallery)} pictures"
    print_lines(f"{pictures} in {', '.join(map(str, paths))}")
    if path.suffix.lower() == ".png" and any(section.rows for section in gallery.sections):
        print_lines("the table of the objects is only in a page: --out show.html")


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], reason: str) -> None:
    """Refuse options that would have no effect."""
    for name in names:
        if getattr(arguments, name) not in _ABSENT:
            raise UsageError(f"--{_OPTION_NAMES.get(name, name).replace('_', '-')} {reason}")


# -- annotations ----------------------------------------------------------------------------------------------------


def _annotations(arguments: argparse.Namespace) -> Gallery:
    """Return pictures of the images of a data set."""
    _refuse(arguments, _BATCH_OPTIONS, "needs --batches")
    if arguments.format is None:
        raise UsageError("give DATA: a folder, or FORMAT, ROOT and NAME; or --batches with overrides of a config")
    # Before the sets are read, which may take minutes.
    if arguments.worst is not None:
        _refuse(arguments, (*_CHOICE_OPTIONS, "image", "mirrored"), "has no effect on --worst")
    if arguments.image is not None:
        _refuse(arguments, (*_CHOICE_OPTIONS, "num", "mirrored"), "has no effect on --image")
    attributes = _attributes(arguments.attributes)
    findings = None if arguments.worst is None else read_findings(Path(arguments.worst))
    splits = named_splits(arguments)
    if arguments.split is not None:
        if arguments.split not in splits:
            raise UsageError(f"--split {arguments.split!r} is not one of the sets {', '.join(splits)}")
        splits = {arguments.split: splits[arguments.split]}
    # The findings are about the sets as check reads them.
    read = read_sets if findings is None else read_broken_sets
    tables, reading = read_with_images(arguments, splits, read)
    if not any(table.num_images for table in tables.values()):
        raise AnnotationError(f"the sets {', '.join(tables)} have no images", path=arguments.root)
    if arguments.mirrored:
        tables = _with_pairs(tables)
    num_images = arguments.num or _NUM_IMAGES
    show_set = partial(show_mirrored if arguments.mirrored else show_table, num_images=num_images, reading=reading)
    with status_spinner("Drawing", progress=arguments.progress), usage_errors():
        if findings is not None:
            title = f"{arguments.root}: findings"
            return show_findings(tables, findings, num_images=num_images, reading=reading, title=title)
        if arguments.image is not None:
            return _one_image(tables, arguments.image, reading)
        gallery = Gallery(str(arguments.root))
        for split, table in tables.items():
            try:
                chosen = show_set(
                    table, seed=arguments.seed or 0, classes=arguments.classes, attributes=attributes, heading=split
                )
            except SettingError as error:
                raise UsageError(message_of(error, _as_option)) from error
            gallery.sections += chosen.sections
    if not len(gallery):
        if arguments.mirrored:
            raise UsageError("--mirrored: no such object has both points of a mirror pair; choose other objects")
        raise UsageError("no image has an object of these classes and attributes; choose others")
    return gallery


def _with_pairs(tables: dict[str, AnnotationTable]) -> dict[str, AnnotationTable]:
    """Return the sets whose points have mirror pairs, for ``--mirrored``."""
    names = ", ".join(tables)
    if not any(table.keypoint_names for table in tables.values()):
        raise UsageError(f"--mirrored needs points, and the sets {names} have none")
    if not any(table.flip_pairs for table in tables.values()):
        remedy = "give a schema with flip_pairs, as for --option schema="
        raise UsageError(f"--mirrored needs mirror pairs of points, and the sets {names} have none; {remedy}")
    return {split: table for split, table in tables.items() if table.flip_pairs and table.keypoints is not None}


def _as_option(name: str, value: Any) -> str:
    return f"--{_OPTION_NAMES[name]} {value}" if name in _OPTION_NAMES else as_option(name, value)


def _one_image(tables: dict[str, AnnotationTable], name: str, reading: ImageReading) -> Gallery:
    """Return a large picture of an image, with a table of its objects."""
    matches = [(split, row) for split, table in tables.items() for row in _rows_of_image(table, name)]
    if not matches:
        raise UsageError(
            f"--image {name!r} is in none of the sets {', '.join(tables)}; give its path below ROOT, or its id"
        )
    paths = {tables[split].image_paths[row] for split, row in matches}
    if len(paths) > 1:
        raise UsageError(f"--image {name!r} fits {len(paths)} images: {', '.join(sorted(paths)[:5])}; give the path")
    gallery = Gallery(paths.pop())
    for split, row in matches:
        table = tables[split]
        options: dict[str, Any] = {"numbered": True, "longer_side": _LARGE_SIDE, "heading": split, "reading": reading}
        (section,) = show_table(table, rows=[row], **options).sections
        section.columns, section.rows = object_cells(table, row)
        gallery.sections.append(section)
    return gallery


def _rows_of_image(table: AnnotationTable, name: str) -> list[int]:
    """Return the rows of images with a path: relative to the root, absolute, or its end; or else with an id.

    The ending of the file may be absent, as in lists of VOC.
    """
    paths = list(table.image_paths)
    names = {name, *_below(Path(name), table.root)}
    stems = [path.removesuffix(PurePosixPath(path).suffix) for path in paths]
    # The first rule that fits an image decides.
    return (
        [row for row, path in enumerate(paths) if path in names]
        or [row for row, path in enumerate(paths) if path.endswith(f"/{name}")]
        or [row for row, stem in enumerate(stems) if stem in names or stem.endswith(f"/{name}")]
        or [row for row, image_id in enumerate(table.image_ids) if image_id == name]
    )


def _below(path: Path, root: Path) -> list[str]:
    """Return a path relative to the root if it is below it."""
    absolute = path.absolute()
    return [absolute.relative_to(root).as_posix()] if absolute.is_relative_to(root) else []


def _attributes(words: list[str]) -> dict[str, str]:
    """Return the value of each attribute in NAME=VALUE."""
    attributes: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise UsageError(f"--attribute {word!r} must be NAME=VALUE")
        if name in attributes:
            raise UsageError(f"--attribute {word!r}: {name!r} has a value already; give one value for each attribute")
        attributes[name] = value
    return attributes


# -- batches --------------------------------------------------------------------------------------------------------


def _batches(arguments: argparse.Namespace) -> Gallery:
    """Return pictures of the batches of a config."""
    from lightning.pytorch import seed_everything

    from lit_loader.app.composition import build_datamodule, compose_config
    from lit_loader.app.running import config_errors
    from lit_loader.datamodules import TableDataModule
    from lit_loader.inspection import show_batches

    _refuse(arguments, _DATA_OPTIONS, "has no effect on --batches; give overrides of the config")
    for name in ("epoch", "batch"):
        if (getattr(arguments, name) or 0) < 0:
            raise UsageError(f"--{name} {getattr(arguments, name)} must be at least 0")
    stage: Stage = arguments.stage or "train"
    epoch = arguments.epoch or 0
    words = [arguments.format, arguments.root, *arguments.names]
    overrides = [*arguments.batches, *(word for word in words if word is not None)]
    original_path = list(sys.path)
    # The config may name modules in the current folder, as in `lit_loader.app.run`.
    sys.path.insert(0, str(Path.cwd()))
    try:
        with usage_errors():
            cfg = compose_config(arguments.config_dir, arguments.config_name or "train", overrides)
            # The data module takes its seed from here, as in training.
            if cfg.get("seed") is not None:
                seed_everything(cfg.seed, verbose=False)
            datamodule = build_datamodule(cfg)
        if not isinstance(datamodule, TableDataModule):
            kind = type(datamodule).__name__
            raise UsageError(f"datamodule is a {kind}; --batches needs a TableDataModule of lit_loader")
        # A dataset may print.
        with redirect_stdout(sys.stderr), config_errors(cfg):
            datamodule.prepare_data()
            with status_spinner("Making batches", progress=arguments.progress):
                gallery = show_batches(
                    datamodule,
                    stage,
                    epoch=epoch,
                    start=arguments.batch or 0,
                    num_batches=arguments.num or (_NUM_BATCHES if arguments.batch is None else 1),
                )
    finally:
        sys.path[:] = original_path
    if not gallery.sections:
        raise UsageError(f"--stage {stage}: the config has no set for this stage; choose another stage")
    if not len(gallery):
        raise UsageError(f"--batch {arguments.batch or 0} is beyond the last batch of stage {stage} in epoch {epoch}")
    return gallery
