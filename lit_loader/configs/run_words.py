"""The words of the run that a checkpoint is of, put before those of a command that goes on with it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from lit_loader.configs.checks import ConfigError
from lit_loader.configs.hints import is_override

__all__ = ["check_checkpoint", "with_words_of_run"]

_OF_ONE_COMMAND = {"ckpt_path", "hparams_search", "optimized_metric", "task_name", "train"}
_MAX_BYTES = 1 << 20
_LIGHTNINGS_WORDS = ("last", "best", "hpc", "null")


def check_checkpoint(path: str) -> None:
    """Refuse the path of a checkpoint that does not exist; words of Lightning's and URLs pass.

    Raises:
        ConfigError: If there is no such file.
    """
    if path in _LIGHTNINGS_WORDS or "://" in path or Path(path).exists():
        return
    is_of_run = (Path(path).parent.parent / ".hydra").is_dir()
    where = ": that run has not saved it" if is_of_run else f" in {Path.cwd()}"
    raise ConfigError(
        f"ckpt_path={path!r} does not exist{where}; a run has its checkpoints as "
        "logs/train/runs/DATE_TIME/checkpoints/last.ckpt"
    )


def with_words_of_run(words: Sequence[str]) -> list[str]:
    """Return the words of a command with those of a run before them, if ``ckpt_path=FILE`` names a checkpoint of it.

    Hydra keeps them in ``.hydra/overrides.yaml`` of the run's folder, two above the checkpoint. A word of the command
    replaces the run's for the same key and for all below it. What is added is printed to stderr.

    Raises:
        ConfigError: If there is no such checkpoint, or the run's words cannot be read, or one names code: a folder
            from elsewhere could run anything.
    """
    paths = [word.partition("=")[2].strip("'\"") for word in words if _key(word) == "ckpt_path"]
    if paths and not set(paths[-1]) & set("$,\\"):  # neither looked up nor swept nor escaped
        check_checkpoint(paths[-1])
    file = Path(paths[-1]).parent.parent / ".hydra" / "overrides.yaml" if paths else None
    if file is None or not file.is_file():
        return list(words)
    own = {*map(_key, words), *_OF_ONE_COMMAND}
    added = [word for word in _read(file) if not {_key(word), *_above(_key(word))} & own]
    for word in added:
        if "_target_" in word:
            raise ConfigError(
                f"{file}: {word!r} names code; give it on the command line, if the run is one of yours"
            )
    if added:
        sys.stderr.write(f"as in {file.parent.parent}: {shlex.join(added)}\n")
    return sorted([*added, *words], key=is_override)


def _read(file: Path) -> list[str]:
    """Return the words that a file holds.

    Raises:
        ConfigError: If it holds something else.
    """
    try:
        with file.open("rb") as stream:
            found = yaml.safe_load(stream.read(_MAX_BYTES))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ConfigError(f"{file} should be a list of the words that started the run")
    return found


def _key(word: str) -> str:
    """Return what a word of a command sets, chooses or deletes; a flag is its own."""
    return re.match(r"[+~]*([^=]*)", word)[1].partition("@")[0]  # type: ignore[index]


def _above(key: str) -> set[str]:
    """Return the nodes above a key: of ``model.optimizer.lr`` ``model`` and ``model.optimizer``."""
    parts = key.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}
