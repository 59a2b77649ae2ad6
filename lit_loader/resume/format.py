"""The format of a loader's state: a small dict of plain values with a version, checked when it is loaded.

NOTE [State]
    version        1
    resumable      False: only `reason` (a str) stands beside it
    kind           "order"    positions of a sampler of ours
                   "sampler"  the user's sampler has a state of its own
                   "replay"   the user's sampler is asked again for what it gave
                   "stream"   an iterable dataset
    seed, epoch    the loader's seed, or None; the epoch of the next batch
    named          the epoch that was named last before it began (``set_epoch``), or None
    position       what was received of the epoch: positions of the global order, or batches of a rank
    dataset_length `len(dataset)`, or None
    dataset_state  what the dataset's own ``state_dict()`` gave, if it has one; an iterable dataset's before its pass
    check          a sum over all of this: what was damaged or edited is refused
    and what the kind needs: see `FIELDS`.

With a seed it is the same on every rank: nothing in it speaks of one.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import Repr
from typing import Any, Final

from lit_loader.resume.plain import check_sum, is_plain

__all__ = ["FIELDS", "KINDS", "VERSION", "checked_state", "sealed"]

VERSION: Final = 1
_MOST = 2**62


def _count(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value < _MOST else f"an int from 0 to {_MOST - 1}"


def _count_or_none(value: Any) -> str | None:
    return None if value is None else _also_none(_count(value))


def _integer_or_none(value: Any) -> str | None:
    return None if value is None or type(value) is int else "an int or None"


def _text(value: Any) -> str | None:
    return None if type(value) is str and len(value) <= 1000 else "a str of at most 1,000 characters"


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _also_none(_text(value))


def _also_none(rule: str | None) -> str | None:
    return None if rule is None else f"{rule}, or None"


def _plain(value: Any) -> str | None:
    return None if is_plain(value) else "made of plain values"


def _workers(value: Any) -> str | None:
    rule = "a list with [samples, batches, ended] of each worker: two ints from 0 and a bool"
    if type(value) not in (list, tuple) or not value:
        return rule
    for place in value:
        if type(place) not in (list, tuple) or len(place) != 3 or type(place[2]) is not bool:
            return rule
        if _count(place[0]) or _count(place[1]):
            return rule
    return None


def _states(value: Any) -> str | None:
    return None if value is None or type(value) in (list, tuple) else "a list, or None"


def _start(value: Any) -> str | None:
    return None if type(value) in (list, tuple) and is_plain(value) else "a list of indices or batches"


_Rule = Callable[[Any], str | None]

_COMMON: dict[str, _Rule] = {
    "kind": _text,
    "seed": _integer_or_none,
    "epoch": _count,
    "named": _count_or_none,
    "position": _count,
    "dataset_length": _count_or_none,
}
_FOREIGN: dict[str, _Rule] = {
    "sampler": _text,
    "batch_size": _count_or_none,
    "world_size": _count,
    "samples": _count,
    "generators": _plain,
}
_OF_KIND: dict[str, dict[str, _Rule]] = {
    "order": {
        "sampler": _text,
        "sampler_seed": _integer_or_none,
        "fingerprint": _text,
        "global_batch": _count,
    },
    "sampler": {**_FOREIGN, "sampler_state": _plain},
    "replay": {**_FOREIGN, "digest": _text_or_none},
    "stream": {
        "batch_size": _count_or_none,
        "world_size": _count,
        "num_workers": _count,
        "workers": _workers,
        "states": _states,
        "firsts": _states,
        "turn": _count,
    },
}
KINDS: Final = tuple(_OF_KIND)
FIELDS: Final = {kind: {**_COMMON, **own} for kind, own in _OF_KIND.items()}
"""The rule of each field, by kind: returns what the field must be, or None for a value that is so."""

_AFRESH = "to start afresh on purpose, load no state"


def sealed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a state of these fields, with its version and check sum.

    Raises:
        TypeError: If a value is not plain.
        ValueError: If it is nested too deeply.
    """
    state = {"version": VERSION, **fields}
    state["check"] = check_sum(state)
    return state


def checked_state(state: Any) -> dict[str, Any]:
    """Return a state that keeps to the format, from wherever it came.

    Raises:
        ValueError: If it does not; the message names the field, its value and the rule.
    """
    if not isinstance(state, dict):
        raise ValueError(f"a loader's state is a dict, got {type(state).__name__}; {_AFRESH}")
    for name, value in state.items():
        if not is_plain(value):
            raise ValueError(
                f"{name}={_shown(value)} of a loader's state must be made of plain values; {_AFRESH}"
            )
    version = state.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(
            f"version={_shown(version)} of a loader's state should be 1; got a dict with the keys {_names(state)}; "
            f"{_AFRESH}"
        )
    if version > VERSION:
        raise ValueError(
            f"version={version} of a loader's state was written by a newer lit_loader, and this one reads up to "
            f"version={VERSION}; install a newer lit_loader, or, {_AFRESH}"
        )
    resumable = state.get("resumable")
    if type(resumable) is not bool:
        raise ValueError(f"resumable={_shown(resumable)} must be True or False; {_AFRESH}")
    rules: dict[str, _Rule] = {"reason": _text}
    if resumable:
        kind = state.get("kind")
        if type(kind) is not str or kind not in FIELDS:
            raise ValueError(f"kind={_shown(kind)} must be one of {list(KINDS)}; {_AFRESH}")
        rules = dict(FIELDS[kind])
        if "dataset_state" in state:
            rules["dataset_state"] = _plain
        if (
            kind == "sampler" and "start" in state
        ):  # with several ranks, which fill up the epoch's end from it
            rules["start"] = _start
    _check_fields(state, rules)
    return state


def _check_fields(state: dict[str, Any], rules: dict[str, _Rule]) -> None:
    wanted = {"version", "resumable", "check", *rules}
    if missing := sorted(wanted - set(state)):
        raise ValueError(f"a loader's state lacks {missing}, it has {_names(state)}; {_AFRESH}")
    if unknown := [key for key in state if key not in wanted]:
        raise ValueError(f"a loader's state has unknown fields {_shown(unknown)}; {_AFRESH}")
    for name, rule in rules.items():
        if must := rule(state[name]):
            raise ValueError(f"{name}={_shown(state[name])} of a loader's state must be {must}; {_AFRESH}")
    if state.get("kind") == "stream":
        _check_workers(state)
    try:
        found = check_sum({key: value for key, value in state.items() if key != "check"})
    except (TypeError, ValueError) as error:
        raise ValueError(f"a loader's state holds what no state holds: {error}; {_AFRESH}") from None
    if state["check"] != found:
        raise ValueError(
            f"check={_shown(state['check'])} of a loader's state should be {found!r}: it was damaged or edited since "
            f"it was saved; load it as it was saved, or, {_AFRESH}"
        )


def _check_workers(state: dict[str, Any]) -> None:
    """Refuse a stream's state whose fields speak of different workers."""
    count = max(1, state["num_workers"])
    states, firsts = state["states"], state["firsts"]
    lists = [state["workers"], *(given for given in (states, firsts) if given is not None)]
    fits = all(len(given) == count for given in lists) and (states is None) == (firsts is None)
    fits = fits and state["turn"] < count
    fits = fits and all(
        given is None or (type(given) in (list, tuple) and len(given) == 2) for given in states or ()
    )
    fits = fits and all(given is None or type(given) is str for given in firsts or ())
    if not fits:
        raise ValueError(
            f"num_workers={state['num_workers']} of a loader's state does not go with its workers="
            f"{_shown(state['workers'])}, states={_shown(states)}, firsts={_shown(firsts)} and turn={state['turn']}; "
            f"{_AFRESH}"
        )


def _names(state: dict[Any, Any]) -> str:
    return _shown(sorted(map(str, state)))


def _shown(value: Any) -> str:
    try:
        text = _repr.repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


_repr = Repr()  # bounded: lists that share their parts would unfold in a plain repr
_repr.maxlevel, _repr.maxlist, _repr.maxdict, _repr.maxtuple = 4, 20, 20, 20
_repr.maxstring = _repr.maxother = 200
