# 根据需要import包
import torch
import torch.nn as nn
import torch.nn.functional as F

# 导入工具的数据采集接口
from msprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end

# 在模型训练开始前实例化PrecisionDebugger
debugger = PrecisionDebugger(config_path="./config.json")


# 定义网络
class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=8, out_features=4)
        self.linear_2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x):
        x1 = self.linear_1(x)
        x2 = self.linear_2(x1)
        r1 = F.relu(x2)
        return r1


if __name__ == "__main__":
    torch.manual_seed(0)
    module = ModuleOP()
    debugger.start()  # 开启数据dump
    x = torch.randn(10, 8)
    # ...                                # start和module_dump接口之间的数据正常dump
    x = F.gelu(x)
    module_dump(module, "MyModuleOP")  # 开启模块级精度数据dump
    out = module(x)  # module内部的child modules或API将不会被dump
    module_dump_end()  # 关闭模块级精度数据dump
    loss = out.sum()  # module_dump_end和stop接口之间的数据正常dump
    loss.backward()
    debugger.stop()  # 关闭数据dump，可继续开启数据dump，采集数据会记录在同一个step中
    debugger.step()  # 结束数据dump，若继续开启数据dump，采集数据将记录在下一个step中
