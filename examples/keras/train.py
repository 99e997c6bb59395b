"""Keras 3 with `model.fit` and its own `BackupAndRestore`, as its manual has it: nothing of Remora is in here.

The backup lies in the folder `training`, which the job names as an output: it outlives the machine, and is there again
when the script starts again.  `BackupAndRestore` then goes on with the epoch after the last one that it saved.
"""

import argparse

import keras
import numpy as np


def sines(samples):
    """What is to be learnt."""
    x = np.random.default_rng(1).random((samples, 1), dtype=np.float32) * 6 - 3
    return x, np.sin(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=100_000)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    x, y = sines(arguments.samples)
    # A file that changes all the time is not stored: an epoch takes some seconds, and is saved at its end.
    backup = keras.callbacks.BackupAndRestore("training/backup", double_checkpoint=True)
    history = model.fit(x, y, batch_size=32, epochs=arguments.epochs, verbose=2, callbacks=[backup])
    model.save("training/model.keras")
    print(f"began with epoch {history.epoch[0] + 1}, loss {history.history['loss'][-1]:.5f}", flush=True)


if __name__ == "__main__":
    main()
