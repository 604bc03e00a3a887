"""Time the host adds to a step: constants of an engine, not of a device."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.engine_profile import Host


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """step = max(device time, overlapped) + exposed, all in ns.

    `spread` is the relative uncertainty of these constants (half-width of 90 %)."""

    exposed_ns: float = 0.0
    """every step"""
    exposed_per_sequence_ns: float = 0.0
    """for each sequence in the step, decoding or prefilling"""
    exposed_prefill_ns: float = 0.0
    """more in a step that holds a prefill chunk"""
    overlapped_ns: float = 0.0
    """host work that runs beside the device: it only shows where it is the longer"""
    spread: float = 0.0
    prompt_factor: float = 1.0
    """on the device time of a step that holds a prefill chunk: kernels of the engine's own time were slower than those
    that the profile was measured with"""
    decode_factor: float = 1.0
    """the same of a step without one"""
    launch_ns: float = 0.0
    """host work beside the device in a step that holds a prefill chunk: kernels launched one by one, not as a graph"""
    kernel_spread: float = 0.0
    """half-width of 90 % of the engine's own kernels against those of the profile, as a share of the device time"""

    @classmethod
    def of(cls, host: Host, tp: int = 1, layers: int = 0) -> HostOverhead:
        """The constants of an engine profile for a tensor-parallel group of `tp` and a model of so many layers."""
        return cls(host.exposed_with(tp), host.exposed_per_sequence_ns, host.exposed_prefill_ns, host.overlapped_ns,
                   host.spread, host.prompt_factor, host.decode_factor, host.launch_layer_ns * layers,
                   host.kernel_spread)

    def exposed(self, sequences: int, prefill: bool) -> float:
        """ns that the device waits for the host."""
        always = self.exposed_ns + self.exposed_per_sequence_ns * sequences
        return always + self.exposed_prefill_ns if prefill else always
