"""The commands, their arguments and their exit codes."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from lit_loader.cli.settings import UsageError
from lit_loader.errors import LitLoaderError

__all__ = ["main"]

_CONVERT = """\
examples:
  lit-loader convert keypoints_txt faces train=train.txt val=val.txt --to voc --out faces-xml \\
      --option columns="path points class" --option schema=face_5
  lit-loader convert keypoints_txt faces all.txt --hold-out val=0.1 --hold-out test=0.1 --to voc --out faces-xml \\
      --option columns="path points class" --option schema=face_5 --overwrite
  lit-loader convert voc faces-xml train val --to coco --out faces-coco --images copy

The new folder is complete or not there: it is written beside its place and renamed. With --to voc it holds
JPEGImages, Annotations and ImageSets/Main; an image's id is its path below the folder that all images share,
without extension. What the new format cannot hold is refused and listed, unless --allow-loss.
"""

_INDEX = """\
examples:
  lit-loader index keypoints_txt faces train.txt val.txt --option columns="path points class" --option schema=face_5
  lit-loader index voc faces-xml train val --json

Reads through the cache, so that training finds the cache filled. Images in several of the sets are reported.
"""

_TUNE = """\
examples:
  lit-loader tune
  lit-loader tune --budget 2m datamodule=landmarks dataset=voc dataset.root=faces-xml
  lit-loader tune --config-dir conf --config-name app --method thread --method spawn --simulate-step 40

Composes the config as examples/train.py does, reads training batches under many worker settings, the promising ones
again and again in turns, and prints what it measured, what limits the rate, and the overrides for the best settings.
The settings of the config do not matter, those of its data do. Modules that the config names are looked for in the
current folder too.
exit codes: 0 done, 1 something is wrong with the data, 2 something is wrong with the command or the config.
"""

_OPTIONS = """\
KEY=VALUE: VALUE is read as YAML: 3, true, [path, points], "two words"; what is not YAML is text. SPLIT:KEY=VALUE
is for one of the sets alone.
exit codes: 0 done, 1 something is wrong with the data, 2 something is wrong with the command.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with the formats and their options, looked up when it is asked for."""

    examples: str | None = None

    def format_help(self) -> str:
        if self.examples is None:
            return super().format_help()
        if self.examples is _TUNE:
            return f"{super().format_help()}\n{self.examples}"
        from lit_loader.cli.formats import formats_text  # imports every reader

        formats = formats_text(with_writers="convert" in self.prog)
        return f"{super().format_help()}\n{self.examples}\n{_OPTIONS}\n{formats}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name, or None for those of this process.

    Returns:
        0; 1 if something is wrong with the data; 2 if the command is wrong; 130 after Ctrl-C, 143 after a
        request to end (SIGTERM): both remove what is half written.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        run: Callable[[argparse.Namespace], None]
        if arguments.command == "convert":
            from lit_loader.cli.convert import convert as run
        elif arguments.command == "tune":
            from lit_loader.cli.tune import tune as run
        else:
            from lit_loader.cli.index import index as run
        with _ending_on_request(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _warn(str(message))
            run(arguments)
        sys.stdout.flush()
    except UsageError as error:
        return _failed(error, code=2)
    except BrokenPipeError:  # the reader of the output left: lit-loader index ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except (LitLoaderError, OSError, ValueError) as error:
        return _failed(error, code=1)
    except KeyboardInterrupt as stop:
        return _failed("stopped; nothing was left behind", code=143 if isinstance(stop, _Ended) else 130)
    return 0


class _Ended(KeyboardInterrupt):
    """Somebody asked this process to end."""


@contextmanager
def _ending_on_request() -> Iterator[None]:
    """Raise on SIGTERM, which would end the process before it can clean up."""
    if threading.current_thread() is not threading.main_thread():  # others may not set handlers
        yield
        return
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


def _warn(message: str) -> None:
    from lit_loader.cli.printing import printable

    sys.stderr.write(f"lit-loader: warning: {printable(message)}\n")


def _failed(error: Exception | str, *, code: int) -> int:
    from lit_loader.cli.printing import printable

    message = printable(str(error)).replace("pass allow_loss=True", "pass --allow-loss")
    message = re.sub(r"\bReadPolicy\((\w+)=[^)]*\)", r"--policy \1=ACTION", message)
    sys.stderr.write(f"lit-loader: error: {message}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lit-loader", description="Annotations of any format: convert, look. Workers: tune."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    convert = _command(
        commands, "convert", _CONVERT, "write annotations in another format, with their images"
    )
    convert.add_argument("--to", required=True, metavar="FORMAT", help="format to write")
    convert.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    convert.add_argument(
        "--split",
        metavar="NAME",
        default="train",
        help="split of a NAME without SPLIT= that is not called train, val, test or trainval (default: train)",
    )
    convert.add_argument(
        "--hold-out",
        metavar="SPLIT=SHARE",
        action="append",
        default=[],
        help="share of the images of train, stratified by class, that become another split, e.g. val=0.1",
    )
    convert.add_argument(
        "--group-pattern",
        metavar="REGEX",
        help="with --hold-out: the first group of REGEX in an image path names what is never divided, e.g. a person",
    )
    convert.add_argument("--seed", type=int, default=0, help="seed of --hold-out (default: 0)")
    convert.add_argument(
        "--writer-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the format to write",
    )
    convert.add_argument(
        "--images",
        choices=("hardlink", "copy", "none"),
        default="hardlink",
        help="how images get into DIR (default: hardlink, which takes no space, but an image that is changed in "
        "place changes in both folders; where the file system cannot, they are copied)",
    )
    convert.add_argument(
        "--allow-loss", action="store_true", help="leave out what the new format cannot hold"
    )
    convert.add_argument(
        "--overwrite", action="store_true", help="replace DIR if an earlier convert made it, or it is empty"
    )
    index = _command(commands, "index", _INDEX, "read annotations and print what they hold")
    index.add_argument("--json", action="store_true", help="print JSON")
    _add_tune(commands)
    return parser


def _add_tune(commands: argparse._SubParsersAction[_Parser]) -> None:
    text = "measure which worker settings are fastest for a config, and why"
    tune = commands.add_parser("tune", help=text, description=f"{text[0].upper()}{text[1:]}.")
    tune.examples = _TUNE
    tune.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", help="overrides of the config, as Hydra takes them"
    )
    tune.add_argument(
        "--config-dir", metavar="DIR", help="folder of the config (default: the one that is shipped)"
    )
    tune.add_argument("--config-name", metavar="NAME", default="train", help="its name (default: train)")
    tune.add_argument(
        "--budget", metavar="TIME", default="60s", help="how long to measure: 60s, 2m (default: 60s)"
    )
    tune.add_argument(
        "--method",
        metavar="METHOD",
        action="append",
        help="workers to try: thread, or processes by their start method: fork, spawn, forkserver (may be repeated; "
        "default: thread, and the start method of the config)",
    )
    tune.add_argument(
        "--max-workers", type=int, metavar="N", help="most workers (default: by cores and memory)"
    )
    tune.add_argument(
        "--simulate-step",
        type=float,
        metavar="MS",
        default=0.0,
        help="compute so many milliseconds after each batch, as a training step on the CPU does (default: 0)",
    )
    tune.add_argument(
        "--plot", metavar="FILE", default="lit-loader-tune.png", help="picture (default: lit-loader-tune.png)"
    )
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.add_argument("--no-progress", action="store_true", help="draw no progress bar")


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, examples: str, description: str
) -> argparse.ArgumentParser:
    """Add a command with the arguments that all have."""
    command = commands.add_parser(
        name, help=description, description=f"{description[0].upper()}{description[1:]}."
    )
    command.examples = examples
    command.add_argument("format", metavar="FORMAT", help="format to read")
    command.add_argument(
        "root", metavar="ROOT", help="folder of the data set; its files may name nothing outside"
    )
    command.add_argument(
        "names",
        metavar="[SPLIT=]NAME",
        nargs="+",
        help="what to read, relative to ROOT: a file, a folder or a split, as the format takes it",
    )
    repeated: dict[str, Any] = {"metavar": "KEY=VALUE", "action": "append", "default": []}
    command.add_argument("--option", help="an option of the format to read", **repeated)
    command.add_argument(
        "--policy", help="what to do about annotations that are wrong, e.g. missing_image=drop", **repeated
    )
    command.add_argument(
        "--class-names", metavar="NAME,NAME", help="classes in the order of their ids (default: sorted)"
    )
    command.add_argument(
        "--cache-dir", metavar="DIR", help="where tables are cached (default: the user's cache)"
    )
    command.add_argument(
        "--num-workers", type=int, metavar="N", help="processes that read (default: by the work)"
    )
    command.add_argument("--no-progress", action="store_true", help="draw no progress bars")
    return command
