"""Names of clusters: the policies say which pools and which projects are of which one."""

from __future__ import annotations

#: The cluster of pools and projects for which the policies name none.
DEFAULT_CLUSTER = "default"
#: Names of leases and folders contain the name of a cluster, and are limited in length.
CLUSTER_FORM = r"^[a-z0-9][a-z0-9-]{0,31}$"
