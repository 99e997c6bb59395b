"""JAX on several processes: one array over all of them, and gradients that XLA sums, safe by `remora.training`.

Remora (`backend: jax`) says where the other processes are; without it the script trains alone.  Each change of the
number of workers ends all of them at a checkpoint and starts them again from it.
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from remora import training

GLOBAL_BATCH = 96


def samples(step):
    """The samples of a step, which do not depend on the number of workers."""
    generator = np.random.default_rng(step)
    x = generator.random((GLOBAL_BATCH, 1), dtype=np.float32) * 6 - 3
    return x, np.sin(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    rank, count = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    parted, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    done, state = restore()
    state = jax.tree.map(lambda one: jax.make_array_from_process_local_data(everywhere, one), state)
    print(f"worker {rank} of {count} begins after step {done}", flush=True)
    for step in range(done + 1, arguments.steps + 1):
        own = [part[rank * len(part) // count : (rank + 1) * len(part) // count] for part in samples(step)]
        x, y = (jax.make_array_from_process_local_data(parted, part) for part in own)
        state, loss = train(state, x, y)
        training.report(step, {"loss": float(loss)}, total_steps=arguments.steps)
        if training.should_checkpoint() or step == arguments.steps:
            with training.checkpoint(step) as folder:
                if rank == 0:
                    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
                    np.savez(folder / "state.npz", *leaves, step=step)
    if rank == 0:
        print(f"{arguments.steps} steps, loss {float(loss):.5f}", flush=True)


def model(weights, x):
    return jnp.tanh(x @ weights["in"] + weights["shift"]) @ weights["out"]


@jax.jit
def train(state, x, y):
    """One step of Adam on the mean loss of the whole batch, wherever its parts are."""
    loss, slopes = jax.value_and_grad(lambda weights: jnp.mean((model(weights, x) - y) ** 2))(
        state["weights"]
    )
    step = state["step"] + 1
    mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["mean"], slopes)
    square = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, state["square"], slopes)
    weights = jax.tree.map(
        lambda weight, m, s: weight - 1e-2 * (m / (1 - 0.9**step)) / (jnp.sqrt(s / (1 - 0.999**step)) + 1e-8),
        state["weights"], mean, square,
    )  # fmt: skip
    return {"weights": weights, "mean": mean, "square": square, "step": step}, loss


def restore():
    """The newest checkpoint's step and state, or those of a beginning."""
    keys = jax.random.split(jax.random.key(1), 2)
    weights = {
        "in": np.asarray(jax.random.normal(keys[0], (1, 32))),
        "shift": np.zeros(32, np.float32),
        "out": np.asarray(jax.random.normal(keys[1], (32, 1)) / 6),
    }
    zeros = jax.tree.map(np.zeros_like, weights)
    state = {"weights": weights, "mean": zeros, "square": zeros, "step": np.zeros((), np.float32)}
    saved = training.resume_from()
    if saved is None:
        return 0, state
    with np.load(saved / "state.npz") as file:
        leaves = [file[f"arr_{number}"] for number in range(len(jax.tree.leaves(state)))]
        return int(file["step"]), jax.tree.unflatten(jax.tree.structure(state), leaves)


if __name__ == "__main__":
    main()
