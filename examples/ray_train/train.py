"""A script for Ray Train's `TorchTrainer`, in which nothing is of Remora: handwritten digits, one report per epoch."""

import argparse
import os
import tempfile

import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from sklearn.datasets import load_digits


def train_loop(config):
    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(
        torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    )
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = ray.train.torch.prepare_model(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=config["lr"])
    context = ray.train.get_context()
    rank, count, done = context.get_world_rank(), context.get_world_size(), 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"))
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    print(f"worker {rank} of {count} begins after epoch {done}", flush=True)
    for epoch in range(done + 1, config["epochs"] + 1):
        if count > 1:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, os.path.join(folder, "state.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    ray.init()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"lr": 1e-3, "epochs": arguments.epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits"),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        saved = torch.load(os.path.join(folder, "state.pt"))["epoch"]
    print(f"{result.metrics['epoch']} epochs, the model of epoch {saved}, loss {result.metrics['loss']:.5f}")


if __name__ == "__main__":
    main()
