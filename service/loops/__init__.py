"""The controller's loops (scale, dispatch, track, sweep): each loads rows, decides, and applies the decision."""
