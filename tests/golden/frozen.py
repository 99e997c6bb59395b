"""Imported into the process that workers are forked from, after all else.

What is there by then is never garbage.  As in the product's own fork server, collections of a worker leave it alone:
they would look at each of its objects, and copy its memory by that.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
