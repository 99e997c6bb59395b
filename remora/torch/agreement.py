"""Whether all workers hold the same weights, and whether these change only where all workers change them alike.

Gradients are averaged, so workers that apply different ones, or apply them to different weights, train on without an
error.  Now and then they compare a digest of what they hold; it costs one pass over the weights and a collective of a
few bytes, and only where digests differ another one finds the first tensor that does.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from remora.torch.group import Group

#: Steps between two comparisons where the script does not say it.
CHECK_EVERY = 100
#: What `sample-exact` allows tensors to differ in, as a share of their size: far more than rounding, on unlike hardware
#: too, and far less than what makes another model.
ROUNDING = 1e-3
#: Elements that are smaller than this on average count as this large.
_SMALL = 1e-2
#: Odd, so that no digest is lost in a product.
_FACTOR = 0x5851F42D4C957F2D

CAUSES = (
    "Usual causes: weights that are changed with what one worker alone has (its rank, its own loss or clock, a learning"
    " rate that follows them), layers that are made or initialised again while training runs, or a faulty processor or"
    " memory"
)


class Diverged(RuntimeError):
    """The workers do not hold the same weights any more, or would not with another number of them."""


def is_due(steps_done: int, every: int) -> bool:
    """Whether workers compare their weights after `steps_done` steps: after the first, then each `every` (0: never)."""
    return every > 0 and steps_done > 0 and (steps_done == 1 or steps_done % every == 0)


def is_rehearsed(steps_done: int, every: int) -> bool:
    """Whether the next step computes one micro-batch twice: after the first step, and after every tenth comparison."""
    return is_due(steps_done, every) and (steps_done == 1 or steps_done % (10 * every) == 0)


class StateDigests:
    """Digests of what a worker holds at one moment, by name, to be compared between workers and with later moments."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._tensors = {name: one.detach() for name, one in tensors.items() if one.numel()}
        self.names = tuple(self._tensors)
        self._device = device
        self._digests = stacked([digest(one) for one in self._tensors.values()], torch.int64, device)

    def changed(self, tensors: Mapping[str, torch.Tensor]) -> str | None:
        """Name of the first tensor that is not as it was when this was made, of those that are there now."""
        now = StateDigests(tensors, self._device)
        if now.names != self.names:
            return next(iter(set(now.names) ^ set(self.names)))
        if torch.equal(now._digests, self._digests):
            return None
        return self.names[int((now._digests != self._digests).nonzero()[0])]

    def compare(self, group: Group, *, is_bitwise: bool) -> tuple[str, list[int]] | None:
        """Compare with all other workers, which call this too.

        Returns the name of the first tensor that differs, with the ranks that do not hold what rank 0 holds; None where
        there is none.  Without `is_bitwise` what rounding explains is no difference.  Raises PeerLost.
        """
        wholes = gathered(group, weighed(self._digests).reshape(1))
        if bool((wholes == wholes[0]).all()):
            return None
        digests = gathered(group, self._digests)
        differ = digests != digests[0]
        if not is_bitwise:
            differ &= self._differ_in_size(group)
        if not bool(differ.any()):
            return None
        first = int(differ.any(0).nonzero()[0])
        return self.names[first], differ[:, first].nonzero().flatten().tolist()

    def _differ_in_size(self, group: Group) -> torch.Tensor:
        """Which tensors of which ranks are not those of rank 0 but for rounding; [ranks, tensors]."""
        held = self._tensors.values()
        sums = stacked([sum_of(one) for one in held], torch.float64, self._device)
        norms = stacked([norm_of(one) for one in held], torch.float64, self._device)
        floors = stacked([_SMALL * one.numel() ** 0.5 for one in held], torch.float64, self._device)
        found = gathered(group, torch.cat([sums, norms])).view(group.world_size, 2, -1)
        wanted = torch.cat([found[0], floors[None]])[None]
        return ~is_near(found, wanted, torch.full_like(floors, ROUNDING))


def tensors_of(parts: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The numbers with a fraction that parts of the training state hold, by their path in it."""
    for name, value in parts.items():
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() or value.is_complex():
                yield name, value
        elif isinstance(value, Mapping):
            for below, one in tensors_of({str(key): each for key, each in value.items()}):
                yield f"{name}.{below}", one
        elif isinstance(value, list | tuple):
            for below, one in tensors_of({str(place): each for place, each in enumerate(value)}):
                yield f"{name}.{below}", one


def parameters_beside(function: Any, known: Container[int]) -> dict[str, torch.Tensor]:
    """Parameters of modules that a function uses beside its arguments, but for those whose id is known."""
    try:
        used = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        # It is not a Python function, or names something that does not exist yet.
        return {}
    modules = {
        name: one
        for name, one in {**used.globals, **used.nonlocals}.items()
        if isinstance(one, torch.nn.Module)
    }
    return {
        f"{name}.{below}": one
        for name, module in modules.items()
        for below, one in module.named_parameters()
        if id(one) not in known
    }


def difference_text(
    name: str,
    ranks: Sequence[int],
    steps_done: int,
    agreed_after: int | None,
    *,
    held: str = "weights",
    of: int = 0,
) -> str:
    """The error for workers that hold other weights, or another `held`, than rank `of`."""
    who = f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} do"
    before = "" if agreed_after is None else f", and after step {agreed_after} they did"
    return (
        f"After step {steps_done} {who} not hold the {held} of rank {of}, first in {name}{before}. {CAUSES}."
    )


def changed_text(name: str) -> str:
    """The error for a tensor that the function given to `backward` has changed."""
    return (
        f"{name} was changed inside step.backward, which does so as often as a worker has micro-batches:"
        " change it after step.backward"
    )


def weighed(digests: torch.Tensor) -> torch.Tensor:
    """One digest of several; the same ones in another order have another one."""
    places = torch.arange(len(digests), dtype=torch.int64, device=digests.device)
    return (digests * ((2 * places + 1) * _FACTOR)).sum()


def is_near(found: torch.Tensor, wanted: torch.Tensor, rounding: torch.Tensor) -> torch.Tensor:
    """Whether rounding explains what tensors differ in.

    `found` has their sums and norms, [ranks, 2, tensors]; `wanted` those that they should have, and what counts as
    small, [ranks or 1, 3, tensors]; `rounding` is what each may differ in as a share of its norm, below 0 for nothing.
    """
    right, small = wanted[:, :2], wanted[:, 2:]
    near = (found - right).abs() <= rounding * torch.maximum(right[:, 1:2], small)
    # What is not finite has no distance; it is the same where the same is not finite.
    lost = ~found.isfinite() & ~right.isfinite()
    return (near | lost).all(1) & (rounding >= 0)


def gathered(group: Group, own: torch.Tensor) -> torch.Tensor:
    """The same of all ranks, one row each; raises PeerLost."""
    rows = torch.empty(group.world_size * own.numel(), dtype=own.dtype, device=own.device)
    group.wait(group.gather(rows, own))
    return rows.view(group.world_size, -1)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """A number that follows from the bits of a tensor: their sum as whole numbers, which is exact in any order."""
    flat = real(tensor).reshape(-1)
    several = 8 // flat.element_size()
    even = flat.numel() // several * several
    found = _whole(flat[:even]).sum() if even else torch.zeros((), dtype=torch.int64, device=flat.device)
    if even < flat.numel():
        rest = flat.new_zeros(several)
        rest[: flat.numel() - even] = flat[even:]
        found = found + _whole(rest)[0]
    return found


def _whole(flat: torch.Tensor) -> torch.Tensor:
    is_aligned = flat.storage_offset() * flat.element_size() % 8 == 0
    return (flat if is_aligned else flat.clone()).view(torch.int64)


def sum_of(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of its elements, in float64."""
    return real(tensor).sum(dtype=torch.float64)


def norm_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its norm, in float64."""
    flat = real(tensor).reshape(-1)
    # Counts and masks are no numbers for a norm.
    flat = flat if flat.is_floating_point() else flat.to(torch.float64)
    return torch.linalg.vector_norm(flat, dtype=torch.float64)


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def stacked(values: Iterable[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers as one tensor."""
    numbers = [torch.as_tensor(one, dtype=dtype).to(device).reshape(()) for one in values]
    return torch.stack(numbers) if numbers else torch.zeros(0, dtype=dtype, device=device)


def copy_of(value: Any) -> Any:
    """A copy of a batch or of samples; None where it holds something that cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return None


def differs(one: Any, other: Any) -> bool:
    """Whether two samples are different for sure; False for values that cannot be compared."""
    if type(one) is not type(other):
        return True
    if isinstance(one, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        return not torch.equal(one, other) and not bool(
            ((one == other) | ((one != one) & (other != other))).all()
        )
    if isinstance(one, Mapping):
        return one.keys() != other.keys() or any(differs(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) != len(other) or any(itertools.starmap(differs, zip(one, other, strict=True)))
    if isinstance(one, int | str | bytes):
        return bool(one != other)
    if isinstance(one, float):
        return one != other and not (one != one and other != other)
    if hasattr(one, "__array__") and hasattr(one, "tobytes"):
        # Arrays and pictures.
        return bool(one.tobytes() != other.tobytes())
    return False
