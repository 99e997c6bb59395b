"""The state of a dataset that knows its own place, as a checkpoint keeps it and as workers send it; pure but for calls.

The protocol is that of torchdata: `state_dict()` says where the dataset is, and `load_state_dict(state)` makes the next
`iter` go on there.  Mosaic's `state_dict(num_samples, from_beginning)` is called with the samples of the epoch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from remora.torch.agreement import ROUNDING
from remora.torch.sample_fingerprints import sample_fingerprint

#: Bytes that the state of a dataset may take: it is kept with every step.
MOST_BYTES = 4 << 20
#: Levels of lists and dictionaries within each other.
_DEPTH = 32
#: What each number, and each entry of a container, counts.
_SMALL = 8
#: Iterables of Hugging Face whose state leaves out the samples that they hold back.
_LOSES = frozenset({"BufferShuffledExamplesIterable"})


def can_resume(data: Any) -> bool:
    """True for a dataset that knows its own place, and whose state does not leave samples out."""
    has_state = callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    )
    return has_state and not any(type(one).__name__ in _LOSES for one in _inside(data))


def _inside(data: Any) -> Iterator[Any]:
    """The iterables that a dataset of Hugging Face is made of; nothing for others."""
    waiting = [getattr(data, "_ex_iterable", None)]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            waiting.append(getattr(one, "ex_iterable", None))
            waiting.extend(getattr(one, "ex_iterables", None) or ())


def seed_generators(data: Any, seed: int) -> None:
    """Seed what a `StatefulDataLoader` draws the order of an epoch from."""
    for one in (data, getattr(data, "sampler", None)):
        if isinstance(generator := getattr(one, "generator", None), torch.Generator):
            generator.manual_seed(seed)


def raw_state(data: Any, samples: int) -> Any:
    """What a dataset that knows its place says of it, which was read up to this number of samples of the epoch."""
    if "num_samples" in inspect.signature(data.state_dict).parameters:
        return data.state_dict(num_samples=samples, from_beginning=True)
    return data.state_dict()


def state_of(data: Any, samples: int) -> Any:
    """A copy of a dataset's state, which was read up to this number of samples of the epoch.

    Raises ValueError for a state that is too large, or holds what a checkpoint does not.
    """
    name = type(data).__name__
    copied, size = _copied(raw_state(data, samples), name, 0)
    if size > MOST_BYTES:
        raise ValueError(
            f"the state of {name} takes {size} bytes, and it is kept with every step: at most {MOST_BYTES}, so let"
            " state_dict() say where the dataset is, and not hold samples"
        )
    return copied


def load(data: Any, state: Any) -> None:
    """Let the next `iter` of a dataset go on from a saved state.  Raises ValueError where that is of another one."""
    # A dataset may keep what it is given, and change it.
    copied, _ = _copied(state, type(data).__name__, 0)
    try:
        data.load_state_dict(copied)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"the saved place in the dataset does not fit {type(data).__name__}, so hand over the same dataset: {said}"
        ) from error


def _copied(value: Any, name: str, depth: int) -> tuple[Any, int]:
    """A value in containers of its own, and about how many bytes it takes."""
    if value is None or isinstance(value, bool):
        return value, _SMALL
    # Those of a class of their own, as NumPy's are, could be written and not be read.
    for base in (int, float):
        if isinstance(value, base):
            return base(value), _SMALL
    if isinstance(value, str):
        return str.__str__(value), len(value)
    if isinstance(value, bytes):
        return bytes(value), len(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(), value.nbytes
    if depth < _DEPTH and isinstance(value, Mapping):
        pairs = [(_key(key, name), *_copied(one, name, depth + 1)) for key, one in value.items()]
        return {key: one for key, one, _ in pairs}, sum(_SMALL + size for _, _, size in pairs)
    if depth < _DEPTH and type(value) in (list, tuple):
        found = [_copied(one, name, depth + 1) for one in value]
        return type(value)(one for one, _ in found), sum(_SMALL + size for _, size in found)
    raise ValueError(
        f"the state of {name} holds a {type(value).__name__}, which no checkpoint keeps: let state_dict() give numbers,"
        " text, bytes, tensors, and lists and dictionaries of them"
    )


def _key(key: Any, name: str) -> Any:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return key if isinstance(key, bool) else int(key)
    raise ValueError(
        f"the state of {name} has a key of type {type(key).__name__}: let it have text or numbers"
    )


def mark_of(item: Any) -> list[float | int]:
    """What is kept of a sample, to see whether a saved place gives the same one again."""
    found = sample_fingerprint(0, 0, item)
    return [found.words, found.total, found.norm]


def check_mark(mark: Any, item: Any, name: str) -> None:
    """Raise ValueError where a dataset gives another sample after `load_state_dict` than it gave before."""
    words, total, norm = mark
    now = sample_fingerprint(0, 0, item)
    allowed = ROUNDING * max(abs(norm), 1e-6)
    if now.words == words and abs(now.total - total) <= allowed and abs(now.norm - norm) <= allowed:
        return
    raise ValueError(
        f"{name} gives other samples after load_state_dict(state_dict()) than before, so samples would be lost or"
        " trained twice: keep what it holds back, and its random numbers, in its state, or take both methods from it,"
        " and it is read from its start"
    )


def merged(before: Any, after: Any) -> Any:
    """What is known of a dataset's places with what is known now; of two places of a shard the later one."""
    if after is None:
        return before
    if not (isinstance(before, Mapping) and "shards" in before):
        return after
    if not (isinstance(after, Mapping) and "shards" in after):
        return before
    shards = dict(before["shards"])
    for shard, one in after["shards"].items():
        if shard not in shards or shards[shard]["place"] <= one["place"]:
            shards[shard] = one
    return {**after, "shards": shards}
