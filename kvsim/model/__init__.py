"""What a model is: its shape, from a Hugging Face `config.json` or by name, and its bytes and matrix products."""

from kvsim.model.catalogue import load_model, model_names
from kvsim.model.config import from_config, read_config
from kvsim.model.spec import AttentionGroup, LinearOp, Matrix, Mla, ModelSpec, Moe

__all__ = ["AttentionGroup", "LinearOp", "Matrix", "Mla", "ModelSpec", "Moe", "from_config", "load_model",
           "model_names", "read_config"]  # fmt: skip
