"""Keras 3 on several workers with TensorFlow's `MultiWorkerMirroredStrategy`, safe by `remora.training`.

TF_CONFIG comes from Remora (`backend: tensorflow`), or is set by hand.  Each change of the
number of workers ends all of them at a checkpoint and starts them again from it.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

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
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    world = training.world()
    count = strategy.num_replicas_in_sync
    with strategy.scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        optimizer = keras.optimizers.Adam(1e-2)
        optimizer.build(model.trainable_variables)
        variables = [*model.variables, *optimizer.variables]
        done = restore(variables)
    print(f"worker {world.rank} of {count} begins after step {done}", flush=True)

    @tf.function
    def train(x, y):
        def own_part(x, y):
            with tf.GradientTape() as tape:
                # The sum over this worker's samples: over all workers it becomes the mean of the whole batch.
                loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / GLOBAL_BATCH
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(own_part, args=(x, y)), axis=None)

    for step in range(done + 1, arguments.steps + 1):
        x, y = samples(step)
        loss = float(train(tf.constant(x[world.rank :: count]), tf.constant(y[world.rank :: count])))
        training.report(step, {"loss": loss}, total_steps=arguments.steps)
        if training.should_checkpoint() or step == arguments.steps:
            with training.checkpoint(step) as folder:
                if world.rank == 0:
                    np.savez(folder / "state.npz", *[one.value.numpy() for one in variables], step=step)
    if world.rank == 0:
        print(f"{arguments.steps} steps, loss {loss:.5f}", flush=True)


def restore(variables):
    """Take the newest checkpoint's values, if there is one; returns its step."""
    saved = training.resume_from()
    if saved is None:
        return 0
    with np.load(saved / "state.npz") as state:
        for number, variable in enumerate(variables):
            variable.assign(state[f"arr_{number}"])
        return int(state["step"])


if __name__ == "__main__":
    main()
