"""Sends notifications: signed webhooks, Slack's JSON, and e-mail."""
