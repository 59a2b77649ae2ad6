"""The format of a loader's state: a small dict of plain values with a version, checked when it is loaded.

NOTE [State]
    version        2
    resumable      True, or False with `reason` (a str) as the only other field
    kind           "order"      with a seed: positions of an `OrderSampler`
                   "sampler"    a custom sampler with a state of its own
                   "replay"     with a seed: a custom sampler is iterated anew, and its first indices are dropped
                   "generator"  without a seed: a sampler of torch's, by the state of its generator
                   "count"      without a seed: any other sampler is iterated anew, and its first indices are dropped
                   "stream"     an iterable dataset
    seed, epoch    the loader's seed, or None; the epoch of the next batch
    last_set       the epoch that ``set_epoch`` was last called with before it began, or None
    position       how much was received of the epoch: positions of the global order, or batches of a rank
    dataset_length `len(dataset)`, or None
    dataset_state  the dataset's own ``state_dict()``, of an iterable dataset from before the epoch, or None
    global_batch   ``batch_size * world_size``, or None if batches have no such size
    and the fields of its kind: see `_FIELDS`.

With a seed it is the same on every rank, because no field depends on the rank. It has no checksum: checkpoints have
their own (``torch.save`` writes a zip archive), and every field is checked alone and against the loader.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from lit_loader.errors import ResumeError

VERSION: Final = 2

_MAX_DEPTH = 32
_MAX_VALUES = 10**6


def is_plain(value: Any) -> bool:
    """Return True if a value is made of plain values.

    These are None, bool, int, float, str, tensors, lists, tuples and dicts with str or int keys. Such a value loads
    under ``weights_only=True``, and is JSON if it holds no tensor. At most 32 levels and a million values are allowed;
    a list that occurs several times is counted each time.
    """
    num_values = 0
    remaining = [(value, 0)]
    while remaining:
        part, depth = remaining.pop()
        num_values += 1
        if part is None or type(part) in (bool, int, float, str):
            continue
        if type(part) is Tensor:
            if _is_dense(part):
                continue
            return False
        if depth == _MAX_DEPTH or num_values + len(remaining) > _MAX_VALUES:
            return False
        if type(part) is dict and all(type(key) in (str, int) for key in part):
            remaining.extend((item, depth + 1) for item in part.values())
        elif type(part) in (list, tuple):
            remaining.extend((item, depth + 1) for item in part)
        else:
            return False
    return True


def _is_dense(tensor: Tensor) -> bool:
    """Return True if a tensor is dense and has memory for all of its elements (an expanded one has not)."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


# -- the rules of the fields -------------------------------------------------------------------------------

_COUNT = "an int from 0 to 2**62"
_INT = "an int"
_TEXT = "a str of at most 1,000 characters"
_GENERATOR = "a str of at most 10,000 characters"
_BOOL = "a bool"
_LIST = "a list"
_NONE = "None"
_ANY = "made of plain values"  # every field is
_PAIR = "a pair"
_PLACES = "a list with [samples, batches, ended, pair of states, digest] of each worker"

_RULES: dict[str, Callable[[Any], bool]] = {
    _COUNT: lambda value: type(value) is int and 0 <= value <= 2**62,
    _INT: lambda value: type(value) is int,
    _TEXT: lambda value: type(value) is str and len(value) <= 1000,
    _GENERATOR: lambda value: type(value) is str and len(value) <= 10_000,
    _BOOL: lambda value: type(value) is bool,
    _LIST: lambda value: type(value) in (list, tuple),
    _NONE: lambda value: value is None,
    _ANY: lambda value: True,
    _PAIR: lambda value: type(value) in (list, tuple) and len(value) == 2,
    _PLACES: lambda value: _fits(value, (_LIST,)) and all(map(_is_place, value)),
}
_PLACE = ((_COUNT,), (_COUNT,), (_BOOL,), (_PAIR, _NONE), (_TEXT, _NONE))

_Fields = dict[str, tuple[str, ...]]
_COMMON: _Fields = {
    "kind": (_TEXT,),
    "seed": (_INT, _NONE),
    "epoch": (_COUNT,),
    "last_set": (_COUNT, _NONE),
    "position": (_COUNT,),
    "dataset_length": (_COUNT, _NONE),
    "dataset_state": (_ANY,),
    "global_batch": (_COUNT, _NONE),
}
_CUSTOM: _Fields = {**_COMMON, "sampler": (_TEXT,), "world_size": (_COUNT, _NONE)}
_FIELDS: dict[str, _Fields] = {
    "order": {**_COMMON, "sampler": (_TEXT,), "sampler_seed": (_INT, _NONE), "fingerprint": (_TEXT,)},
    "sampler": {**_CUSTOM, "samples": (_COUNT,), "sampler_state": (_ANY,), "start": (_LIST, _NONE)},
    "replay": {**_CUSTOM, "samples": (_COUNT,), "digest": (_TEXT, _NONE)},
    "generator": {**_CUSTOM, "generator": (_GENERATOR, _NONE), "base_seed_drawn": (_BOOL,)},
    "count": _CUSTOM,
    "stream": {**_COMMON, "world_size": (_COUNT,), "num_workers": (_COUNT,), "workers": (_PLACES,), "turn": (_COUNT,)},
}


def _fits(value: Any, rules: tuple[str, ...]) -> bool:
    return any(_RULES[rule](value) for rule in rules)


def _is_place(value: Any) -> bool:
    return _fits(value, (_LIST,)) and len(value) == len(_PLACE) and all(map(_fits, value, _PLACE))


def check_state(state: Any) -> dict[str, Any]:
    """Return a state from an untrusted source if it has the right format.

    Raises:
        ResumeError: If it has not; the message names the field, its value and the rule.
    """
    problem = find_problem(state)
    if problem is not None:
        raise ResumeError(problem, remedy="to start afresh on purpose, load no state")
    checked: dict[str, Any] = state
    return checked


def find_problem(state: Any) -> str | None:
    """Return the first mistake in the format of a state from an untrusted source, or None."""
    if not isinstance(state, dict):
        return f"expected a loader's state as a dict, got {type(state).__name__}"
    for name, value in state.items():
        if not is_plain(value):
            return f"{name}={_shorten(value)} of a loader's state must be {_ANY}"
    version = state.get("version")
    resumable = state.get("resumable")
    kind = state.get("kind")
    if type(version) is not int or version != VERSION:
        return (
            f"version={_shorten(version)} of a loader's state must be {VERSION}; got a dict with the keys "
            f"{_shorten(list(state))}; if a newer lit_loader has saved it, install that"
        )
    if type(resumable) is not bool:
        return f"resumable={_shorten(resumable)} of a loader's state must be True or False"
    if resumable and (type(kind) is not str or kind not in _FIELDS):
        return f"kind={_shorten(kind)} of a loader's state must be one of {list(_FIELDS)}"
    fields = _FIELDS[str(kind)] if resumable else {"reason": (_TEXT,)}
    missing = {"version", "resumable", *fields} - set(state)
    unknown = set(state) - {"version", "resumable", *fields}
    if missing or unknown:
        return f"a loader's state lacks {sorted(missing)}, and has unknown fields {_shorten(list(unknown))}"
    for name, rules in fields.items():
        if not _fits(state[name], rules):
            return f"{name}={_shorten(state[name])} of a loader's state must be {' or '.join(rules)}"
    if kind == "stream":
        count = max(1, state["num_workers"])
        if len(state["workers"]) != count or state["turn"] >= count:
            return (
                f"workers={_shorten(state['workers'])} and turn={state['turn']} of a loader's state do not fit its "
                f"num_workers={state['num_workers']}"
            )
    return None


def _shorten(value: Any) -> str:
    # Not repr(): if nested lists occur several times, their text can be huge.
    return reprlib.repr(value)[:200]
