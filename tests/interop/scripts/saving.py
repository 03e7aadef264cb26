import torch
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(config_path="./config.json")
torch.manual_seed(0)

for _ in range(2):
    x = torch.randn(2, 3, requires_grad=True)
    y = x * 2
    debugger.save({"y": y, "more": [y + 1, (1, 2.5, "text")]}, "blob")
    debugger.save(x, "x", save_backward=False)
    debugger.save(y.sum(), "loss")
    (y * y).sum().backward()
    debugger.save(3, "blob")
    debugger.step()
