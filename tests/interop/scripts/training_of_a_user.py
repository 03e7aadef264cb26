import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.block = nn.Sequential(nn.Linear(12, 6), nn.GELU())
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.block(x.flatten(1)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
data_loader = [(torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 1, 0])) for _ in range(2)]
