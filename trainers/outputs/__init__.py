"""What scripts write into their outputs folder: kept in the storage, and there again for the next worker group."""
