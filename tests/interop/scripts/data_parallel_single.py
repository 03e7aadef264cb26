import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
seed_all()
debugger = PrecisionDebugger(config_path="./config.json")

model = DistributedDataParallel(nn.Linear(3, 2))
for _ in range(2):
    debugger.start(model)
    model(torch.randn(5, 3, requires_grad=True)).square().mean().backward()
    debugger.stop()
    debugger.step()
distributed.destroy_process_group()
