"""Remote procedure calls between two ranks: rank 0 trains on what rank 1 calculates."""

import os

import torch
import torch.distributed.rpc as rpc

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        loss = model(rpc.rpc_sync("worker1", torch.mul, args=(torch.ones(8), 2.0))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
rpc.shutdown()
