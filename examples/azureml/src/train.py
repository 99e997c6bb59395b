"""Handwritten digits by PyTorch DDP, written for Azure ML: knows nothing of Remora, keeps a snapshot of its own."""

import argparse
import json
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--model-dir", required=True)
    arguments = parser.parse_args()
    with open(arguments.settings) as file:
        settings = json.load(file)
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)

    digits = load_digits()
    images = torch.as_tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.as_tensor(digits.target)
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=settings["batch_size"], sampler=sampler)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, settings["hidden"]), torch.nn.ReLU(), torch.nn.Linear(settings["hidden"], 10)
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=arguments.learning_rate)
    os.makedirs(arguments.model_dir, exist_ok=True)
    snapshot_path = os.path.join(arguments.model_dir, "snapshot.pt")
    first = 0
    if os.path.exists(snapshot_path):
        snapshot = torch.load(snapshot_path, weights_only=True)
        net.load_state_dict(snapshot["net"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epochs"]
        print(f"[{rank}] resumes after epoch {first}")
    model = DDP(net)

    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        print(f"[{rank}] epoch {epoch + 1} of {arguments.epochs}, loss {loss.item():.4f}")
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
            torch.save(state, f"{snapshot_path}.part")
            os.replace(f"{snapshot_path}.part", snapshot_path)
    if rank == 0:
        with torch.no_grad():
            accuracy = (net(images).argmax(1) == labels).float().mean().item()
        print(f"accuracy {accuracy:.3f}")
        os.makedirs("outputs", exist_ok=True)
        with open("outputs/accuracy.json", "w") as file:
            json.dump({"accuracy": accuracy}, file)
    # Before the group: if DDP is the last to hold it, PyTorch may wait for itself at the end (gloo).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
