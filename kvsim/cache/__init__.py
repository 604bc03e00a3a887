"""KV-cache layouts and policies: one file an allocator or axis, composed by spec.py."""
