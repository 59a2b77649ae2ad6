"""The folder that a conversion makes: complete under its name, or not there."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from lit_loader.cli.settings import UsageError

__all__ = ["RECORD", "new_folder"]

RECORD: Final = "conversion.json"
"""The file that says how a folder was made; only a folder that has it is ever replaced."""


@contextmanager
def new_folder(out: Path | str, *, overwrite: bool, keep: Iterable[Path]) -> Iterator[Path]:
    """Give a temporary folder beside ``out`` to fill; rename it to ``out`` afterwards, remove it on an error.

    Args:
        out: The folder to make. One that is there is replaced only with ``overwrite``, and only if it is
            empty or was made here, which its ``conversion.json`` says.
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
        if target.exists():
            old = Path(mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
            target.replace(old)
            folder.replace(target)
            shutil.rmtree(old)
        else:
            folder.replace(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    if not overwrite:
        raise UsageError(f"--out {target} is there already; give another folder, or --overwrite")
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"--out {target} is not a folder; --overwrite replaces folders only")
    if any(target.iterdir()) and not (target / RECORD).is_file():
        raise UsageError(
            f"--out {target} was not made by lit-loader convert (it has no {RECORD}); remove it yourself, "
            "or give another folder"
        )
