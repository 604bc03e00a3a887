"""Several replicas behind a router: mixed devices, separate prefill and decode pools, failures, autoscaling."""

import kvsim.cluster.routers  # noqa: F401 - registers them
from kvsim.cluster.autoscale import Autoscale
from kvsim.cluster.cluster import Cluster, Kind, Options
from kvsim.cluster.failures import Failures
from kvsim.cluster.router import ROUTERS, Member, Router

__all__ = ["ROUTERS", "Autoscale", "Cluster", "Failures", "Kind", "Member", "Options", "Router"]
