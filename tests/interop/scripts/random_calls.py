import torch
import torch.nn as nn
import torch.nn.functional as F

# 导入工具寻找随机性API的接口，网络中的随机性API会被保存在output路径下。
from msprobe.pytorch import random_save

random_save(output_path="./output")


# 定义网络
class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features=8, out_features=4)

    def forward(self, x):
        x1 = self.linear(x)
        r1 = F.relu(x1)
        return r1


if __name__ == "__main__":
    model = ModuleOP()
    x = torch.randn(10, 8)
    out = model(x)
    loss = out.sum()
    loss.backward()
