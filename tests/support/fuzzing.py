"""Fuzzing of readers: good files are damaged in many ways, and a reader must give a table or name the fault.

A process of its own reads them, so that a crash is seen, memory is its own, and the audit hook that watches
every opened file goes with it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from PIL import Image

import lit_loader
from lit_loader.annotations.table import AnnotationTable
from lit_loader.errors import AnnotationError
from tests.support.fuzzing_mutations import MUTATIONS, Damage

__all__ = ["FuzzResult", "fuzz"]

MAX_GROWTH = 200 * 1024 * 1024
_PATIENCE = 120.0  # wall time, for a machine that does other things too
SECRET = b"<secret>0 0 10 10 secret.jpg secret</secret>\n"

Read = Callable[[Path], AnnotationTable]
MakeFiles = Callable[[Path], Sequence[str]]


@dataclass
class FuzzResult:
    """Outcomes of the rounds.

    Attributes:
        tables: Rounds that gave a table.
        refusals: Rounds that gave an error, by its type.
        failures: Faults of the reader, with the damage that shows them; empty for a sound reader.
    """

    tables: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def fuzz(read: Read, make_files: MakeFiles, *, rounds: int, seed: int = 0, max_seconds: float = 20.0) -> FuzzResult:
    """Damage the files of a data set ``rounds`` times, each time from sound ones, and read it.

    Args:
        read: Reads the data set in the folder; importable by name, or a ``partial`` of such a function.
            It must not use the cache.
        make_files: Writes a sound data set into the folder and returns the names of the files to damage;
            importable by name.
        rounds: Number of damages; every kind of damage is done in turn.
        seed: The same seed does the same damage.
        max_seconds: Most processor time of a round. 100,000 lines put in take 2 s on a quiet machine, and minutes
            where the time is more than linear in them.
    """
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_run, args=(theirs, read, make_files, folder, rounds, seed, max_seconds))
        process.start()
        theirs.close()
        try:
            return _follow(ours)
        finally:
            process.kill()
            process.join()
            process.close()
            ours.close()


def _follow(connection: Connection) -> FuzzResult:
    damage = "the start"
    while True:
        if not connection.poll(_PATIENCE):
            return FuzzResult(failures=[f"a hang of more than {_PATIENCE} s: {damage}"])
        try:
            message = connection.recv()
        except EOFError:
            return FuzzResult(failures=[f"the process died: {damage}"])
        if isinstance(message, FuzzResult):
            return message
        damage = message


def _run(
    connection: Connection, read: Read, make_files: MakeFiles, folder: str, rounds: int, seed: int, max_seconds: float
) -> None:
    outside, elsewhere, root = (Path(folder, name).resolve() for name in ("outside", "elsewhere", "root"))
    for path, name in ((outside, "secret"), (elsewhere, "other")):
        path.mkdir()
        (path / f"{name}.txt").write_bytes(SECRET)
        Image.new("RGB", (8, 8)).save(path / f"{name}.jpg")
    root.mkdir()
    names = sorted(make_files(root))
    images = sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.suffix in (".jpg", ".png") and str(path.relative_to(root)) not in names
    )
    Image.init()  # imports every plugin, which lists the folders of sys.path
    table = read(root)  # imports what else is imported late, and the files are sound
    result = FuzzResult()
    if not isinstance(table, AnnotationTable) or table.num_images == 0:
        result.failures.append(f"the sound files gave {table!r}")
    multiprocessing.get_all_start_methods()  # from Python 3.14 on the first call writes a temporary file
    watch = _Watch(root, elsewhere)
    sys.addaudithook(watch)
    for number in range(rounds):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        damage = Damage(
            root=root,
            outside=outside,
            elsewhere=elsewhere,
            names=names,
            images=images,
            random=random.Random(f"{seed}.{number}"),
        )
        with damage:
            damage.apply(mutation)
            description = f"round {number}, {mutation.__name__} of {damage.file_names}"
            connection.send(description)
            _round(read, root, watch, result, description, max_seconds)
    connection.send(result)


def _round(read: Read, root: Path, watch: _Watch, result: FuzzResult, description: str, max_seconds: float) -> None:
    # Forgets the peak of earlier rounds.
    Path("/proc/self/clear_refs").write_text("5")
    start_bytes = _status("VmRSS")
    start = time.process_time()
    watch.strangers.clear()
    watch.is_on = True
    try:
        table = read(root)
        result.tables += 1
        if not isinstance(table, AnnotationTable):
            result.failures.append(f"{description}: gave {table!r}")
    except AnnotationError as error:
        result.refusals[type(error).__name__] += 1
        if len(str(error)) > 4000:
            result.failures.append(f"{description}: a message of {len(str(error))} characters")
    except BaseException:
        result.failures.append(f"{description}: {traceback.format_exc()[-3000:]}")
    finally:
        watch.is_on = False
    seconds = time.process_time() - start
    growth = _status("VmHWM") - start_bytes
    if seconds > max_seconds:
        result.failures.append(f"{description}: took {seconds:.1f} s")
    if growth > MAX_GROWTH:
        result.failures.append(f"{description}: took {growth / 2**20:.0f} MiB")
    if watch.strangers:
        result.failures.append(f"{description}: opened {sorted(watch.strangers)}")


class _Watch:
    """Audit hook that records the real paths of files and folders opened or listed outside some folders."""

    def __init__(self, *folders: Path) -> None:
        code = [Path(lit_loader.__file__).parents[1], sys.prefix, sys.base_prefix, os.__file__]
        self._known = tuple(
            f"{path}/" for path in map(os.path.realpath, [*folders, *code[:3], Path(os.__file__).parent])
        )
        self.strangers: set[str] = set()
        self.is_on = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_on or event not in ("open", "os.scandir", "os.listdir"):
            return
        path = arguments[0]
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        if not f"{real}/".startswith((*self._known, "/proc/", "/sys/", "/dev/")):
            self.strangers.add(real)


def _status(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field_name)
