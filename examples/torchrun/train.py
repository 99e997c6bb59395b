"""A script as one finds them: written for `torchrun`, knows nothing of Remora, keeps a snapshot file of its own.

torchrun --nproc-per-node 2 train.py
remora submit --workers 2 -- python train.py
remora submit job.yaml    # goes on from its snapshot with the workers that are left when a machine goes
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Sines(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(size, 1, generator=generator) * 6 - 3
        self.y = torch.sin(self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.loader = loader
        self.optimizer = optimizer
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            snapshot = torch.load(snapshot_path, weights_only=True)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at epoch {self.epochs_run}")
        self.model = DDP(model)

    def train(self, epochs, save_every):
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                self.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self.model(source), targets)
                loss.backward()
                self.optimizer.step()
            print(f"[{self.global_rank}] Epoch {epoch} | Steps: {len(self.loader)} | Loss: {loss.item():.5f}")
            if self.global_rank == 0 and epoch % save_every == 0:
                snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                torch.save(snapshot, self.snapshot_path)
                print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--snapshot", default="snapshot.pt")
    arguments = parser.parse_args()
    dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(1)
    data = Sines(2048)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    loader = DataLoader(data, batch_size=arguments.batch_size, sampler=DistributedSampler(data))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    Trainer(model, loader, optimizer, arguments.snapshot).train(arguments.epochs, arguments.save_every)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
