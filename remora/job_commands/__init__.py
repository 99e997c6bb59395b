"""Command lines as users write them: words, shells, and launchers that they start (pure)."""
