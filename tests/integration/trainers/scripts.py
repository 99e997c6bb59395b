"""Scripts as users write them, standard library and `remora.training` only; each is the content of one file."""

from __future__ import annotations

#: Trains in lockstep: a barrier over TCP stands for the collective, and a dead peer breaks it for everybody.
#: usage: train.py STEPS PAUSE_S [FILE]; once the file is there its steps take no pause any more.
LOCKSTEP = """
import json, os, socket, sys, time
from remora import training

steps, pause = int(sys.argv[1]), float(sys.argv[2])
hurry = sys.argv[3] if len(sys.argv) > 3 else ""
world = training.world()
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def meet():
    if world.rank == 0:
        with socket.create_server(address) as server:
            server.settimeout(60)
            return [server.accept()[0] for _ in range(world.world_size - 1)]
    deadline = time.monotonic() + 60
    while True:
        try:
            return [socket.create_connection(address)]
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)

peers = meet()

def hear(peer):
    if not peer.recv(1):
        raise ConnectionError("a peer is gone")

def barrier():
    if world.rank == 0:
        for peer in peers: hear(peer)
        for peer in peers: peer.sendall(b".")
    else:
        for peer in peers: peer.sendall(b".")
        for peer in peers: hear(peer)

done, total = 0, 0
saved = training.resume_from()
if saved is not None:
    state = json.loads((saved / "state.json").read_text())
    done, total = state["step"], state["total"]
print(f"rank {world.rank} of {world.world_size} begins after step {done}", flush=True)
for step in range(done + 1, steps + 1):
    if not os.path.exists(hurry):
        time.sleep(pause)
    barrier()
    total += step
    training.report(step, {"total": total}, total_steps=steps)
    if training.should_checkpoint() or step == steps:
        with training.checkpoint(step) as folder:
            (folder / f"rank-{world.rank}.txt").write_text(str(step))
            if world.rank == 0:
                (folder / "state.json").write_text(json.dumps({"step": step, "total": total}))
print(f"rank {world.rank} ends with {total}", flush=True)
"""

#: Prints everything that logs fear.
LOUD = """
import sys
out = sys.stdout.buffer
out.write(b"x" * 5_000_000 + b"\\n")
out.write(b"caf\\xe9 \\x00 \\xff\\n")
for number in range(100_000):
    out.write(b"line %d\\n" % number)
out.flush()
"""

#: Leaves a daemon in a session of its own behind, once that one has printed its pid.
DAEMON = """
import pathlib, subprocess, sys, time
pid = pathlib.Path(sys.argv[1])
code = f"import os, pathlib, signal; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); signal.pause()"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
while not (pid.exists() and pid.read_text()):
    time.sleep(0.01)
"""

#: Waits for ever, and does not want to be asked to end.
ENDLESS = """
import signal
from remora import training
signal.signal(signal.SIGTERM, signal.SIG_IGN)
training.report(1)
print("ready", flush=True)
while True:
    signal.pause()
"""

#: A real collective in a user's own words: nothing of Remora in it.
COLLECTIVE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""

#: Says whether a convolution of float32 is as exact as float32 is.
ROUNDED = """
import torch

torch.manual_seed(0)
images, kernels = torch.randn(4, 32, 28, 28), torch.randn(32, 32, 3, 3)
exact = torch.nn.functional.conv2d(images.double(), kernels.double())
error = (torch.nn.functional.conv2d(images, kernels) - exact).norm() / exact.norm()
print("the product is rounded:", bool(error > 1e-4))
"""
