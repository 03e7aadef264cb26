# 导入工具数据采集接口，尽量在迭代训练文件导包后的位置执行seed_all和实例化PrecisionDebugger
from msprobe.pytorch import seed_all, PrecisionDebugger

# 在模型训练开始前固定随机性
seed_all()
# PrecisionDebugger实例化，加载dump配置文件
debugger = PrecisionDebugger(config_path="./config.json")

# 模型、损失函数的定义及初始化等操作
# ...
from training_of_a_user import criterion, data_loader, model, optimizer

# 数据集迭代的位置一般为模型训练开始的位置
for data, label in data_loader:
    debugger.start(model)  # 开启数据dump

    # 如下是模型每个step执行的逻辑
    output = model(data)
    # ...
    loss = criterion(output, label)
    # 计算梯度
    loss.backward()
    # 更新参数
    optimizer.step()

    debugger.stop()  # 关闭数据dump，可继续开启数据dump，采集数据会记录在同一个step中
    debugger.step()  # 结束数据dump，若继续开启数据dump，采集数据将记录在下一个step中
