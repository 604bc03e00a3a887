"""What a cache policy costs in quality, measured on a real language model (docs/accuracy.md)."""
