"""The commands of `python -m kvsim_kernels`, a module each."""
