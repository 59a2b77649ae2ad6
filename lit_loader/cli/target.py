"""The folder that a conversion makes: complete under its name, or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from lit_loader.cli.settings import UsageError

__all__ = ["RECORD", "RECORD_KEYS", "new_folder"]

RECORD: Final = "conversion.json"
"""The file that records how a folder was made; only a folder that has it is ever replaced."""

RECORD_KEYS: Final = ("from", "to", "read", "shares")
"""The keys of the file, which one of another program does not have."""


@contextmanager
def new_folder(out: Path | str, *, overwrite: bool, keep: Iterable[Path]) -> Iterator[Path]:
    """Give a temporary folder beside ``out`` to fill; rename it to ``out`` afterwards, remove it on an error.

    Args:
        out: The folder to make. One that is there is replaced only with ``overwrite``, and only if it is
            empty or was made here, which its ``conversion.json`` records.
        overwrite: Whether to replace it.
        keep: Files and folders that are being read; ``out`` may not hold them.

    Raises:
        UsageError: If ``out`` is there and may not be replaced.
    """
    target = Path(out).absolute()
    if target.is_symlink() or target.exists():
        _check_replaceable(target, overwrite=overwrite)
    real = target.resolve()
    for path in keep:
        if path.resolve().is_relative_to(real):
            raise UsageError(f"--out {out} holds {path}, which is being read; give another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)  # mkdtemp's is private; a data folder may be shared
        _put_in_place(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it is there no more if all went well


def _put_in_place(folder: Path, target: Path) -> None:
    """Rename a folder; one that is there is removed afterwards, and stays what it was on an error before."""
    if not target.exists():
        folder.replace(target)
        return
    old = Path(mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    try:
        target.replace(old)
        folder.replace(target)
    except BaseException:
        if not target.exists():
            old.replace(target)
        raise
    finally:
        if target.exists():  # else ``old`` is all that is left
            shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        raise UsageError(f"--out {target} is there already; give another folder, or --overwrite")
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"--out {target} is not a folder; --overwrite replaces folders only")
    if any(target.iterdir()) and not _is_record(target / RECORD):
        raise UsageError(
            f"--out {target} was not made by lit-loader convert (it has no {RECORD} of its own); remove it "
            "yourself, or give another folder"
        )


def _is_record(path: Path) -> bool:
    try:
        record = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() == set(RECORD_KEYS)
