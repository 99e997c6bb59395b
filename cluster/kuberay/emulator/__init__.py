"""An API server of Kubernetes on the loopback, with a RayCluster and what KubeRay does with it; for tests alone."""
