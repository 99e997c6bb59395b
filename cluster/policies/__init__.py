"""The operators' policies, with offerings and placement: documents, their problems, and values (pure)."""
