"""What a plan does not look at: it sizes one replica, split over GPUs by tensor parallelism only."""

ALONE = {
    "replicas": 1, "pp": 1, "ep": 1, "mix": None, "prefill_replicas": None, "failures": None, "autoscale": None,
}
"""fields of a Scenario → their value in every run of a plan"""
