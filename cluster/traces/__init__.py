"""What has happened, or might: jobs that came, and what could be bought meanwhile (pure)."""
