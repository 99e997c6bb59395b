"""A device mesh over a `Group` that can be left: all that this package asks of the inside of `torch.distributed`.

FSDP communicates through a ProcessGroup of a DeviceMesh.  The one here is a subclass in Python that passes every
collective to the backend of a `Group`, and waits for it as `Group` does: on processors until it ends or fails, or the
group is to be left; on GPUs in the stream that FSDP waits in, so that computation and communication overlap.  So a peer
that is dead or frozen blocks no worker, and the next group is another mesh in the same process.  The tests build one
and train on it; they fail here when PyTorch changes what it asks of a process group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor._redistribute import _gen_transform_infos, clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from remora.torch.group import Group, PeerLost
from remora.torch.sharded.grid import Grid

#: Name under which `torch.distributed` knows the groups of this package.
BACKEND = "remora"


class _Started(dist._Work):  # type: ignore[misc]  # torch is not checked
    """A collective that may be waited for once or never."""

    def __init__(self, finish: Callable[[], None], tensors: Any) -> None:
        super().__init__()
        self._finish = finish
        self._is_finished = False
        self._future: Any = None
        self._tensors = tensors

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002  # as torch calls it
        """Wait for the end, on a GPU in the present stream; raises PeerLost."""
        if not self._is_finished:
            self._is_finished = True
            self._finish()
        return True

    def get_future(self) -> Any:
        """A future that is there when this is over, which is waited for here."""
        self.wait()
        future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class MeshProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch is not checked
    """The process group that FSDP sees.

    While `is_lenient`, collectives of a broken group do nothing instead of raising: what a script does between
    `backward` and the end of its step cannot be caught there, and is thrown away when the step ends.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.world_size)
        self._group = group
        self._name = ""
        #: Groups of some of the ranks, for the dimensions of a mesh.
        self._parts: list[MeshProcessGroup] = []
        self._is_lenient = False
        self._waited_s = 0.0

    @property
    def is_lenient(self) -> bool:
        """Whether collectives of a broken group do nothing."""
        return self._is_lenient

    @is_lenient.setter
    def is_lenient(self, is_lenient: bool) -> None:
        for one in (self, *self._parts):
            one._is_lenient = is_lenient

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for collectives of this group and its parts, since it was made."""
        return sum(one._waited_s for one in (self, *self._parts))

    def new_group(self, ranks: Sequence[int], *, group_name: str, **_: object) -> MeshProcessGroup | None:
        """A group of some ranks, as torch asks the default group for it; None for a rank that is not among them.

        All ranks ask for the same groups in the same order.
        """
        if self.rank() not in ranks:
            return None
        part = MeshProcessGroup(self._group.subgroup(list(ranks), f"part-{group_name}", may_outlive=True))
        part._set_group_name(group_name)
        self._parts.append(part)
        return part

    def abandon_parts(self) -> None:
        """Leave the groups of some ranks for good."""
        for one in self._parts:
            one._group.abandon()

    @property
    def group_name(self) -> str:
        """Name in the registry of `torch.distributed`; a base class without a backend of its own cannot keep it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """The same as C++ asks for it."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802
        """Name for people."""
        return BACKEND

    def shutdown(self) -> None:
        """Nothing: the owner of the `Group` leaves it."""

    def abort(self) -> None:
        """Nothing: the owner of the `Group` leaves it."""

    def _run(self, tensors: Any, start: Callable[[Any], Any]) -> _Started:
        try:
            ticket = self._group.start(start)
        except PeerLost:
            if not self.is_lenient:
                raise
            return _Started(lambda: None, tensors)
        return _Started(lambda: self._wait(ticket), tensors)

    def _wait(self, ticket: Any) -> None:
        began_at = time.perf_counter()
        try:
            self._group.wait_in_stream(ticket)
        except PeerLost:
            if not self.is_lenient:
                raise
        finally:
            self._waited_s += time.perf_counter() - began_at

    # The signatures are those that torch calls.  A group of one has no backend, and its results are its inputs.

    def allreduce(self, tensors: Any, opts: Any = None) -> _Started:
        """Reduce in place."""
        tensors = tensors if isinstance(tensors, list) else [tensors]
        opts = opts if isinstance(opts, c10d.AllreduceOptions) else _with_op(c10d.AllreduceOptions(), opts)
        return self._run(tensors, lambda backend: backend.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> _Started:
        """Reduce several in place."""
        opts = opts or c10d.AllreduceCoalescedOptions()
        return self._run(tensors, lambda backend: backend.allreduce_coalesced(tensors, opts))

    def broadcast(self, tensors: Any, opts: Any) -> _Started:
        """From one rank to all."""
        return self._run(tensors, lambda backend: backend.broadcast(tensors, opts))

    def _allgather_base(self, out: Any, own: Any, opts: Any = None) -> _Started:
        opts = opts or c10d.AllgatherOptions()
        if self.size() == 1:
            out.view(-1).copy_(own.reshape(-1))
        return self._run([out], lambda backend: backend._allgather_base(out, own, opts))

    def allgather(self, outs: Any, owns: Any, opts: Any = None) -> _Started:
        """Into a list of tensors."""
        opts = opts or c10d.AllgatherOptions()
        if self.size() == 1:
            outs[0][0].copy_(owns[0])
        return self._run(outs, lambda backend: backend.allgather(outs, owns, opts))

    def allgather_into_tensor_coalesced(self, outs: Any, owns: Any, _: Any = None) -> _Started:
        """Several at once."""
        works = [self._allgather_base(out, own) for out, own in zip(outs, owns, strict=True)]
        return _Started(lambda: _wait_for(works), outs)

    def _reduce_scatter_base(self, out: Any, whole: Any, opts: Any = None) -> _Started:
        opts = opts or c10d.ReduceScatterOptions()
        if self.size() == 1:
            out.view(-1).copy_(whole.reshape(-1))
            return _Started(lambda: None, [out])
        if whole.is_cuda:
            return self._run([out], lambda backend: backend._reduce_scatter_base(out, whole, opts))
        # Gloo has an all-reduce under this name, which moves twice as much and cannot be waited for with patience.
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise NotImplementedError("on CPUs the gradients of a sharded model are summed, and nothing else")
        received = torch.empty_like(whole).view(-1)
        own = whole.contiguous().view(-1)
        exchanged = self._run([out], lambda backend: backend.alltoall_base(received, own, [], []))

        def finish() -> None:
            exchanged.wait()
            torch.sum(received.view(self.size(), -1), 0, out=out.view(-1))

        return _Started(finish, [out])

    def reduce_scatter_tensor_coalesced(self, outs: Any, wholes: Any, opts: Any = None) -> _Started:
        """Several at once."""
        works = [self._reduce_scatter_base(*pair, opts) for pair in zip(outs, wholes, strict=True)]
        return _Started(lambda: _wait_for(works), outs)

    def alltoall_base(self, out: Any, own: Any, outs: Any, owns: Any, _: Any = None) -> _Started:
        """Blocks from all to all."""
        if self.size() == 1:
            out.copy_(own)
        return self._run([out], lambda backend: backend.alltoall_base(out, own, list(outs), list(owns)))

    def gather(self, outs: Any, owns: Any, opts: Any) -> _Started:
        """To one rank."""
        if self.size() == 1:
            outs[0][0].copy_(owns[0])
        return self._run(outs, lambda backend: backend.gather(outs, owns, opts))

    def scatter(self, outs: Any, owns: Any, opts: Any) -> _Started:
        """From one rank, to each its own."""
        if self.size() == 1:
            outs[0].copy_(owns[0][0])
        return self._run(outs, lambda backend: backend.scatter(outs, owns, opts))

    # PyTorch 2.13 calls these by two names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None) -> _Started:
        """A barrier; `opts` is what torch calls it with."""
        del opts
        one = torch.zeros(1, device="cuda" if self._group.on_cuda else "cpu")
        passed = self._run([], lambda backend: backend.allreduce([one]))

        def finish() -> None:
            passed.wait()
            try:
                self._group.synchronize()
            except PeerLost:
                if not self.is_lenient:
                    raise

        return _Started(finish, [])


def _wait_for(works: list[_Started]) -> None:
    for work in works:
        work.wait()


def _with_op(opts: Any, op: Any) -> Any:
    if op is not None:
        opts.reduceOp = op
    return opts


def open_mesh(group: Group, device: torch.device, grid: Grid) -> tuple[DeviceMesh, MeshProcessGroup]:
    """Make `group` the default group of `torch.distributed`, and a mesh over all its ranks as `grid` arranges them.

    What was opened before is closed.
    """
    close_mesh()
    mesh_group = MeshProcessGroup(group)
    _next_default.append(mesh_group)
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=group.rank, world_size=group.world_size)
    return init_device_mesh(device.type, grid.sizes, mesh_dim_names=grid.names), mesh_group


def close_mesh() -> None:
    """Forget the default group; the `Group` below stays as it is."""
    if dist.is_initialized() and isinstance(dist.group.WORLD, MeshProcessGroup):
        dist.group.WORLD.abandon_parts()
        dist.destroy_process_group()
        _forget_specs()


def _forget_specs() -> None:
    """Drop what DTensor remembers of the operations on tensors of the closed mesh.

    Two meshes of as many ranks are equal to it, also where this process had another rank in the older one: tensors of
    the next group would get that mesh back, and a checkpoint would say of them that they lie where they lay there.
    """
    _clear_sharding_prop_cache()
    _gen_transform_infos.cache_clear()
    clear_redistribute_planner_cache()


#: The group for the call of `init_process_group` under way.
_next_default: list[MeshProcessGroup] = []

dist.Backend.register_backend(BACKEND, lambda *_: _next_default.pop(), devices=["cpu", "cuda"])
