"""Python imports this at its start wherever this folder is on PYTHONPATH: so child processes have the fake GPU too."""

import torch_cuda

torch_cuda.install()
