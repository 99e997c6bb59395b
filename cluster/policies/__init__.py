"""The operators' policies and what they speak of, offerings and placement: documents, problems, values (pure)."""
