"""Run an app's main function so that a mistake in its config ends with the remedy instead of a traceback."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lit_loader.app.composition.checks import ConfigError, accepted, unknown_key
from lit_loader.errors import LitLoaderError, SettingText, as_argument, message_of
from lit_loader.foundation.escaping import printable

__all__ = ["SHIPPED", "explain", "is_override", "missing_extra", "normalize_words", "run_with_hints", "shipped_targets"]

SHIPPED = Path(__file__).parents[2] / "conf"  # in a wheel a folder, in an editable install a link

# The extra of lit-loader that installs a module, by the name in an error.
_EXTRAS = {
    "faster_coco_eval": "recipes",
    "joblib": "joblib",
    "matplotlib": "plot",
    "obstore": "storage",
    "optuna": "optuna",
    "rfdetr": "rfdetr",
    "safetensors": "timm",
    "submitit": "submitit",
    "submitit_local": "submitit",
    "submitit_slurm": "submitit",
    "tensorboard": "tensorboard",
    "timm": "timm",
    "torchmetrics": "recipes",
    "transformers": "transformers",
    "wandb": "wandb",
}

# Groups that accept a list of options, with the default option of each.
_COMBINED = {"callbacks": "default", "logger": "csv"}

_Nodes = dict[str, Any]  # the nodes at one key of a group, by option


def run_with_hints(
    main: Callable[[], Any], surroundings: AbstractContextManager[Any] | None = None, *, config_name: str = "train"
) -> None:
    """Run a ``@hydra.main`` function; an error in the config or in the data ends it with a message and no traceback.

    Hydra itself lists the options of a group. This function adds the closest key to an unknown one, the config node
    whose constructor refused a value, and the extra that installs a missing module. With ``HYDRA_FULL_ERROR=1`` in the
    environment, errors are raised unchanged. If the reader of the output leaves early (``--help | head``), the run ends
    quietly. Words of the command are rewritten by `normalize_words`; flags such as ``-m`` may be mixed with overrides;
    ``--help`` works without a choice in groups that have no default.

    Args:
        main: The function, which is called again after such a choice.
        surroundings: Context manager that is active during all calls; hints are added to its errors as well.
        config_name: Name of the config, whose keys are in the hints; another than a shipped one counts as ``train``.
    """
    # Hydra's argparse parser takes all overrides at once: after `a=1 -m` it rejects `b=2`.
    sys.argv[1:] = sorted(normalize_words(sys.argv[1:]), key=is_override)
    user_setting = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints the error and exits
    try:
        with _drop_job_banner(), surroundings or nullcontext():
            _run_with_missing_choices(main)
            sys.stdout.flush()
    except (HydraException, OmegaConfBaseException, ConfigError, LitLoaderError, ImportError) as error:
        # An ImportError without a known extra is a bug or a broken installation, which needs the traceback.
        if user_setting == "1" or (isinstance(error, ImportError) and missing_extra(error) is None):
            raise
        kind = "error" if isinstance(error, LitLoaderError | ImportError) else "error in the config"
        sys.stderr.write(printable(f"{kind}: {explain(error, config_name=config_name)}\n"))
        sys.exit(1)
    except BrokenPipeError:
        if not _stdout_reader_left():  # the error is of another pipe
            raise
        # Python flushes stdout at exit, and would print a second BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    finally:
        os.environ.pop("HYDRA_FULL_ERROR")
        if user_setting is not None:
            os.environ["HYDRA_FULL_ERROR"] = user_setting


def is_override(word: str) -> bool:
    """Return True if a word of a command sets, chooses or deletes something in the config."""
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


@contextmanager
def _allow_lazy_help() -> Iterator[None]:
    """Let argparse take the help of Hydra's ``--shell-completion``, which is text only when it is shown.

    Python 3.14 checks a help when its argument is added, so no ``@hydra.main`` function starts there:
    https://github.com/facebookresearch/hydra/issues/3121. Hydra 1.3.8 still has the bug.
    """
    check_help = getattr(argparse.ArgumentParser, "_check_help", None)
    if check_help is None:  # Python 3.13 or older
        yield
        return

    def check_text(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        lazy_help: Any = action.help
        if isinstance(lazy_help, str | None):
            check_help(parser, action)
        else:
            restore()  # Hydra has only one such argument, and no job has started yet

    def restore() -> None:
        argparse.ArgumentParser._check_help = check_help  # type: ignore[attr-defined]

    argparse.ArgumentParser._check_help = check_text  # type: ignore[attr-defined]
    try:
        yield
    finally:
        restore()


@contextmanager
def _drop_job_banner() -> Iterator[None]:
    """Drop the line with all overrides that Hydra prints before the error of a failed job."""
    stream = sys.stderr
    write = stream.write

    def write_other_text(text: str) -> int:
        return len(text) if text.startswith("Error executing job with overrides") else write(text)

    stream.write = write_other_text  # type: ignore[method-assign]
    try:
        yield
    finally:
        stream.write = write  # type: ignore[method-assign]


def _run_with_missing_choices(main: Callable[[], Any]) -> None:
    """Run a function; for ``--help``, choose the first option of each group that has no default.

    ``source=FOLDER`` of ``predict`` replaces the dataset, so the user does not have to choose one.
    """
    while True:
        try:
            with _allow_lazy_help():
                main()
            return
        except HydraException as error:
            # Hydra has no exception type for a missing choice, so its text is parsed.
            match = re.search(r"You must specify '([\w/]+)'.*?\n\s*(\w+)$", str(error), re.DOTALL | re.MULTILINE)
            if match is None:
                raise
            group, option = match.groups()
            if group == "dataset" and any(word.startswith("source=") for word in sys.argv[1:]):
                option = "image_files"
            elif not {"--help", "-h"} & {*sys.argv[1:]}:
                raise
            sys.argv.append(f"{group}={option}")


def missing_extra(error: BaseException | None) -> str | None:
    """Return the extra of lit-loader that installs the module that an error, or its cause, reports as missing."""
    while error is not None:
        names: list[str] = []
        if isinstance(error, ImportError):
            names = re.findall(r"\w+", f"{error.name} {error}")
        elif isinstance(error, HydraException):
            # A plugin's options, such as hydra/sweeper/optuna, exist only if the plugin is installed.
            names = re.findall(r"hydra/\w+/(\w+)", str(error))
        for name in names:
            if name in _EXTRAS:
                return _EXTRAS[name]
        error = error.__cause__ or error.__context__
    return None


def _stdout_reader_left() -> bool:
    if not hasattr(select, "poll"):
        return True  # the platform cannot tell; a broken pipe of a command is nearly always its output
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def normalize_words(words: Sequence[str]) -> list[str]:
    """Rewrite words of a command that users write naturally and Hydra rejects.

    ``dataset.options.columns=...`` gets ``++``, since the keys of a format's options are in no YAML file; so does
    ``dataset.sources.plant=...``, since users choose the names of sources; ``+ckpt_path=``, which other apps need,
    becomes ``ckpt_path=``; ``logger=null``, ``callbacks=null`` and ``mixing=null`` become ``logger=none`` and so on,
    since Hydra takes no null as an option.
    """
    words = [re.sub(r"^\+(?=ckpt_path=)", "", word) for word in words]
    words = [re.sub(r"^(logger|callbacks|mixing)=null$", r"\1=none", word) for word in words]
    open_keys = r"^(?=dataset\.(options|stage_options|policy|storage|sources|classes|missing|ratio)\b)"
    return [re.sub(open_keys, "++", word) for word in words]


def explain(
    error: Exception, write_in: Callable[[str], SettingText] = lambda node: as_argument, *, config_name: str = "train"
) -> str:
    """Return the message of an error of Hydra, OmegaConf or the checks, with the remedy where one is known.

    Args:
        error: The error.
        write_in: Function that returns how to write a setting of the node that raised the error.
        config_name: See `run_with_hints`.
    """
    if (extra := missing_extra(error)) is not None:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        install = f"pip install 'lit-loader[{extra}]'"
        return reason if install in reason else f"{reason.rstrip('.:')}; install the extra: {install}"
    # Hydra and OmegaConf give keys only in the text of their errors.
    unknown = re.search(r"Could not override '([\w.]+)'", str(error))
    full_key = re.search(r"^ *full_key: (\S+)", f"{error}\n{error.__cause__}", re.MULTILINE)
    if unknown is not None:
        # For a key in a mapping, as in `a={b: 1}`, only one of the two has the whole path.
        key = max(unknown[1], full_key[1] if full_key else "", key=len)
        return _explain_unknown_key(key, config_name) or str(error)
    mapping = re.match(r"Error merging override \+*([\w.]+\.extra_(?:before|after))=\{", str(error))
    if mapping is not None:
        return f"{mapping[1]} is a list of transforms; put the mapping into one: {mapping[1]}=[{{_target_: ...}}]"
    if isinstance(error, InstantiationException) and full_key and error.__cause__ is not None:
        node = full_key[1]
        refusal = message_of(error.__cause__, write_in(node)).removeprefix("+")
        place = "" if refusal.startswith(f"{node}.") else f"{node}: "
        return f"{place}{refusal} (HYDRA_FULL_ERROR=1 shows the traceback)"
    if isinstance(error, HydraException):
        # Hydra indents its lists by tabs, which `printable` would escape.
        return f"{_suggested_option(error)}{error}".replace("\t", "    ")
    return message_of(error)


def _suggested_option(error: HydraException) -> str:
    """Return a line with the closest option if an option does not exist, else an empty text."""
    if not isinstance(error, MissingConfigException):
        return ""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = difflib.get_close_matches(name, error.options or (), n=1)
    return f"{group} has no option {name!r}; did you mean {group}={options[0]}?\n" if group and options else ""


@cache
def _shipped_groups() -> dict[str, _Nodes]:
    """Return the keys of the shipped options by group, as in their YAML files."""
    # Hydra does not know the keys of options that a config has not chosen, so the files are read again.

    def read(path: Path) -> Any:
        node: Any = OmegaConf.load(path)
        bases = [path.with_name(f"{name}.yaml") for name in node.pop("defaults", ()) if name != "_self_"]
        return OmegaConf.merge(*map(read, bases), node)

    groups: dict[str, _Nodes] = {}
    for path in sorted(SHIPPED.glob("*/*.yaml")):
        is_global = path.read_text().startswith("# @package _global_")
        if path.stem != "base" and path.parent.name != "hydra" and not is_global:
            options = groups.setdefault(path.parent.name, {})
            options[path.stem] = OmegaConf.to_container(read(path), resolve=False)
    return groups


def shipped_targets(group: str) -> dict[str, str]:
    """Return the ``_target_`` of each option of a group."""
    options = _shipped_groups().get(group, {})
    return {option: str(node["_target_"]) for option, node in options.items() if node.get("_target_")}


def _root_nodes(config_name: str) -> _Nodes:
    """Return the root nodes of a shipped config without groups and without Hydra's node."""
    nodes: _Nodes = {}
    for name in dict.fromkeys(["train", config_name]):  # the other configs extend `train`
        path = SHIPPED / f"{name}.yaml"
        config: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
        nodes |= {str(key): node for key, node in config.items() if key not in ("defaults", "hydra")}
    return nodes


def _root_keys(config_name: str) -> list[str]:
    groups = sorted({path.parent.name for path in SHIPPED.glob("*/*.yaml")})
    # Groups with options of their own come first, and so win among equally close matches.
    return list(dict.fromkeys([*_shipped_groups(), *groups, *_root_nodes(config_name)]))


def _options_of(root_key: str, config_name: str) -> _Nodes:
    """Return the nodes at a root key by option; a config's own mapping, such as ``predict``, is one option."""
    node = _root_nodes(config_name).get(root_key)
    return {config_name: node} if isinstance(node, dict) else _shipped_groups().get(root_key, {})


def _exists(key: str, config_name: str) -> bool:
    """Return True if a shipped option has a key."""
    group, *parts = key.split(".")
    nodes = [*_options_of(group, config_name).values()]
    for name in parts:
        nodes = [node[name] for node in nodes if isinstance(node, dict) and name in node]
    return bool(nodes)


def _explain_unknown_key(key: str, config_name: str) -> str | None:
    """Return why Hydra did not find a key: the first part of the key that no option of its group has."""
    group, *parts = key.split(".")
    if group not in _root_keys(config_name):
        return _explain_unknown_root([group, *parts], config_name)
    options = _options_of(group, config_name)
    nodes = options
    parents: _Nodes = {}
    path = group
    # Walk down the key in all options of the group at once, until no option has the next part.
    for depth, name in enumerate(parts):
        pointed_group = next(map(_pointed_group, nodes.values()), None)
        if pointed_group is not None:
            return f"{path} points to the group {pointed_group}; set {'.'.join([pointed_group, *parts[depth:]])}"
        mappings = {option: node for option, node in nodes.items() if isinstance(node, dict)}
        children = {option: node[name] for option, node in mappings.items() if name in node}
        if not children and not any(mappings.values()):
            break  # the node is null or empty, so any key may be added
        if not children:
            # If the chosen option is unknown, all of them count.
            chosen = _chosen_option(group)
            mappings = {chosen: mappings[chosen]} if chosen is not None and mappings.get(chosen) else mappings
            nested_keys = _nested_keys(path, name, mappings.values())
            signatures = [accepted(path, node, parents.get(option, {})) for option, node in mappings.items()]
            if not nested_keys and any(name in signature.types for signature in signatures if signature is not None):
                return f"{key} is not in this config; +{key}=VALUE adds another of its arguments"
            if name == "_target_":
                return f"{path} holds keywords; to replace it, pass ~{path} '+{path}={{_target_: ...}}'"
            keys = [key for signature in signatures if signature is not None for key in signature.types]
            keys += [key for node in mappings.values() for key in node if not key.startswith("_")]
            return unknown_key(path, name, list(dict.fromkeys(keys)), nested_keys)
        parents = nodes
        nodes = children
        path = f"{path}.{name}"
    # Other options have the key, and the chosen one does not.
    if path == key and len(nodes) < len(options):
        choices = " or ".join(f"{group}={option}" for option in nodes)
        several = f", several by {group}=[{_COMBINED[group]},{parts[0]}]" if group in _COMBINED else ""
        return f"{key} belongs to {choices}; choose one of these{several}"
    node, _, name = key.rpartition(".")
    if not node:
        return None
    alternative = f"; if {node} is null, pass {node}='{{{name}: VALUE}}'" if "." in node else ""
    return f"{key} is not in this config; add it with +{key}=VALUE{alternative}"


def _chosen_option(group: str) -> str | None:
    """Return the shipped option of a group that the command, its experiment or the default chooses."""
    # Hydra has not composed a config at this point, so the choice is read from the command line.
    words = {key: value for key, _, value in (word.partition("=") for word in sys.argv[1:])}
    choices: dict[str, Any] = {}
    for path in (SHIPPED / "train.yaml", SHIPPED / "experiment" / f"{words.get('experiment')}.yaml"):
        config: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
        for entry in config.get("defaults", ()):
            if isinstance(entry, dict):
                choices |= {key.removeprefix("override /"): value for key, value in entry.items()}
    option = words.get(group, choices.get(group))
    return option if isinstance(option, str) else None


def _pointed_group(value: object) -> str | None:
    """Return the group that a value such as ``${workers}`` or ``${oc.select:batching,null}`` points to, or None."""
    match = re.match(r"\$\{(?:oc\.select:)?(\w+)[,}]", str(value))
    return None if match is None else match[1]


def _nested_keys(path: str, name: str, nodes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the keys of a name that are one level deeper, in a mapping or in a group that a value points to."""
    keys: dict[str, None] = {}
    for key, value in [item for node in nodes for item in node.items()]:
        if key == "source":
            continue  # its num_workers are processes that read annotations
        group = _pointed_group(value)
        if group is not None and any(name in option for option in _shipped_groups().get(group, {}).values()):
            keys[f"{group}.{name}"] = None
        elif isinstance(value, dict) and name in value:
            keys[f"{path}.{key}.{name}"] = None
    return list(keys)


def _explain_unknown_root(parts: list[str], config_name: str) -> str:
    paths_by_leaf: dict[str, list[str]] = {}
    for group, options in _shipped_groups().items():
        for name in dict.fromkeys(name for node in options.values() for name in node):
            paths_by_leaf.setdefault(name, []).append(f"{group}.{name}")
    root_keys = _root_keys(config_name)
    suggestion = ""
    # Users forget the name of the group, so keys one level below are candidates as well.
    for match in difflib.get_close_matches(parts[0], [*root_keys, *paths_by_leaf], n=1, cutoff=0.6):
        paths = [match] if match in root_keys else paths_by_leaf[match]
        full_paths = [".".join([path, *parts[1:]]) for path in paths]
        suggestions = [path for path in full_paths if _exists(path, config_name)] or [match] * (match in root_keys)
        suggestion = f"did you mean {' or '.join(suggestions)}? " if suggestions else ""
    key = ".".join(parts)
    return f"unknown key {key!r}; {suggestion}Top-level keys: {', '.join(root_keys)}; +{key}=VALUE adds your own key"
