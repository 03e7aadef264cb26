import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
seed_all()
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.fc = nn.Linear(3, 4)
        self.block = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.block(self.fc(x)) * self.scale


model = DistributedDataParallel(Net())
for _ in range(2):
    debugger.start(model)
    model(torch.randn(5, 3, requires_grad=True)).square().mean().backward()
    debugger.stop()
    debugger.step()
distributed.destroy_process_group()
