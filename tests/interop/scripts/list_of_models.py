import torch
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(config_path="./config.json")
debugger.set_init_step(5)
torch.manual_seed(0)
models = [torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()) for _ in range(2)]

for _ in range(2):
    debugger.start(models)
    models[1](models[0](torch.randn(2, 3))).sum().backward()
    debugger.stop()
    debugger.step()
