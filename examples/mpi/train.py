"""A script for MPI clusters: PyTorch finds its ranks through mpi4py, or mpirun's variables, and trains with gloo.

mpirun -n 2 python train.py
remora submit -f job.yaml

It keeps itself safe with `remora.training`, whose calls are harmless under plain mpirun: after the loss of a node the
job goes on with the workers that are left, from the newest checkpoint.
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from remora import training


def meet():
    """Have PyTorch meet where MPI says: rank 0 sends all ranks an address and a free port."""
    world = MPI.COMM_WORLD
    address = os.environ.get("MASTER_ADDR", socket.gethostname())
    with socket.socket() as probe:
        probe.bind(("", 0))
        place = world.bcast((address, probe.getsockname()[1]))
    method = f"tcp://{place[0]}:{place[1]}"
    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    assert (rank, size) == (world.rank, world.size)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
    return world


def batch(step, rank, size, count=96):
    """This rank's part of a step's samples, which do not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(count, 1, generator=generator) * 6 - 3
    return x[rank::size], torch.sin(x[rank::size])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    world = meet()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    done = 0
    saved = training.resume_from()
    if saved is not None:
        state = torch.load(saved / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    if world.rank == 0:
        print(f"{world.size} ranks begin after step {done}", flush=True)
    parallel = DDP(model)
    for step in range(done + 1, arguments.steps + 1):
        x, y = batch(step, world.rank, world.size)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        # The mean over all ranks, by MPI itself.
        mean = world.allreduce(loss.item()) / world.size
        training.report(step, {"loss": mean}, total_steps=arguments.steps)
        if training.should_checkpoint() or step == arguments.steps:
            with training.checkpoint(step) as folder:
                if world.rank == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(state, folder / "state.pt")
    if world.rank == 0:
        print(f"{arguments.steps} steps, loss {mean:.5f}", flush=True)
    # Before the group: if DDP is the last to hold it, PyTorch may wait for itself at the end (gloo).
    del parallel
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
