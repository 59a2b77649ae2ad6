"""The format of a loader's state: a small dict of plain values with a version, checked when it is loaded.

NOTE [State]
    version        1
    resumable      True, or False with `reason` (a str) as the only other field
    kind           "order"    positions of an `OrderSampler`
                   "sampler"  the custom sampler has a state of its own
                   "replay"   the custom sampler is iterated anew, and what it gave before is dropped
                   "stream"   an iterable dataset
    seed, epoch    the loader's seed, or None; the epoch of the next batch
    last_set       the epoch that ``set_epoch`` was last called with before it began, or None
    position       how much was received of the epoch: positions of the global order, or batches of a rank
    dataset_length `len(dataset)`, or None
    dataset_state  what the dataset's own ``state_dict()`` returned, if it has one; an iterable dataset's from before
                   the epoch
    and the fields of its kind: see `_FIELDS`.

With a seed it is the same on every rank, because no field depends on the rank. It has no checksum: checkpoints have
their own (``torch.save`` writes a zip archive), and every field is checked by itself and against the loader.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import Repr
from typing import Any, Final

import torch
from torch import Tensor

VERSION: Final = 1

_MAX_COUNT = 2**62
_MAX_TEXT = 1000
_MAX_DEPTH, _MAX_VALUES = 32, 10**6
_AFRESH = "to start afresh on purpose, load no state"


def is_plain(value: Any) -> bool:
    """Whether a value is made of None, bool, int, float, str, tensors, lists, tuples and dicts with str or int keys.

    Such a value loads under ``weights_only=True``, and is JSON if it holds no tensor. At most 32 levels and a million
    values are allowed; a list that occurs several times is counted each time.
    """
    num_values, left = 0, [(value, 0)]
    while left:
        part, depth = left.pop()
        num_values += 1
        if part is None or type(part) in (bool, int, float, str):
            continue
        if type(part) is Tensor:
            if _is_dense(part):
                continue
            return False
        if depth == _MAX_DEPTH or num_values + len(left) > _MAX_VALUES:
            return False
        if type(part) is dict and all(type(key) in (str, int) for key in part):
            left.extend((item, depth + 1) for item in part.values())
        elif type(part) in (list, tuple):
            left.extend((item, depth + 1) for item in part)
        else:
            return False
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is dense and has memory for all of its elements (an expanded one has not)."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


# -- the rules of the fields -------------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= _MAX_TEXT


def _is_place(value: Any) -> bool:
    """Whether it is [samples, batches, ended] of a worker."""
    return _is_list(value, 3) and _is_count(value[0]) and _is_count(value[1]) and type(value[2]) is bool


def _is_list(value: Any, length: int | None = None) -> bool:
    return type(value) in (list, tuple) and (length is None or len(value) == length)


_Rule = tuple[str, Callable[[Any], bool]]

_ANY: _Rule = ("made of plain values", is_plain)
_COUNT: _Rule = (f"an int from 0 to {_MAX_COUNT - 1}", _is_count)
_COUNT_OR_NONE: _Rule = (f"{_COUNT[0]}, or None", lambda value: value is None or _is_count(value))
_INT_OR_NONE: _Rule = ("an int or None", lambda value: value is None or type(value) is int)
_TEXT: _Rule = ("a str of at most 1,000 characters", _is_text)
_TEXT_OR_NONE: _Rule = (f"{_TEXT[0]}, or None", lambda value: value is None or _is_text(value))
_LIST: _Rule = ("a list of indices or batches", _is_list)
_PLACES: _Rule = (
    "a list with [samples, batches, ended] of each worker: two ints from 0 and a bool",
    lambda value: _is_list(value) and len(value) > 0 and all(map(_is_place, value)),
)
_STATES: _Rule = (
    "a list with a pair of states, or None, of each worker; or None",
    lambda value: value is None or (_is_list(value) and all(v is None or _is_list(v, 2) for v in value)),
)
_DIGESTS: _Rule = (
    "a list with a str, or None, of each worker; or None",
    lambda value: value is None or (_is_list(value) and all(v is None or type(v) is str for v in value)),
)

_COMMON: dict[str, _Rule] = {
    "kind": _TEXT,
    "seed": _INT_OR_NONE,
    "epoch": _COUNT,
    "last_set": _COUNT_OR_NONE,
    "position": _COUNT,
    "dataset_length": _COUNT_OR_NONE,
}
_CUSTOM: dict[str, _Rule] = {
    **_COMMON,
    "sampler": _TEXT,
    "batch_size": _COUNT_OR_NONE,
    "world_size": _COUNT,
    "samples": _COUNT,
    "generators": _ANY,
}
_FIELDS: dict[str, dict[str, _Rule]] = {
    "order": {
        **_COMMON,
        "sampler": _TEXT,
        "sampler_seed": _INT_OR_NONE,
        "fingerprint": _TEXT,
        "global_batch": _COUNT,
    },
    "sampler": {**_CUSTOM, "sampler_state": _ANY},
    "replay": {**_CUSTOM, "digest": _TEXT_OR_NONE},
    "stream": {
        **_COMMON,
        "batch_size": _COUNT_OR_NONE,
        "world_size": _COUNT,
        "num_workers": _COUNT,
        "workers": _PLACES,
        "states": _STATES,
        "firsts": _DIGESTS,
        "turn": _COUNT,
    },
}
# `start` is there on several ranks, which fill up the epoch's end from it.
_OPTIONAL: dict[str, _Rule] = {"dataset_state": _ANY, "start": _LIST}


def check_state(state: Any) -> dict[str, Any]:
    """Return a state from an untrusted source if it has the right format.

    Raises:
        ValueError: If it has not; the message names the field, its value and the rule.
    """
    if not isinstance(state, dict):
        raise ValueError(f"a loader's state is a dict, got {type(state).__name__}; {_AFRESH}")
    for name, value in state.items():
        if not is_plain(value):
            raise ValueError(f"{name}={_shown(value)} of a loader's state must be {_ANY[0]}; {_AFRESH}")
    names = _shown(sorted(map(str, state)))
    version, resumable, kind = state.get("version"), state.get("resumable"), state.get("kind")
    if type(version) is not int or version < 1:
        raise ValueError(
            f"version={_shown(version)} of a loader's state should be 1; got a dict with the keys {names}; {_AFRESH}"
        )
    if version > VERSION:
        raise ValueError(
            f"version={version} of a loader's state was written by a newer lit_loader, and this one reads up to "
            f"version={VERSION}; install a newer lit_loader, or, {_AFRESH}"
        )
    if type(resumable) is not bool:
        raise ValueError(f"resumable={_shown(resumable)} must be True or False; {_AFRESH}")
    if resumable and (type(kind) is not str or kind not in _FIELDS):
        raise ValueError(f"kind={_shown(kind)} must be one of {list(_FIELDS)}; {_AFRESH}")
    rules = _FIELDS[str(kind)] if resumable else {"reason": _TEXT}
    if missing := sorted({"version", "resumable", *rules} - set(state)):
        raise ValueError(f"a loader's state lacks {missing}, it has {names}; {_AFRESH}")
    optional = _OPTIONAL if resumable else {}
    if unknown := [key for key in state if key not in {"version", "resumable", *rules, *optional}]:
        raise ValueError(f"a loader's state has unknown fields {_shown(unknown)}; {_AFRESH}")
    for name, (rule, is_met) in {**rules, **optional}.items():
        if name in state and not is_met(state[name]):
            raise ValueError(f"{name}={_shown(state[name])} of a loader's state must be {rule}; {_AFRESH}")
    if kind == "stream":
        _check_workers(state)
    return state


def _check_workers(state: dict[str, Any]) -> None:
    """Refuse a stream's state whose fields disagree on the number of workers."""
    count = max(1, state["num_workers"])
    states, firsts = state["states"], state["firsts"]
    lists = [state["workers"], *(given for given in (states, firsts) if given is not None)]
    fits = all(len(given) == count for given in lists) and (states is None) == (firsts is None)
    if not fits or state["turn"] >= count:
        raise ValueError(
            f"num_workers={state['num_workers']} of a loader's state does not fit its workers="
            f"{_shown(state['workers'])}, states={_shown(states)}, firsts={_shown(firsts)} and turn={state['turn']}; "
            f"{_AFRESH}"
        )


_repr = Repr()  # bounded, because a plain repr of nested lists that occur several times can be huge
_repr.maxlevel, _repr.maxlist, _repr.maxdict, _repr.maxtuple = 4, 20, 20, 20
_repr.maxstring = _repr.maxother = 200


def _shown(value: Any) -> str:
    try:
        text = _repr.repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."
