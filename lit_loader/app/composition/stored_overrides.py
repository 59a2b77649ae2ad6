"""Replay the overrides of the run that wrote a checkpoint, before the overrides of the current command.

NOTE [Overrides from files] A run folder is as hostile as any other file, and Hydra overrides can run any code: through
``_target_``, a resolver in ``${...}`` or another search path. So `replay_overrides` has an allow-list: choices in the
shipped groups and keys below them, with plain values. To the targets of the shipped configs such values are only data.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from lit_loader.app.composition.checks import ConfigError
from lit_loader.app.composition.hints import is_override
from lit_loader.foundation.escaping import printable, quote_for_hydra

__all__ = ["check_checkpoint", "checkpoint_of", "override_value", "overrides_to_repeat", "replay_overrides"]

# Overrides of a real run need a few hundred bytes.
_MAX_BYTES: Final = 1 << 16
_LIGHTNING_WORDS: Final = ("last", "best", "hpc", "null")
# Keys that belong to one command, and mean nothing for a later one.
_ONE_COMMAND: Final = frozenset(
    {
        "ckpt_path",
        "datamodule.strict_data",
        "hparams_search",
        "optimized_metric",
        "resume_in_place",
        "source",
        "task_name",
        "train",
        "trust_run",
    }
)
# Groups of the shipped configs that a stored override may choose, without `hydra`, `paths` and `hparams_search`.
_GROUPS: Final = frozenset(
    {
        "batching",
        "callbacks",
        "datamodule",
        "dataset",
        "debug",
        "experiment",
        "extras",
        "logger",
        "mixing",
        "model",
        "sampler",
        "trainer",
        "workers",
    }
)
_ROOT_KEYS: Final = frozenset({"num_threads", "seed", "tags", "test"})
# Last parts of keys that name outputs of a run; the current command decides where it writes.
_OUTPUT_KEYS: Final = frozenset(
    {"cache_dir", "default_root_dir", "dirpath", "filename", "folder", "path", "root_dir", "save_dir"}
)
_WEIGHTS_KEYS: Final = frozenset({"weights", "weights_backbone"})
# The only stage whose transforms a command applies.
_STAGES: Final = {"eval": "test", "predict": "predict"}


def check_checkpoint(path: str) -> None:
    """Refuse the path of a checkpoint that does not exist or is not a file; Lightning's own words and URLs pass.

    Raises:
        ConfigError: If the file does not exist, or the path is a folder, a pipe or a device.
    """
    if _is_lightning_lookup(path):
        return
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            raise ConfigError(f"ckpt_path={path!r} cannot be read: {error}") from error
        in_run_folder = (Path(path).parent.parent / ".hydra").is_dir()
        where = ": that run has not saved it" if in_run_folder else f" in {Path.cwd()}"
        raise ConfigError(
            f"ckpt_path={path!r} does not exist{where}; a run has its checkpoints as "
            "logs/train/runs/DATE_TIME/checkpoints/last.ckpt"
        ) from error
    # FSDP and DeepSpeed write a checkpoint as a folder.
    is_sharded = Path(path, "meta.pt").is_file() or Path(path, "checkpoint").is_dir()
    if stat.S_ISDIR(mode) and not is_sharded:
        files = sorted(file.relative_to(path).as_posix() for file in Path(path).glob("**/*.ckpt"))[:3]
        remedy = f"name a file in it, such as {' or '.join(files)}" if files else "it holds no *.ckpt file"
        raise ConfigError(f"ckpt_path={path!r} is a folder; {remedy}")
    # Opening a pipe would wait for a writer, and a device may be endless.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"ckpt_path={path!r} is a pipe or a device; expected a regular file")


def replay_overrides(words: Sequence[str], command: str = "train") -> list[str]:
    """Replay the overrides of the run that wrote the checkpoint ``ckpt_path=FILE``, before the overrides of a command.

    Hydra keeps a run's overrides in ``.hydra/overrides.yaml`` of its folder, two above the checkpoint. An override of
    the command replaces the run's for the same key and for all keys below it. The replayed ones are printed to stderr.
    NOTE [Overrides from files] says which are refused. A run outside of the current folder needs ``trust_run=true``.
    The path of a checkpoint may hold characters that Hydra would parse.

    Args:
        words: Overrides and flags of the command line.
        command: ``"train"``, ``"eval"`` or ``"predict"``. The last two do not replay transforms that the user added to
            other stages than theirs, such as ``datamodule.train_transforms.extra_after``.

    Returns:
        The command's flags, the replayed overrides, and the command's overrides.

    Raises:
        ConfigError: If the checkpoint does not exist, the run's overrides cannot be read, one of them is refused, or
            the run is outside of the current folder and ``trust_run=true`` is missing.
    """
    # Lightning's default file names contain `=`, which Hydra refuses without quotes.
    words = [_with_quoted_path(word) for word in words]
    checkpoint = checkpoint_of(words)
    if checkpoint is None:
        return words
    check_checkpoint(checkpoint)
    run_folder = Path(checkpoint).parent.parent
    file = run_folder / ".hydra" / "overrides.yaml"
    if not file.is_file():
        return words
    # An override of `model` also replaces the run's overrides of its keys, which may not exist in the new option.
    command_keys = {*map(_key, words), *_ONE_COMMAND}
    stored = [word for word in _read(file) if not {_key(word), *_parents(_key(word))} & command_keys]
    unused = [word for word in stored if _is_unused(_key(word), command)]
    stored = [word for word in stored if word not in unused]
    # Refuse the whole file rather than skip single overrides: a run with half of them would be another run.
    refusals = {word: reason for word in stored if (reason := _refusal(word)) is not None}
    if refusals:
        reasons = "; ".join(f"{word!r} {reason}" for word, reason in refusals.items())
        raise ConfigError(
            f"{file} has overrides that only a command may have: {reasons}. If you trust them, add them to the "
            f"command: {shlex.join(refusals)}"
        )
    replayed = [word for word in stored if not _is_output_key(_key(word))]
    outputs = [word for word in stored if _is_output_key(_key(word))]
    # Allowed overrides can still choose data and weights, so a run from elsewhere needs a decision of the user.
    if replayed and not _is_trusted(run_folder, words):
        raise ConfigError(
            f"the run {run_folder} is outside of {Path.cwd()} and would bring these overrides: {shlex.join(replayed)}; "
            "if they are what you expect, pass trust_run=true"
        )
    if replayed:
        sys.stderr.write(printable(f"as in {run_folder}: {shlex.join(replayed)}\n"))
    if unused:
        reason = f"since {command} does not use them"
        sys.stderr.write(printable(f"not as in {run_folder}, {reason}: {shlex.join(unused)}\n"))
    if outputs:
        sys.stderr.write(printable(f"not as in {run_folder}, since these name outputs: {shlex.join(outputs)}\n"))
    # Hydra's parser needs flags before all overrides; the sort is stable, so the command's overrides still win.
    return sorted([*replayed, *words], key=is_override)


def overrides_to_repeat(words: Sequence[str], checkpoint: str) -> list[str]:
    """Return the overrides that resume a run together with ``ckpt_path``.

    Args:
        words: The overrides of the run.
        checkpoint: The path of its checkpoint.

    Returns:
        ``trust_run=true`` if the run is outside of the current folder, and the overrides that are not replayed.
    """
    lasting = [word for word in words if _key(word) not in _ONE_COMMAND]
    repeated = [word for word in lasting if _refusal(word) is not None or _is_output_key(_key(word))]
    is_inside = _is_trusted(Path(checkpoint).parent.parent, [])
    return repeated if is_inside else ["trust_run=true", *repeated]


def checkpoint_of(words: Sequence[str]) -> str | None:
    """Return the value of ``ckpt_path`` in a command.

    Returns:
        The path, or None without a checkpoint, in a sweep over several, and if Hydra or Lightning looks it up.
    """
    path = override_value(words, "ckpt_path")
    return path if isinstance(path, str) and "${" not in path and not _is_lightning_lookup(path) else None


def override_value(words: Sequence[str], key: str) -> Any:
    """Return the last value of a key in a command, as Hydra parses it; None without a value, and for a sweep."""
    values = [_value(word) for word in words if _key(word) == key]
    return values[-1] if values else None


def _is_lightning_lookup(path: str) -> bool:
    """Return True if Lightning looks the checkpoint up by a word, or opens it as a URL."""
    return path in _LIGHTNING_WORDS or "://" in path


def _is_trusted(run_folder: Path, words: Sequence[str]) -> bool:
    """Return True if a run is in the current folder, or the command trusts it."""
    # Links are resolved: a link in the current folder may lead to anybody's run.
    if run_folder.resolve().is_relative_to(Path.cwd().resolve()):
        return True
    return override_value(words, "trust_run") is True


def _with_quoted_path(word: str) -> str:
    """Quote PATH in ``ckpt_path=PATH`` if it exists and Hydra would parse its name as something else."""
    prefix, _, path = word.partition("=")
    if _key(word) != "ckpt_path" or not os.path.lexists(path) or _value(word) == path:
        return word
    return f"{prefix}={quote_for_hydra(path)}"


def _value(word: str) -> Any:
    """Return the value of an override as Hydra parses it, or None for a sweep and for text that Hydra cannot parse."""
    override = _parsed(word)
    return None if override is None or override.is_sweep_override() else override.value()


def _parsed(word: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(word)
    # The parser is recursive, so a word of a hostile file that nests deep enough ends it.
    except (HydraException, RecursionError):
        return None


def _refusal(word: str) -> str | None:
    """Return why an override from a file is refused, or None if it is allowed."""
    if "${" in word:
        return "is looked up"
    override = _parsed(word)
    if override is None:
        return "is not an override"
    # A package, as in `model@_global_`, would move the keys of an option to another node.
    root, *parts = override.key_or_group.split(".")
    allowed_roots = _GROUPS | {"paths"} if parts else _GROUPS | _ROOT_KEYS
    has_plain_key = all(re.fullmatch(r"\w+", part) for part in parts)
    if root not in allowed_roots or override.package is not None or not has_plain_key:
        return "is not a key or a group of the shipped configs"
    if override.is_sweep_override():
        return "is a sweep"
    value = override.value()
    texts = list(_texts(value))
    # Hydra's escapes can produce an interpolation that the raw word does not contain.
    if any("${" in text for text in texts):
        return "is looked up"
    # Keys such as _target_, _partial_ and _recursive_ steer `instantiate`.
    settings = list(_settings(parts[-1] if parts else "", value))
    names = {*parts, *(name for name, _ in settings)}
    if any(name.startswith("_") for name in names):
        return "names code"
    # Options of a compiler can name programs to run.
    if "compile" in names and not isinstance(value, bool):
        return "chooses a compiler"
    if not parts and root in _GROUPS and not isinstance(value, dict):
        return None if all(map(_is_option, texts)) else "is not an option of a group"
    if root == "dataset" or _is_output_key(override.key_or_group):
        return None  # the data may be anywhere; output keys are not replayed
    if names & _OUTPUT_KEYS:
        return "names an output"
    # A name of weights is fine, but a file could be a hostile pickle, and an address would be opened.
    for name, text in settings:
        if isinstance(text, str) and (_may_be_location(text) or (name in _WEIGHTS_KEYS and not _is_option(text))):
            return "names a file or an address"
    return None


def _is_option(text: str) -> bool:
    """Return True if a string is a plain name, which cannot be the path of a file outside of the current folder."""
    return re.fullmatch(r"\w[\w-]*", text) is not None


def _settings(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield every scalar of a parsed value with its nearest key, and every key of its mappings."""
    if isinstance(value, dict):
        # A key is yielded even if its value is an empty mapping, so that no key escapes the checks.
        for key, item in value.items():
            yield str(key), None
            yield from _settings(str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _settings(name, item)
    else:
        yield name, value


def _texts(value: object) -> list[str]:
    """Return every non-empty string of a parsed value, including the keys of mappings."""
    return [text for setting in _settings("", value) for text in setting if isinstance(text, str) and text]


def _may_be_location(text: str) -> bool:
    """Return True if a string may name a file or an address; a slash in the name of a metric or model is fine."""
    return text.startswith(("/", "~", "./")) or ":" in text or "\\" in text or ".." in text.split("/")


def _is_unused(key: str, command: str) -> bool:
    """Return True if a key sets transforms that the user added to a stage which a command does not run."""
    match = re.match(r"datamodule\.(\w+)_transforms\.extra_(before|after)\b", key)
    return match is not None and command in _STAGES and match[1] != _STAGES[command]


def _is_output_key(key: str) -> bool:
    root, *parts = key.split(".")
    if root == "dataset":
        return parts == ["cache_dir"]
    return root == "paths" or (bool(parts) and parts[-1] in _OUTPUT_KEYS)


def _read(file: Path) -> list[str]:
    """Return the overrides in a file.

    Raises:
        ConfigError: If the file cannot be read as a list of strings.
    """
    try:
        # A hostile file may be endless, such as a link to /dev/zero.
        with file.open("rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        overrides = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ConfigError(f"{file} should be a list of the overrides that started the run")
    return overrides


def _key(word: str) -> str:
    """Return the key that a word of a command sets, chooses or deletes; a flag is returned unchanged."""
    return re.match(r"[+~]*([^=]*)", word)[1].partition("@")[0]  # type: ignore[index]


def _parents(key: str) -> set[str]:
    """Return the ancestors of a key: for ``model.optimizer.lr``, ``model`` and ``model.optimizer``."""
    parts = key.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}
