"""The commands, their arguments and their exit codes.

A command is a function of its arguments, and its docstring is the end of its help. It imports its implementation when
it is called, so that help is fast and a conversion needs no torch.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, Final

from lit_loader import __version__
from lit_loader.app.commands.settings import UsageError, as_option, parse_pixels, split_names
from lit_loader.errors import LitLoaderError, message_of
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.extras import require
from lit_loader.foundation.interrupts import end_process

__all__ = ["main"]

_APP: Final = {
    "train": ("lit_loader.app.training", "fit a model, test its best checkpoint, report on both"),
    "eval": ("lit_loader.app.evaluation", "test a checkpoint"),
    "predict": ("lit_loader.app.prediction", "write predictions of a checkpoint"),
}
# Overrides for the flags of train and eval that Hydra does not know.
_APP_FLAGS: Final = {"--strict-data": "datamodule.strict_data=true"}
# Flags of Hydra that run no job.
_SHOWING: Final = {"-c", "--cfg", "-h", "--help", "--hydra-help", "-i", "--info", "--version"}

_CONFIG_DIR_HELP: Final = "folder of the config; if it lacks that config, its groups are added to the shipped ones"

_REPEATED: Final[dict[str, Any]] = {"metavar": "KEY=VALUE", "action": "append", "default": []}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the name of the program, or None for the arguments of this process.

    Returns:
        0 on success; 1 if the data is wrong or an extra is not installed; 2 if the command is wrong; 130 after Ctrl-C
        and 143 after SIGTERM. Both signals remove unfinished output, which ``pack`` keeps to continue.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # Hydra parses the arguments of the app; argparse would refuse them.
    if words and words[0] in _APP:
        return _run_app(words[0], words[1:])
    try:
        arguments = _parser().parse_args(words)
    except SystemExit as stop:  # argparse has printed help or an error
        return int(stop.code or 0)
    try:
        # Warnings become one line each, without the file and line of this package.
        with _raise_on_sigterm(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _report("warning", str(message))
            exit_code = arguments.run(arguments) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output left, as in `lit-loader index ... | head`. Python flushes stdout at exit, and would
        # print a second BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UsageError, LitLoaderError, OSError, ValueError, ImportError) as error:
        _report("error", message_of(error, as_option))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as stop:
        is_continued = arguments.run is _pack
        text = "run the same command again to continue" if is_continued else "unfinished output was removed"
        _report("error", f"stopped; {text}")
        return 143 if isinstance(stop, _Terminated) else 130
    return exit_code


def _run_app(name: str, words: Sequence[str]) -> int:
    """Run ``train``, ``eval`` or ``predict``, with arguments for Hydra."""
    # Prediction compares no data, so Hydra refuses the flag there.
    if name != "predict":
        words = [_APP_FLAGS.get(word, word) for word in words]
    # Showing a config must not import torch, which takes seconds.
    shows = any(word.partition("=")[0] in _SHOWING for word in words)
    try:
        require("hydra", "hydra")  # before the modules of the app, which import it
        running = import_module("lit_loader.app.running")
        main = None if shows else import_module(_APP[name][0]).main
    except ImportError as error:
        # Only an error that names an extra is the user's to solve; others are bugs with a traceback.
        if "lit-loader[" not in str(error):
            raise
        _report("error", str(error))
        return 1
    try:
        if shows:
            running.show(name, words)
        else:
            running.run(main, words, command=name)
    except SystemExit as stop:
        # Python ends with code 0 for None and with 1 for a text.
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    return 0


def _convert(arguments: argparse.Namespace) -> None:
    r"""Write annotations in another format, with their images.

    Examples:
      lit-loader convert keypoints_txt faces train=train.txt val=val.txt --to voc --out faces-xml \
          --option columns="path points class" --option schema=face_5
      lit-loader convert keypoints_txt faces all.txt --hold-out val=0.1 --hold-out test=0.1 --to voc --out faces-xml \
          --option columns="path points class" --option schema=face_5 --overwrite
      lit-loader convert voc faces-xml train val --to coco --out faces-coco --images copy

    The new folder appears only when it is complete: it is written under a temporary name and renamed. With --to voc it
    holds JPEGImages, Annotations and ImageSets/Main; the id of an image is its path relative to the common folder of
    all images, without extension. Annotations that the new format cannot hold are listed and refused, unless
    --allow-loss. Images that are byte-identical copies of each other are held out together. Hard links take no space,
    but an image that is changed in place changes in both folders; if the file system cannot link, images are copied.
    A NAME without SPLIT= belongs to the split train, val, test or trainval if it has that name, else to --split.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong, 2 the command is wrong.
    """
    from lit_loader.app.commands.convert import convert

    convert(arguments)


def _index(arguments: argparse.Namespace) -> None:
    """Read annotations and print their figures.

    Examples:
      lit-loader index keypoints_txt faces train.txt val.txt --option columns="path points class" --option schema=face_5
      lit-loader index voc faces-xml train val --json
      lit-loader index faces-xml

    Annotations are read through the cache, so training starts with a filled cache. Images that are in several sets are
    reported.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong, 2 the command is wrong.
    """
    from lit_loader.app.commands.index import index

    index(arguments)


def _check(arguments: argparse.Namespace) -> int:
    """Find the defects of a data set before training.

    Examples:
      lit-loader check faces-xml
      lit-loader check voc faces-xml train val test --strict --ignore rare_class
      lit-loader check coco coco train=train.json val=val.json --no-decode --json
      lit-loader check packed s3://bucket/faces-packed train val

    Decodes every image, and checks images, boxes, points and sets. Prints each kind of finding with its worst example
    and a remedy, and writes them to a page with pictures, by default check.html in the current folder (--json writes
    none, unless --page names it). Problems that stop training are errors; reading continues. A problem named by
    --policy is a note.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 no errors, 1 errors, or warnings under --strict, 2 the command is wrong.
    """
    from lit_loader.app.commands.check import check

    return check(arguments)


def _show(arguments: argparse.Namespace) -> None:
    r"""Show annotated images, or batches as training sees them, in a page or a picture.

    Examples:
      lit-loader show faces-xml
      lit-loader show faces-xml --class person --num 40 --seed 1 --out persons.html
      lit-loader show voc faces-xml train val --split val --out val.png
      lit-loader show faces-xml --image img/0012.jpg
      lit-loader show faces-xml --mirrored
      lit-loader check faces-xml --json > findings.json; lit-loader show faces-xml --worst findings.json
      lit-loader show --batches experiment=shapes datamodule.batch_size=4 --epoch 3

    Of each set, --num random images are shown, the same for the same --seed, with boxes, masks, points, class names and
    attributes. --class and --attribute show images that contain such objects, and highlight them. --image shows one
    image, large, with its objects numbered. --worst reads the sets as lit-loader check does, without stopping.
    --mirrored shows an object of each image with the names of its points, and its mirror image with the names that
    training gives it: a wrong or missing mirror pair is a name that does not fit the mirrored object.

    --batches shows batches of a config, after sampler, transforms, mixes and batch transforms: with the same seed those
    of lit-loader train on one device. Each of several validation sets is a section. The config may name modules in the
    current folder.

    The page loads nothing and runs no script. PNG files have up to 25 pictures each; further files are numbered, and
    replace the pictures of an earlier run.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong, 2 the command or the config is wrong.
    """
    from lit_loader.app.commands.show import show

    show(arguments)


def _split(arguments: argparse.Namespace) -> None:
    r"""Divide sets into splits or folds by class and group.

    Examples:
      lit-loader split voc faces-xml train --share train=0.8 --share val=0.1 --share test=0.1 --out faces.split.json
      lit-loader split faces-xml --folds 5 --keep test --group-pattern '([A-Za-z_]+)_[0-9]+' --out faces.folds.json
      lit-loader split voc faces-xml train --share train=0.9 --share val=0.1 --lists 'new_{}'
      lit-loader train experiment=landmarks dataset=auto dataset.root=faces-xml \
          dataset.split_file=faces.folds.json dataset.fold=0

    The sets are pooled, except those of --keep. Each part gets its share of each class as far as groups allow;
    groups and byte-identical copies are never divided. The result depends on the names, the annotations
    and the seed, not on the order of the images. Annotations and images stay unchanged. A split file serves every
    format; --lists writes lists of VOC (in ImageSets/Main) or YOLO, or COCO files, which other programs read as well.
    Without --out and --lists nothing is written. Train with the experiment of your task, such as experiment=landmarks,
    experiment=classification or experiment=shapes (boxes).

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong, 2 the command is wrong.
    """
    from lit_loader.app.commands.split import split

    split(arguments)


def _pack(arguments: argparse.Namespace) -> int:
    r"""Write sets with their images as WebDataset shards and an index, to a folder or to object storage.

    Examples:
      lit-loader pack faces-xml --to faces-packed
      lit-loader pack coco coco train=train.json val=val.json --to s3://bucket/coco --shard-size 128MiB --verify
      lit-loader pack faces-xml --to faces-packed --append
      lit-loader pack --to s3://bucket/coco --verify
      lit-loader train experiment=landmarks dataset=packed dataset.root=faces-packed

    The bytes of the images do not change. They are in shards/SET-000000.tar, each with a JSON object of annotations.
    SET.arrow holds the annotations of a set, and catalog.arrow the place of each image; they are written last. Equal
    data give equal files. A run that was stopped continues when the same command is given again.

    --append adds images as new shards, and new sets. Images that are packed are compared: a changed one is an error.
    --verify reads all files back and names those that differ from the digests in the index; without a data set, it
    only does that. A missing image is an error; with --policy missing_image=drop it is left out.
    The store's own environment variables give credentials and endpoint, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL;
    --storage gives other settings of the store of --to.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong or --verify finds a difference, 2 the command is wrong.
    """
    from lit_loader.app.commands.pack import pack

    return pack(arguments)


def _tune(arguments: argparse.Namespace) -> None:
    """Measure which worker settings are fastest for a config, and why.

    Examples:
      lit-loader tune experiment=shapes
      lit-loader tune --budget 120 datamodule=landmarks dataset=voc dataset.root=faces-xml
      lit-loader tune --config-dir conf --config-name app --method thread --method spawn --simulate-step 40

    --simulate-step computes for MS milliseconds after each batch, like a training step on the CPU. --method may be
    repeated.

    Composes the config as lit-loader train does, and loads training batches with many worker settings, the promising
    ones again and again in turns. Prints the measurements, the limit of the rate, the overrides for the best settings,
    and the choice of num_workers=auto. The worker settings of the config are ignored; its data settings apply. The
    config may name modules in the current folder.
    exit codes: 0 done, 1 the data is wrong, 2 the command or the config is wrong.
    """
    require("hydra", "hydra")  # before the modules that import it
    from lit_loader.app.commands.tune import tune

    tune(arguments)


def _stats(arguments: argparse.Namespace) -> None:
    """Print the distributions of a data set, and the effect of each sampler and batching on its training set.

    Examples:
      lit-loader stats faces-xml
      lit-loader stats voc VOC2012 train val --page statistics.html --out statistics.png
      lit-loader stats yolo road train --batch-size 16 --size 640 --sampler "class_balanced exponent=0.5"
      lit-loader stats packed s3://bucket/faces-packed train --batch-size 64 --sampler "block_shuffle open_shards=2"

    Opens no image file, except for sizes that the annotations lack. Class mixes are expectations; repeats, unseen
    images and padding are counted in real epochs with seed 0. A batch is padded as by torchvision's detectors: images
    resized to a shorter side of 800 pixels and a longer one of at most 1333, height and width of the batch rounded up
    to multiples of 32. --size or --max-size alone sets the other to none, as in the preset of a data module; both none
    keep the size of the images. The words in the column override select a sampler and a batching in lit-loader train.
    lit-loader index prints the counts of classes, attributes, points and problems.

    KEY=VALUE: VALUE is YAML: 3, true, [path, points], "two words"; anything else is text. SPLIT:KEY=VALUE sets an
    option of only one set.
    exit codes: 0 done, 1 the data is wrong, 2 the command is wrong.
    """
    from lit_loader.app.commands.stats import stats

    stats(arguments)


def _profile(arguments: argparse.Namespace) -> None:
    """Measure why a training run of a config would wait for data, and which override helps.

    Examples:
      lit-loader profile experiment=shapes
      lit-loader profile --seconds 30 --timeline timeline.png experiment=coco_fasterrcnn dataset.root=coco
      lit-loader profile --config-dir conf --config-name app --no-step --json

    Composes the config as lit-loader train does, and trains for some seconds on one device, without validation, loggers
    and checkpoints. Measures first the loader alone, then training steps on one batch that stays in memory, with a
    model that is thrown away, then both together. Prints the time of each stage, the stage at fault, the overrides that
    help, and by how much a faster loader could speed up the run. Pretrained weights are not loaded. Slow transforms are
    measured one by one.
    --timeline draws a lane for each worker, with the stages of its batches, and one for the training loop.
    The config may name modules in the current folder.
    exit codes: 0 done, 1 the data is wrong, 2 the command or the config is wrong.
    """
    require("hydra", "hydra")  # before the modules that import it
    from lit_loader.app.commands.profile import profile

    profile(arguments)


class _Parser(argparse.ArgumentParser):
    """Parser of a command.

    Its help ends with the docstring of the command, and with the formats if one is an argument. Overrides of a config
    may be on both sides of an option.
    """

    # The type of the namespace is of no use here.
    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the words after the command; an unknown one is an error with the usage of the command."""
        arguments, words = super().parse_known_args(args, namespace)
        if hasattr(arguments, "overrides"):
            # argparse fills a positional argument from one group of words only.
            arguments.overrides = [*arguments.overrides, *(word for word in words if not word.startswith("-"))]
            words = [word for word in words if word.startswith("-")]
        if words:
            self.error(f"unrecognized arguments: {' '.join(words)}")
        return arguments, []

    def format_help(self) -> str:
        run = self.get_default("run")
        if run is None:
            return super().format_help()
        text = f"{super().format_help()}\n{_docstring(run)[1]}\n"
        if run in (_profile, _tune):  # they read no annotations themselves
            return text
        # This imports every reader, which only this help needs.
        from lit_loader.app.commands.index import formats_text

        return f"{text}\n{formats_text(with_writers=run is _convert)}"


def _docstring(run: Callable[[argparse.Namespace], int | None]) -> tuple[str, str]:
    """Return the first line of a function's docstring, and the text after it."""
    first, _, details = (inspect.getdoc(run) or "").partition("\n\n")
    return first, details


class _Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    """Raise an exception on SIGTERM, which would otherwise end the process before it can clean up."""
    process = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise _Terminated
        # A forked worker inherits the handler but owns nothing to clean up.
        end_process(128 + number)

    previous_handler = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        # None: the handler was not installed from Python.
        signal.signal(signal.SIGTERM, previous_handler or signal.SIG_DFL)


def _report(kind: str, message: str) -> None:
    sys.stderr.write(f"lit-loader: {kind}: {printable(message)}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-loader",
        description="Data sets: convert, index, check, show, stats, split, pack. Training: train, eval, predict. "
        "Speed: tune, profile.",
    )
    parser.add_argument("--version", action="version", version=f"lit-loader {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(run: Callable[[argparse.Namespace], int | None]) -> argparse.ArgumentParser:
        text = _docstring(run)[0]
        subparser = commands.add_parser(run.__name__[1:], help=text[0].lower() + text[1:-1], description=text)
        subparser.set_defaults(run=run)
        return subparser

    convert = command(_convert)
    _add_reading(convert, may_search=False)
    _add_writing(convert)

    index = command(_index)
    _add_reading(index, may_search=True)
    index.add_argument("--json", action="store_true", help="print JSON")

    check = command(_check)
    _add_reading(check, may_search=True)
    _add_checking(check)
    _add_showing(command(_show))
    stats = command(_stats)
    _add_reading(stats, may_search=True)
    _add_statistics(stats)
    split = command(_split)
    _add_reading(split, may_search=True)
    _add_splitting(split)
    pack = command(_pack)
    _add_reading(pack, may_search=True, is_optional=True)
    _add_packing(pack)

    # main() runs these commands before it parses arguments, since Hydra parses theirs. Here they are only listed.
    for name, (_, text) in _APP.items():
        commands.add_parser(name, help=text, add_help=False)
    _add_tuning(command(_tune))
    _add_profiling(command(_profile))
    return parser


def _add_reading(command: argparse.ArgumentParser, *, may_search: bool, is_optional: bool = False) -> None:
    """Add the arguments of commands that read annotations.

    Args:
        command: The parser of the command.
        may_search: If True, the folder may be the only argument.
        is_optional: If True, the command may read no annotations.
    """
    add = command.add_argument
    search = "; or a folder, whose format and layout are then found, and names of its sets" if may_search else ""
    add("format", metavar="FORMAT", nargs="?" if is_optional else None, help=f"format to read{search}")
    text = "folder of the dataset, or a URL such as s3://bucket/set; its files must not name paths outside of it"
    add("root", metavar="ROOT", nargs="?" if may_search else None, help=text)
    text = "file, folder or split to read, relative to ROOT, depending on the format"
    add("names", metavar="[SPLIT=]NAME", nargs="*" if may_search else "+", help=text)
    if may_search:
        add("--layout", metavar="NAME", help="layout to use where several fit; only without FORMAT")
    add("--option", **_REPEATED, help="option of the format to read")
    add("--policy", **_REPEATED, help="action for a problem in the annotations, e.g. missing_image=drop")
    text = "classes in the order of their ids (default: the order in the files, or sorted)"
    add("--class-names", metavar="NAME,NAME", type=split_names, help=text)
    add("--cache-dir", metavar="DIR", help="folder of cached tables (default: the user's cache)")
    text = "setting of the store of a URL, such as endpoint=URL or region=NAME; credentials: AWS_... variables"
    add("--storage", **_REPEATED, help=text)
    add("--num-workers", type=int, metavar="N", help="number of reading processes (default: by the amount of work)")
    add("--no-progress", dest="progress", action="store_false", help="draw no progress bars")


def _add_checking(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check`` on its rules and its output."""
    add = command.add_argument
    add("--no-decode", dest="decode", action="store_false", help="read only the headers of images")
    text = "shortest side of a box that is not tiny (default: 2)"
    add("--min-side", type=float, metavar="PIXELS", default=2.0, help=text)
    text = "IoU above which two boxes of a class are one object (default: 0.9)"
    add("--duplicate-iou", type=float, metavar="IOU", default=0.9, help=text)
    add("--min-images", type=int, metavar="N", default=10, help="images below which a class is rare (default: 10)")
    text = "kind of finding that is not reported, e.g. rare_class; may be repeated"
    add("--ignore", dest="ignored_kinds", metavar="KIND", action="append", default=[], help=text)
    text = "findings with details for each kind and set, the worst ones (default: 20)"
    add("--max-details", type=int, metavar="N", default=20, help=text)
    add("--strict", action="store_true", help="also end with code 1 after warnings")
    page = command.add_mutually_exclusive_group()
    text = "page to write, .html (default: check.html, none with --json)"
    page.add_argument("--page", metavar="FILE", help=text)
    page.add_argument("--no-page", dest="write_page", action="store_false", help="write no page")
    add("--json", action="store_true", help="print JSON")


def _add_showing(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show``."""
    _add_reading(command, may_search=True, is_optional=True)
    # The layout that was found is printed.
    command.set_defaults(json=False)
    add = command.add_argument
    text = "page or picture to write, .html or .png (default: show.html)"
    add("--out", metavar="FILE", default="show.html", help=text)
    text = "images of each set, or of each kind of --worst (default: 16), or batches (default: 4)"
    add("--num", type=int, metavar="N", help=text)
    add("--seed", type=int, help="seed of the choice of images (default: 0)")
    repeated: dict[str, Any] = {"action": "append", "default": []}
    text = "show images that contain this class; may be repeated"
    add("--class", dest="classes", metavar="NAME", help=text, **repeated)
    text = "show images that contain an object with this value; may be repeated for other attributes"
    add("--attribute", dest="attributes", metavar="NAME=VALUE", help=text, **repeated)
    add("--image", metavar="PATH", help="show one image, by its path or id, large, with its objects numbered")
    add("--split", metavar="NAME", help="show only this set")
    text = "show objects and their mirror images, with the names of points"
    # None like the other absent options, because False would be equal to a 0.
    add("--mirrored", action="store_true", default=None, help=text)
    add("--worst", metavar="FILE", help="show the worst findings in the output of lit-loader check --json")
    text = "show batches of a config, with overrides in Hydra's syntax"
    add("--batches", metavar="KEY=VALUE", nargs="*", action="extend", help=text)
    add("--config-dir", metavar="DIR", help=f"with --batches: {_CONFIG_DIR_HELP}")
    add("--config-name", metavar="NAME", help="name of the config of --batches (default: train)")
    add("--epoch", type=int, metavar="E", help="epoch of --batches, from 0 (default: 0)")
    add("--batch", type=int, metavar="B", help="number of the first batch, from 0 (default: the first 4)")
    add("--stage", choices=("train", "val", "test"), help="stage of --batches (default: train)")


def _add_writing(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``convert`` on the new folder."""
    add = command.add_argument
    add("--to", required=True, metavar="FORMAT", help="format to write")
    add("--out", required=True, metavar="DIR", help="folder to create")
    add("--split", metavar="NAME", default="train", help="split of a NAME without SPLIT= (default: train)")
    share = {"metavar": "SPLIT=SHARE", "help": "share of train's images for another split, by class: val=0.1"}
    add("--hold-out", **_REPEATED | share)
    add(
        "--group-pattern",
        metavar="REGEX",
        help="images with the same text in the pattern's group stay together, e.g. a person's",
    )
    add("--seed", type=int, default=0, help="seed of --hold-out (default: 0)")
    add("--writer-option", **_REPEATED, help="option of the format to write")
    add("--images", choices=("hardlink", "copy", "none"), default="hardlink", help="how images get into DIR")
    add(
        "--allow-loss",
        action="store_true",
        help="drop annotations that the new format cannot hold (ids are always dropped)",
    )
    add(
        "--overwrite", action="store_true", help="replace the files that an earlier convert wrote to DIR, but no others"
    )


def _add_statistics(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``stats``."""
    add = command.add_argument
    text = "samples of the training set: whole images, or objects cut out of them as for landmarks (default: image)"
    add("--samples", choices=("image", "object"), default="image", help=text)
    add("--balance-by", metavar="NAME", help="attribute whose values samplers balance (default: the class)")
    configs: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME [KEY=VALUE ...]"}
    add("--sampler", **configs, help='sampler with settings as another row: "class_balanced empty_share=0.1"')
    add("--batching", **configs, help='batching with settings as another column: "size num_buckets=32"')
    # Without a default, because a setting without effect is refused.
    batch: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": "PIXELS", "type": parse_pixels}
    add("--batch-size", **batch | {"type": int, "metavar": "N"}, help="images a batch (default: 8)")
    add("--size", **batch, help="shorter side of the images in a batch, or none (default: 800)")
    add("--max-size", **batch, help="longest side of the images in a batch, or none (default: 1333)")
    add("--size-divisor", **batch | {"type": int}, help="divisor of a batch's height and width (default: 32)")
    add("--out", metavar="FILE", help="picture of the plots to write: .png, .svg or .pdf")
    add("--page", metavar="FILE.html", help="page with tables and plots to write")
    add("--json", action="store_true", help="print JSON")


def _add_splitting(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``split`` on the parts and the files to write."""
    add = command.add_argument
    share = {"metavar": "NAME=SHARE", "help": "a split and its share of the images; all shares add up to 1"}
    add("--share", **_REPEATED | share)
    add("--folds", type=int, metavar="N", help="number of folds of equal size, instead of --share")
    text = "set that is not split, such as test; may be repeated"
    add("--keep", metavar="SPLIT", action="append", default=[], help=text)
    add("--by", metavar="ATTRIBUTE", help="attribute whose values get their shares, instead of the classes")
    groups = command.add_mutually_exclusive_group()
    text = "images with the same text in the pattern's group stay together, e.g. a person's"
    groups.add_argument("--group-pattern", metavar="REGEX", help=text)
    text = "images with the same value of this attribute stay together"
    groups.add_argument("--group-attribute", metavar="NAME", help=text)
    text = "images whose names differ only in a trailing number stay together, such as frames of a video"
    groups.add_argument("--group-frames", action="store_true", help=text)
    add("--seed", type=int, default=0, help="seed of the split (default: 0)")
    add("--out", metavar="FILE", help="split file to write, JSON, for dataset.split_file")
    text = "write lists of the format, for each part or fold; NAME with {} for the part (default: by the format)"
    add("--lists", metavar="NAME", nargs="?", const="", help=text)
    add("--overwrite", action="store_true", help="replace an existing split file and existing lists")
    add("--json", action="store_true", help="print JSON")


def _add_packing(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pack`` on the shards."""
    # The layout that was found is printed.
    command.set_defaults(json=False)
    add = command.add_argument
    add("--to", required=True, metavar="DIR_OR_URL", help="folder, or s3://, gs://, az:// URL, to write to")
    text = "largest size of a shard, unless a single image is larger (default: 256MiB)"
    add("--shard-size", metavar="SIZE", default="256MiB", help=text)
    add("--append", action="store_true", help="add the images and sets that a packed set lacks, as new shards")
    add("--verify", action="store_true", help="read all files back and compare them with their digests")


def _add_tuning(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tune``."""
    add = command.add_argument
    add("overrides", metavar="KEY=VALUE", nargs="*", help="overrides of the config in Hydra's syntax")
    add("--config-dir", metavar="DIR", help=_CONFIG_DIR_HELP)
    add("--config-name", metavar="NAME", default="train", help="name of the config (default: train)")
    add("--budget", type=float, metavar="SECONDS", default=60.0, help="duration of the search (default: 60)")
    methods = ("thread", *multiprocessing.get_all_start_methods())
    text = "workers to try: threads, or the start method of processes (default: thread, and the config's method)"
    add("--method", choices=methods, action="append", help=text)
    add("--max-workers", type=int, metavar="N", help="largest number of workers (default: by cores and memory)")
    add("--simulate-step", type=float, metavar="MS", default=0.0, help="duration of a computation after each batch")
    add("--json", action="store_true", help="print JSON")
    add("--no-progress", dest="progress", action="store_false", help="draw no progress bar")


def _add_profiling(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``profile``."""
    add = command.add_argument
    add("overrides", metavar="KEY=VALUE", nargs="*", help="overrides of the config in Hydra's syntax")
    add("--config-dir", metavar="DIR", help=_CONFIG_DIR_HELP)
    add("--config-name", metavar="NAME", default="train", help="name of the config (default: train)")
    text = "duration of the training; the loader and the step alone take a third of it each (default: 20)"
    add("--seconds", type=float, metavar="SECONDS", default=20.0, help=text)
    add("--no-step", dest="step", action="store_false", help="do not measure the step alone")
    add("--timeline", metavar="FILE", help="picture of the workers and the training loop to write")
    add("--json", action="store_true", help="print JSON")
    add("--no-progress", dest="progress", action="store_false", help="draw no progress line")
