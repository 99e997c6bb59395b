"""Containers of workers: podman fetches images and prepares files, mounts and devices; commands enter them."""
