"""Identities from OpenID Connect: which issuers the service trusts, and what a token of theirs says."""
