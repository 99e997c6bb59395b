"""Labels of Ray that the service and the drivers of attempts have in common."""

from __future__ import annotations

#: A label that no node has.  What drivers ask Ray Train's coordinator for says `not in` of it, which every node
#: satisfies: by that it is known from what other Ray programs ask for.
FOR_JOBS_LABEL = "remora-for"
