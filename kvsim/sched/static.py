"""Static batching, as before iteration-level scheduling: the next batch waits until the one before has ended."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvsim.sched.base import SCHEDULERS, Plan, Scheduler, State
from kvsim.sched.prefill_first import admit_prompts, decode_all


@mypyc_attr(allow_interpreted_subclasses=True)
class Static(Scheduler):
    """Sequences that are done keep their slot and their memory until the longest of their batch has ended."""

    holds_batch = True

    def plan(self, state: State) -> Plan:
        plan = Plan()
        if not state.decode.count and not state.loading:
            if not state.partial:
                for seq in state.lingering:
                    state.release(seq, finished=True)
                state.lingering.clear()
            admit_prompts(state, plan)
        if not plan.chunks:
            decode_all(state, plan)
        plan.open = False
        return plan


SCHEDULERS("static")(Static)
