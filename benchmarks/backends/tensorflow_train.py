"""One contestant of `benchmarks.backends.tensorflow`: a small Keras network under MultiWorkerMirroredStrategy.

Trains in alternating blocks by `alternation.py`, which lies beside it.

usage: tensorflow_train.py NAME FOLDER BLOCKS STEPS
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import keras
import tensorflow as tf
from alternation import Alternation, wait_for


def main() -> None:
    """Train one contestant."""
    name, folder, blocks, steps = sys.argv[1:5]
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    x = tf.random.stateless_normal((256, 256), seed=(rank, 1))
    y = tf.reduce_sum(x, axis=1, keepdims=True)

    @tf.function
    def train() -> tf.Tensor:
        def own_part() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(own_part), axis=None)

    alternation = Alternation(name, Path(folder), int(blocks), int(steps))
    for _ in range(alternation.total):
        alternation.before()
        float(train())
        alternation.after(rank)
    wait_for(Path(folder) / "end")


if __name__ == "__main__":
    main()
