"""FX passes, one file each.  A pass states what it requires, runs, and states what it ensures.

propagate ─► storages ─► (costs) ─► rematerialize ─► verify ─► split ─► lower_drops
shapes       who owns    seconds    Rewriter         always    training  executor
if missing   which bytes            emits Drop and             only
                                    Recompute
"""
