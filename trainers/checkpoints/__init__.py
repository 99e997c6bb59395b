"""Complete saved states: files of all ranks, then a manifest that makes them visible."""
