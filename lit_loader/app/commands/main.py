"""The commands, their arguments and their exit codes.

A command is a function that takes its arguments and whose docstring ends its help; it imports what it runs when it is
called, so that help is quick and a conversion needs no torch.
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
from lit_loader.app.commands.settings import UsageError, as_option
from lit_loader.errors import LitLoaderError, message_of
from lit_loader.foundation.escaping import printable

__all__ = ["main"]

_APP: Final = {
    "train": ("lit_loader.app.training", "fit a model, test its best checkpoint, report on both"),
    "eval": ("lit_loader.app.evaluation", "test a checkpoint"),
    "predict": ("lit_loader.app.prediction", "write predictions of a checkpoint"),
}
_SHOWING: Final = {"-c", "--cfg", "-h", "--help", "--hydra-help", "-i", "--info", "--version"}
"""Flags of Hydra's with which no job runs."""

_REPEATED: Final[dict[str, Any]] = {"metavar": "KEY=VALUE", "action": "append", "default": []}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name, or None for those of this process.

    Returns:
        0; 1 if something is wrong with the data, or an extra is not installed; 2 if the command is wrong; 130 after
        Ctrl-C, 143 after a request to end (SIGTERM): both remove what is half written.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _APP:
        return _run_app(words[0], words[1:])
    try:
        arguments = _parser().parse_args(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        with _ending_on_request(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _report("warning", str(message))
            arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output left: lit-loader index ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except (UsageError, LitLoaderError, OSError, ValueError, ImportError) as error:
        _report("error", message_of(error, as_option))
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as stop:
        _report("error", "stopped; nothing was left behind")
        return 143 if isinstance(stop, _Ended) else 130
    return 0


def _run_app(name: str, words: Sequence[str]) -> int:
    """Run ``train``, ``eval`` or ``predict``, whose words are Hydra's."""
    shows = any(word.partition("=")[0] in _SHOWING for word in words)
    try:
        app = import_module("lit_loader.app.running" if shows else "lit_loader.app")
        main = None if shows else import_module(_APP[name][0]).main
    except ImportError as error:
        if "lit-loader[" not in str(error):
            raise
        _report("error", str(error))
        return 1
    try:
        if shows:
            app.show(name, words)
        else:
            app.run(main, words)
    except SystemExit as stop:
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

    The new folder is complete or not there: it is written beside its place and renamed. With --to voc it holds
    JPEGImages, Annotations and ImageSets/Main; an image's id is its path below the folder that all images share,
    without extension. What the new format cannot hold is refused and listed, unless --allow-loss. Images that are
    byte-identical copies of each other are held out together. Hard links take no space, but an image that is changed in
    place changes in both folders; where the file system cannot link, images are copied. A NAME without SPLIT= is of the
    split train, val, test or trainval if it is called so, else of that of --split.

    KEY=VALUE: VALUE is read as YAML: 3, true, [path, points], "two words"; what is not YAML is text. SPLIT:KEY=VALUE
    is for one of the sets alone.
    exit codes: 0 done, 1 something is wrong with the data, 2 something is wrong with the command.
    """
    from lit_loader.app.commands.convert import convert

    convert(arguments)


def _index(arguments: argparse.Namespace) -> None:
    """Read annotations and print what they hold.

    Examples:
      lit-loader index keypoints_txt faces train.txt val.txt --option columns="path points class" --option schema=face_5
      lit-loader index voc faces-xml train val --json

    Reads through the cache, so that training finds the cache filled. Images in several of the sets are reported.

    KEY=VALUE: VALUE is read as YAML: 3, true, [path, points], "two words"; what is not YAML is text. SPLIT:KEY=VALUE
    is for one of the sets alone.
    exit codes: 0 done, 1 something is wrong with the data, 2 something is wrong with the command.
    """
    from lit_loader.app.commands.index import index

    index(arguments)


def _tune(arguments: argparse.Namespace) -> None:
    """Measure which worker settings are fastest for a config, and why.

    Examples:
      lit-loader tune experiment=shapes
      lit-loader tune --budget 120 datamodule=landmarks dataset=voc dataset.root=faces-xml
      lit-loader tune --config-dir conf --config-name app --method thread --method spawn --simulate-step 40

    --simulate-step computes for MS milliseconds after each batch, as a training step on the CPU does. --method may be
    repeated.

    Composes the config as lit-loader train does, reads training batches under many worker settings, the promising ones
    again and again in turns, and prints what it measured, what limits the rate, and the overrides for the best
    settings, beside what num_workers=auto would take. The settings of the config do not matter, those of its data do.
    Modules that the config names are looked for in the current folder too.
    exit codes: 0 done, 1 something is wrong with the data, 2 something is wrong with the command or the config.
    """
    from lit_loader.app.commands.tune import tune

    tune(arguments)


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with its command's docstring, and with the formats where a format is an argument."""

    def format_help(self) -> str:
        run = self.get_default("run")
        if run is None:
            return super().format_help()
        text = f"{super().format_help()}\n{_docstring(run)[1]}\n"
        if run is _tune:
            return text
        from lit_loader.app.commands.index import formats_text  # imports every reader

        return f"{text}\n{formats_text(with_writers=run is _convert)}"


def _docstring(run: Callable[[argparse.Namespace], None]) -> tuple[str, str]:
    """Return the first line of a function's docstring, and what follows it."""
    first, _, rest = (inspect.getdoc(run) or "").partition("\n\n")
    return first, rest


class _Ended(KeyboardInterrupt):
    """Somebody asked this process to end."""


@contextmanager
def _ending_on_request() -> Iterator[None]:
    """Raise on SIGTERM, which would end the process before it can clean up."""
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise _Ended
        os._exit(128 + number)  # a forked one has nothing to clean up

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _report(kind: str, message: str) -> None:
    sys.stderr.write(f"lit-loader: {kind}: {printable(message)}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-loader",
        description="Annotations of any format: convert, index. Training: train, eval, predict. Workers: tune.",
    )
    parser.add_argument("--version", action="version", version=f"lit-loader {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
        text = _docstring(run)[0]
        made = commands.add_parser(run.__name__[1:], help=text[0].lower() + text[1:-1], description=text)
        made.set_defaults(run=run)
        return made

    convert = command(_convert)
    _add_reading(convert)
    add = convert.add_argument
    add("--to", required=True, metavar="FORMAT", help="format to write")
    add("--out", required=True, metavar="DIR", help="folder to make")
    add("--split", metavar="NAME", default="train", help="split of a NAME that names none (default: train)")
    share = {"metavar": "SPLIT=SHARE", "help": "share of train's images for another split, by class: val=0.1"}
    add("--hold-out", **_REPEATED | share)
    add("--group-pattern", metavar="REGEX", help="its group in an image path is never divided, e.g. a person")
    add("--seed", type=int, default=0, help="seed of --hold-out (default: 0)")
    add("--writer-option", **_REPEATED, help="an option of the format to write")
    add("--images", choices=("hardlink", "copy", "none"), default="hardlink", help="how images get into DIR")
    add(
        "--allow-loss",
        action="store_true",
        help="leave out what the new format cannot hold; ids need no leave",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace the files that an earlier convert wrote into DIR, and no others",
    )

    index = command(_index)
    _add_reading(index)
    index.add_argument("--json", action="store_true", help="print JSON")

    for name, (_, text) in _APP.items():  # main() runs them: their words are Hydra's
        commands.add_parser(name, help=text, add_help=False)
    add = command(_tune).add_argument
    add("overrides", metavar="KEY=VALUE", nargs="*", help="overrides of the config, as Hydra takes them")
    add("--config-dir", metavar="DIR", help="folder of the config (default: the one that is shipped)")
    add("--config-name", metavar="NAME", default="train", help="its name (default: train)")
    add("--budget", type=float, metavar="SECONDS", default=60.0, help="how long to measure (default: 60)")
    methods = ("thread", *multiprocessing.get_all_start_methods())
    text = "workers to try: threads, or processes by their start method (default: thread, and the config's)"
    add("--method", choices=methods, action="append", help=text)
    add("--max-workers", type=int, metavar="N", help="most workers (default: by cores and memory)")
    add("--simulate-step", type=float, metavar="MS", default=0.0, help="compute so long after each batch")
    add("--json", action="store_true", help="print JSON")
    add("--no-progress", action="store_true", help="draw no progress bar")
    return parser


def _add_reading(command: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that read annotations."""
    add = command.add_argument
    add("format", metavar="FORMAT", help="format to read")
    add("root", metavar="ROOT", help="folder of the data set; its files may name nothing outside")
    text = "what to read, relative to ROOT: a file, a folder or a split, as the format takes it"
    add("names", metavar="[SPLIT=]NAME", nargs="+", help=text)
    add("--option", **_REPEATED, help="an option of the format to read")
    add("--policy", **_REPEATED, help="what to do about wrong annotations, e.g. missing_image=drop")
    add("--class-names", metavar="NAME,NAME", help="classes in the order of their ids (default: sorted)")
    add("--cache-dir", metavar="DIR", help="where tables are cached (default: the user's cache)")
    add("--num-workers", type=int, metavar="N", help="processes that read (default: by the work)")
    add("--no-progress", action="store_true", help="draw no progress bars")
