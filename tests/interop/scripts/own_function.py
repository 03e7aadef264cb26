import functions_of_a_user
import torch
from msprobe.pytorch import PrecisionDebugger

debugger = PrecisionDebugger(config_path="./config.json")
debugger.register_custom_api(functions_of_a_user, "scaled")
debugger.register_custom_api(functions_of_a_user, "shifted", "Mine")
torch.manual_seed(0)

for step in range(2):
    if step == 1:
        debugger.restore_custom_api(functions_of_a_user, "shifted")
    debugger.start()
    x = torch.rand(3, requires_grad=True)
    y = functions_of_a_user.shifted(functions_of_a_user.scaled(x, 3.0))
    y.sum().backward()
    debugger.stop()
    debugger.step()
