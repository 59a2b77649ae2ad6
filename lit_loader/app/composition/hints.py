"""Hints: an app's main function run so that a mistake in its config ends with the remedy, not a traceback."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, InstantiationException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lit_loader.app.composition.checks import ConfigError, accepted, unknown_key
from lit_loader.errors import LitLoaderError, SettingText, as_argument, message_of
from lit_loader.foundation.escaping import printable
from lit_loader.foundation.signatures import signature_of

__all__ = [
    "SHIPPED",
    "extra_of",
    "is_override",
    "run_with_hints",
    "shipped_targets",
    "what_is_wrong",
    "with_free_keys",
]

SHIPPED = Path(__file__).parents[2] / "conf"  # in a wheel a folder, in an editable install a link

_EXTRAS = {  # what an extra of lit-loader installs, by the name in an error
    "faster_coco_eval": "recipes",
    "matplotlib": "plot",
    "optuna": "optuna",
    "safetensors": "timm",
    "tensorboard": "tensorboard",
    "timm": "timm",
    "torchmetrics": "recipes",
    "wandb": "wandb",
}

_Nodes = dict[str, Any]  # what options of a group have at a key, by option


def run_with_hints(main: Callable[[], Any]) -> None:
    """Run a ``@hydra.main`` function; an error in the config or in the data ends it with a message and no traceback.

    Hydra lists the options of a group that does not have the one asked for; this adds what is meant by a
    key that does not exist, which node of the config gave a constructor what it refuses, and which extra installs what
    is not there. With ``HYDRA_FULL_ERROR=1`` in the environment errors are raised as they are. A reader of the output
    that leaves early (``--help | head``) ends the run quietly. Words of the command are changed as `with_free_keys`
    does; flags such as ``-m`` may stand between overrides; ``--help`` needs no choice in groups without a default.
    """
    sys.argv[1:] = sorted(with_free_keys(sys.argv[1:]), key=is_override)
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints and exits by itself
    held: list[str] = []
    try:
        with _held_back(held):
            _with_choices_for_help(main)
            sys.stdout.flush()
    except (HydraException, OmegaConfBaseException, ConfigError, LitLoaderError, ImportError) as error:
        is_config = not isinstance(error, LitLoaderError | ImportError)
        if before == "1" or (isinstance(error, ImportError) and extra_of(error) is None):
            sys.stderr.writelines(held)
            raise
        kind = "error in the config" if is_config else "error"
        sys.stderr.write(printable(f"{kind}: {what_is_wrong(error)}\n"))
        sys.exit(1)
    except BrokenPipeError:
        if not _reader_left():  # some other pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(1)
    except Exception:
        sys.stderr.writelines(held)
        raise
    finally:
        if before is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def is_override(word: str) -> bool:
    """Return whether a word of a command sets, chooses or deletes something in the config."""
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


@contextmanager
def _lazy_help_allowed() -> Iterator[None]:
    """Let argparse take the help of Hydra's ``--shell-completion``, which is text only when it is shown.

    Python 3.14 checks a help when its argument is added, so no ``@hydra.main`` function starts there:
    https://github.com/facebookresearch/hydra/issues/3121. Hydra 1.3.8 still has it.
    """
    check_help = getattr(argparse.ArgumentParser, "_check_help", None)
    if check_help is None:  # Python 3.13 or older
        yield
        return

    def check_text(parser: argparse.ArgumentParser, action: argparse.Action) -> None:
        if isinstance(action.help, str | None):
            check_help(parser, action)
        else:  # the only such argument; from here on argparse is itself again, before any job runs
            restore()

    def restore() -> None:
        argparse.ArgumentParser._check_help = check_help  # type: ignore[attr-defined]

    argparse.ArgumentParser._check_help = check_text  # type: ignore[attr-defined]
    try:
        yield
    finally:
        restore()


@contextmanager
def _held_back(held: list[str]) -> Iterator[None]:
    """Collect what Hydra writes of a job that failed: all of its overrides, before the error itself."""
    stream = sys.stderr
    write = stream.write

    def hold(text: str) -> int:
        if not text.startswith("Error executing job with overrides"):
            return write(text)
        held.append(text)
        return len(text)

    stream.write = hold  # type: ignore[method-assign]
    try:
        yield
    finally:
        stream.write = write  # type: ignore[method-assign]


def _with_choices_for_help(main: Callable[[], Any]) -> None:
    """Run a function; where help lacks a choice in a group without a default, with its first option.

    ``source=FOLDER`` of ``predict`` replaces the data set, so that none has to be chosen.
    """
    while True:
        try:
            with _lazy_help_allowed():
                main()
            return
        except HydraException as error:
            choice = re.search(
                r"You must specify '([\w/]+)'.*?\n\s*(\w+)$", str(error), re.DOTALL | re.MULTILINE
            )
            reads_images = any(word.startswith("source=") for word in sys.argv[1:])
            if choice is not None and choice[1] == "dataset" and reads_images:
                sys.argv.append("dataset=image_files")
                continue
            if choice is None or not {"--help", "-h"} & {*sys.argv[1:]}:
                raise
            sys.argv.append(f"{choice[1]}={choice[2]}")


def extra_of(error: BaseException | None) -> str | None:
    """Return the extra of lit-loader that installs what an error, or what led to it, did not find."""
    while error is not None:
        found: list[str] = []
        if isinstance(error, ImportError):
            found = re.findall(r"\w+", f"{error.name} {error}")
        elif isinstance(error, HydraException):
            found = re.findall(r"hydra/\w+/(\w+)", str(error))
        for name in found:
            if name in _EXTRAS:
                return _EXTRAS[name]
        error = error.__cause__ or error.__context__
    return None


def _reader_left() -> bool:
    if not hasattr(select, "poll"):
        return True  # it cannot be asked there; a broken pipe of a command is nearly always its output
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def with_free_keys(words: Sequence[str]) -> list[str]:
    """Return the words of a command with ``++`` before the keys of a data set whose parts no YAML file can list.

    Which options there are depends on the format; Hydra refuses ``dataset.options.columns=...`` without it. And
    ``+ckpt_path=``, which adds the key to other apps, sets the one that is here; ``logger=null``, which Hydra takes in
    no command, is ``logger=none``, as for ``callbacks``.
    """
    added = [re.sub(r"^\+(?=ckpt_path=)", "", word) for word in words]
    added = [re.sub(r"^(logger|callbacks)=null$", r"\1=none", word) for word in added]
    return [re.sub(r"^(?=dataset\.(options|stage_options|policy)\b)", "++", word) for word in added]


def what_is_wrong(error: Exception, write: SettingText = as_argument) -> str:
    """Return the message of an error of Hydra's, of OmegaConf's or of the checks, with the remedy where one is known.

    Args:
        error: The error.
        write: How the message writes settings.
    """
    if (extra := extra_of(error)) is not None:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        install = f"pip install 'lit-loader[{extra}]'"
        return reason if install in reason else f"{reason.rstrip('.:')}; install what it needs: {install}"
    refused = re.search(r"Could not override '([\w.]+)'", str(error))
    full_key = re.search(r"^ *full_key: (\S+)", f"{error}\n{error.__cause__}", re.MULTILINE)
    if refused is not None:
        return _hint(max(refused[1], full_key[1] if full_key else "", key=len)) or str(error)
    if isinstance(error, InstantiationException) and full_key and error.__cause__ is not None:
        node = full_key[1]
        refusal = message_of(error.__cause__, write).removeprefix("+")
        place = "" if refusal.startswith(f"{node}.") else f"{node}: "
        return f"{place}{refusal}{_takers(node, refusal)} (HYDRA_FULL_ERROR=1 shows the traceback)"
    return message_of(error, write)


def _takers(group: str, refusal: str) -> str:
    """Return which options of a group take a keyword that the chosen one was given and does not have."""
    name = re.search(r"unexpected keyword argument '(\w+)'", refusal)
    options = _shipped_groups().get(group, {}) if name else {}
    found = {option: signature_of(str(node.get("_target_"))) for option, node in options.items()}
    takers = [
        f"{group}={option}" for option, each in found.items() if each and name and name[1] in each.types
    ]
    return f"; {' or '.join(takers)} takes it" if takers else ""


@cache
def _shipped_groups() -> dict[str, _Nodes]:
    """Return the keys of the shipped options by group, as the YAML files have them."""

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
    found = {option: node.get("_target_") for option, node in _shipped_groups().get(group, {}).items()}
    return {option: str(target) for option, target in found.items() if target}


def _root_keys() -> list[str]:
    groups = {path.parent.name for path in SHIPPED.glob("*/*.yaml")}
    keys = [str(key) for key in OmegaConf.load(SHIPPED / "train.yaml") if key != "defaults"]
    return [*_shipped_groups(), *sorted(groups - _shipped_groups().keys()), *keys]


def _hint(key: str) -> str | None:
    """Return what is wrong with a key that Hydra did not find, by the first part of it that no option has."""
    group, *rest = key.split(".")
    if group not in _root_keys():
        return _unknown_at_the_root([group, *rest])
    nodes = options = _shipped_groups().get(group, {})
    parents: _Nodes = {}
    path = group
    for depth, name in enumerate(rest):
        pointers = [re.match(r"\$\{(?:oc\.select:)?(\w+)[,}]", str(node)) for node in nodes.values()]
        if pointers and pointers[0]:
            pointed = ".".join([pointers[0][1], *rest[depth:]])
            return f"{path} points to the group {pointers[0][1]}; set {pointed}"
        inner = {option: node for option, node in nodes.items() if isinstance(node, dict)}
        found = {option: node[name] for option, node in inner.items() if name in node}
        if not found and not any(inner.values()):
            break  # null or without keys of its own
        if not found:
            signatures = [accepted(path, node, parents.get(option, {})) for option, node in inner.items()]
            if any(name in each.types for each in signatures if each is not None):
                return f"{key} is not in this config; +{key}=VALUE adds another of its arguments"
            if name == "_target_":
                return f"{path} has keywords; put something else in their place by ~{path} '+{path}={{_target_: ...}}'"
            return unknown_key(path, name, _keys_of(path, group, inner, parents))
        nodes, parents, path = found, nodes, f"{path}.{name}"
    if path == key and len(nodes) < len(options):
        belongs = (
            f"{key} belongs to {' or '.join(f'{group}={option}' for option in nodes)}; choose one of these"
        )
        return belongs + _how_to_choose_several(group, rest[0])
    node, _, name = key.rpartition(".")
    whole = f"; where {node} is null, {node}='{{{name}: VALUE}}'" if "." in node else ""
    return f"{key} is not in this config; add it with +{key}=VALUE{whole}" if node else None


def _keys_of(path: str, group: str, nodes: _Nodes, parents: _Nodes) -> list[str]:
    """Return the keys that a node of the chosen option may have, as `validate` lists them."""
    # Without a choice that is known, the keys of all options are listed.
    option = _chosen_option(group)
    keys: dict[str, None] = {}
    for name, node in ({option: nodes[option]} if option in nodes else nodes).items():
        signature = accepted(path, node, parents.get(name, {}))
        if signature is None or signature.is_open:
            keys |= dict.fromkeys(key for key in node if not key.startswith("_"))
        else:
            keys |= dict.fromkeys(signature.types)
    return list(keys)


def _chosen_option(group: str) -> str | None:
    """Return the option that the command, its experiment or the default chooses of a group, if it is a shipped one."""
    words = {key: value for key, _, value in (word.partition("=") for word in sys.argv[1:])}
    configs = [SHIPPED / "train.yaml", SHIPPED / "experiment" / f"{words.get('experiment')}.yaml"]
    choices: dict[str, Any] = {}
    for path in configs:
        config: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
        for entry in config.get("defaults", ()):
            if isinstance(entry, dict):
                choices |= {key.removeprefix("override /"): value for key, value in entry.items()}
    option = words.get(group, choices.get(group))
    return option if isinstance(option, str) else None


def _how_to_choose_several(group: str, option: str) -> str:
    """Return how an option is chosen beside others, in a group whose options are nodes by name."""
    options = _shipped_groups()[group]
    nodes = [node for each in options.values() for node in each.values()]
    if option not in options or not all(isinstance(node, dict) and "_target_" in node for node in nodes):
        return ""
    first = "default" if "default" in options else next(iter(options))
    return f", several by {group}=[{first},{option}]"


def _unknown_at_the_root(parts: list[str]) -> str:
    leaves: dict[str, dict[str, None]] = {}
    for group, options in _shipped_groups().items():
        for name in [name for node in options.values() for name in node]:
            leaves.setdefault(name, {})[f"{group}.{name}"] = None
    known = _root_keys()
    meant = ""
    for close in difflib.get_close_matches(parts[0], [*known, *leaves], n=1, cutoff=0.6):
        found = [close] if close in known else leaves[close]
        meant = "did you mean " + " or ".join(".".join([name, *parts[1:]]) for name in found) + "? "
    key, top = ".".join(parts), ", ".join(known)
    return f"there is no key {key!r}; {meant}At the top: {top}; +{key}=VALUE adds one of your own"
