"""The cloud in which the controller creates nodes, by the settings."""
