"""Wrote the folder `cluster`, with msProbe's own PrecisionDebugger and in its environment.

The notebook has the same model, as it was meant. It stands in for a job on an Ascend cluster: what
msProbe writes there has the same files and keys.
The folder of the process was named after a rank, and paths in `stack.json` were shortened.
"""

import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn

DEPTH = 4


class Scale(nn.Module):
    """Multiplies by a number."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * self.by


class Square(nn.Module):
    """The square of what a ReLU leaves."""

    def forward(self, x):
        return torch.relu(x).square()


class Block(nn.Module):
    """Adds a small network to its input."""

    def __init__(self, size):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(size, size), Square(), nn.Linear(size, size)
        self.scale = Scale(DEPTH)  # the fault: it was to divide, so that no depth makes it large

    def forward(self, x):
        return x + self.scale(self.down(self.act(self.up(x))))


class Classifier(nn.Module):
    """Four blocks between an embedding and a head."""

    def __init__(self, size=64, classes=10):
        super().__init__()
        self.embed = nn.Linear(size, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(DEPTH))
        self.head = nn.Linear(size, classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Classifier().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = 4 * torch.randn(32, 64).half(), torch.randint(10, (32,))

debugger = PrecisionDebugger(dump_path="cluster", task="statistics", level="L0", step=[0])
for _ in range(1):
    debugger.start(model)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    debugger.stop()
    optimizer.step()
    debugger.step()
print(loss.item())
