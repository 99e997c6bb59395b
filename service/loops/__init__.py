"""Hands: scale, dispatch, track, sweep; each is load, decide, apply."""
