import torch
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(config_path="./config.json")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

for _ in range(2):
    debugger.start(model)
    first = model(torch.randn(2, 3))
    debugger.stop()
    model(torch.randn(2, 3))
    debugger.start(model)
    second = model(torch.randn(2, 3))
    debugger.stop()
    (first.sum() + second.sum()).backward()
    debugger.step()
