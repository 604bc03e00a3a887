"""kvsim: what each KV-cache policy does to memory, fragmentation and latency, for your model, GPU and traffic."""

__version__ = "0.1.0"
