"""The reference engine: a small real serving engine, the truth for `validate step` and `validate serving`."""
