"""What a step costs: curves of a device profile, the kernels of a model and the constants of an engine, added up."""

from kvsim.cost.error import Band, PartCost
from kvsim.cost.geometry import Geometry
from kvsim.cost.host import HostOverhead
from kvsim.cost.model import CostModel
from kvsim.cost.shape import StepShape

__all__ = ["Band", "CostModel", "Geometry", "HostOverhead", "PartCost", "StepShape"]
