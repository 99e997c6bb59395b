"""The database: all SQL of the service is here."""
