"""A loop that was written for Accelerate's LocalSGD: only the import is another one.

torchrun --nproc-per-node 4 examples/python/accelerate_loop.py
slowmo launch --nodes 4 -- python examples/python/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from digits import digest, images
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slowmo.accelerate import LocalSGD


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(*images("digits_train.csv")), batch_size=16, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=300)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    loss_fn = nn.CrossEntropyLoss()
    torch.seed()  # other batches on every node
    for epoch in range(3):
        with LocalSGD(
            accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True
        ) as local_sgd:
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss = loss_fn(model(inputs), targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    local_sgd.step()
        whole = accelerator.unwrap_model(model)
        print(f"epoch {epoch}: loss {loss.item():.3f}, parameters {digest(whole)}", flush=True)


if __name__ == "__main__":
    main()
