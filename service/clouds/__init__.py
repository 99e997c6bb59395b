"""The cloud that the controller makes nodes in, by the settings."""
